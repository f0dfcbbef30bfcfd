"""Normalization over trailing axes (layer norm) or over the rest of each group of channels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tripy_portable.dialect.inference import OpView
from tripy_portable.kernels.registry import Lowered, lowers

Tensor = torch.Tensor


@lowers("normalization")
def _normalization(view: OpView) -> Lowered:
    """Mean and variance are accumulated in float32 for every element type."""
    source, scale = view.type(0), view.type(1)
    axes, eps, groups = tuple(view.attrs["axis"]), view.attrs["eps"], view.attrs["num_groups"]
    trailing = tuple(range(source.rank - len(axes), source.rank))
    inner = source.dims[source.rank - len(axes) :]
    if groups == 1 and axes == trailing and scale.dims == (1,) * (source.rank - len(axes)) + inner:
        return Lowered(
            lambda x, weight, bias: F.layer_norm(x, inner, weight.reshape(inner), bias.reshape(inner), eps)
        )
    dims = source.dims
    if groups == 1:
        return Lowered(lambda x, weight, bias: _normalize(x, weight, bias, axes, eps))
    grouped = (dims[0], groups, math.prod(dims[1:]) // groups)

    def by_group(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # One scale and bias a group: the groups become the channels.
        affine = (1, groups, 1)
        x = x.reshape(grouped)
        return _normalize(x, weight.reshape(affine), bias.reshape(affine), (2,), eps).reshape(dims)

    return Lowered(by_group)


def _normalize(x: Tensor, weight: Tensor, bias: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    wide = x.to(torch.float32)
    centred = wide - wide.mean(dim=axes, keepdim=True)
    variance = (centred * centred).mean(dim=axes, keepdim=True)
    return (centred * torch.rsqrt(variance + eps) * weight + bias).to(x.dtype)
