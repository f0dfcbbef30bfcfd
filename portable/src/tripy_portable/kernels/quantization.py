"""Quantization: x / scale, rounded half to even and saturated; and back."""

from __future__ import annotations

import torch

from tripy_portable.dialect.inference import OpView
from tripy_portable.dtypes import F8
from tripy_portable.kernels.pointwise import rounded_to_integer
from tripy_portable.kernels.registry import Lowered, lowers

Tensor = torch.Tensor


def _aligned_scale(scale: Tensor, dims: tuple[int, ...], axis: int | None) -> Tensor:
    """The scale in float32, in a shape that broadcasts to the input's."""
    scale = scale.to(torch.float32)
    if scale.ndim == 0:
        return scale
    if axis is not None:
        return scale.reshape([-1 if d == axis else 1 for d in range(len(dims))])
    for d, extent in enumerate(dims):
        if scale.shape[d] != extent:
            scale = scale.repeat_interleave(extent // scale.shape[d], dim=d)
    return scale


def to_float8(x: Tensor) -> Tensor:
    """Rounds to float8 E4M3; values out of range saturate to 448, NaN stays."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


@lowers("quantize")
def _quantize(view: OpView) -> Lowered:
    dims, axis, target = view.type(0).dims, view.attrs["axis"], view.declared[0].element

    def quantize(x: Tensor, scale: Tensor) -> Tensor:
        scaled = x.to(torch.float32) / _aligned_scale(scale, dims, axis)
        return to_float8(scaled) if target is F8 else rounded_to_integer(scaled, target)

    return Lowered(quantize)


@lowers("dequantize")
def _dequantize(view: OpView) -> Lowered:
    dims, axis, dtype = view.type(0).dims, view.attrs["axis"], view.declared[0].element.torch
    return Lowered(lambda x, scale: (x.to(torch.float32) * _aligned_scale(scale, dims, axis)).to(dtype))
