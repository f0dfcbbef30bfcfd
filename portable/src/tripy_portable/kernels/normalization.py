"""Normalization over trailing axes (layer norm) or over the rest of each group of channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tripy_portable.dialect.inference import OpView
from tripy_portable.kernels.registry import Lowered, lowers

Tensor = torch.Tensor


@lowers("normalization")
def _normalization(view: OpView) -> Lowered:
    """Mean and variance are accumulated in float32 whatever the element type."""
    source, scale = view.types[0], view.types[1]
    axes, eps, groups = tuple(view.attrs["axis"]), view.attrs["eps"], view.attrs["num_groups"]
    trailing = tuple(range(source.rank - len(axes), source.rank))
    inner = source.dims[source.rank - len(axes) :]
    if groups == 1 and axes == trailing and scale.dims == (1,) * (source.rank - len(axes)) + inner:
        return Lowered(
            lambda x, weight, bias: F.layer_norm(x, inner, weight.reshape(inner), bias.reshape(inner), eps)
        )
    dims = source.dims

    def normalize(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        if groups > 1:
            wide = wide.reshape(dims[0], groups, -1)
            over: tuple[int, ...] = (-1,)
        else:
            over = axes
        mean = wide.mean(dim=over, keepdim=True)
        centred = wide - mean
        variance = (centred * centred).mean(dim=over, keepdim=True)
        normalized = (centred * torch.rsqrt(variance + eps)).reshape(dims)
        return (normalized * weight + bias).to(x.dtype)

    return Lowered(normalize)
