"""Operations with windows: convolutions, pooling, resizing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tripy_portable.diagnostics import UnsupportedOperation
from tripy_portable.dialect.inference import OpView
from tripy_portable.kernels.pointwise import rounded_to_integer
from tripy_portable.kernels.registry import Lowered, identity, lowers

Tensor = torch.Tensor


def _pad_spatial(x: Tensor, pre: Sequence[int], post: Sequence[int], value: float = 0.0) -> Tensor:
    amounts = [amount for pair in zip(reversed(pre), reversed(post)) for amount in pair]
    return F.pad(x, amounts, value=value) if any(amounts) else x


@lowers("convolution")
def _convolution(view: OpView) -> Lowered:
    attrs = view.attrs
    convolve = F.conv2d if view.type(0).rank == 4 else F.conv3d
    pre, post = attrs["pre_padding"], attrs["post_padding"]
    options: dict[str, Any] = {
        "stride": attrs["stride"],
        "dilation": attrs["dilation"],
        "groups": attrs["num_groups"],
    }
    if pre == post:
        return Lowered(lambda x, kernel, bias=None: convolve(x, kernel, bias, padding=pre, **options))
    return Lowered(lambda x, kernel, bias=None: convolve(_pad_spatial(x, pre, post), kernel, bias, **options))


@lowers("deconvolution")
def _deconvolution(view: OpView) -> Lowered:
    attrs = view.attrs
    deconvolve = F.conv_transpose2d if view.type(0).rank == 4 else F.conv_transpose3d
    pre, extents = attrs["pre_padding"], view.declared[0].dims[2:]
    crop = (slice(None), slice(None), *(slice(low, low + extent) for low, extent in zip(pre, extents)))

    def run(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
        # torch's CPU kernel accumulates 16-bit floats in their own type, so the sums are taken in float32.
        full = deconvolve(
            x.to(torch.float32),
            kernel.to(torch.float32),
            None if bias is None else bias.to(torch.float32),
            stride=attrs["stride"],
            dilation=attrs["dilation"],
            groups=attrs["num_groups"],
        )
        return full[crop].to(x.dtype)

    return Lowered(run)


@lowers("pooling")
def _pooling(view: OpView) -> Lowered:
    attrs, element = view.attrs, view.type(0).element
    planar = view.type(0).rank == 4
    window, stride = attrs["window_size"], attrs["stride"]
    pre, post = attrs["pre_padding"], attrs["post_padding"]
    dtype = element.torch
    if attrs["pooling_type"] == "kMAX":
        pool = F.max_pool2d if planar else F.max_pool3d
        # torch pools float32, in which 8-bit integers are exact.
        lowest = float("-inf") if element.is_float else float(torch.iinfo(dtype).min)

        def pool_max(x: Tensor) -> Tensor:
            wide = x if element.is_float else x.to(torch.float32)
            return pool(_pad_spatial(wide, pre, post, lowest), window, stride).to(dtype)

        return Lowered(pool_max)
    if attrs["pooling_type"] != "kAVERAGE":
        raise UnsupportedOperation(
            f"tensorrt.pooling {attrs['pooling_type']} is not supported by the portable runtime"
        )
    average = F.avg_pool2d if planar else F.avg_pool3d
    volume = math.prod(window)
    excludes = attrs["average_count_excludes_padding"]

    def pool_average(x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        means = average(_pad_spatial(wide, pre, post), window, stride)
        if excludes and (any(pre) or any(post)):
            ones = torch.ones((1, 1, *x.shape[2:]), device=x.device)
            count = average(_pad_spatial(ones, pre, post), window, stride) * volume
            means = means * volume / count
        return means.to(dtype) if element.is_float else rounded_to_integer(means, element)

    return Lowered(pool_average)


def _coordinates(view: OpView, axis: int) -> Tensor:
    """Where in the input each output element of an axis lies."""
    size, count = view.type(0).dims[axis], view.declared[0].dims[axis]
    index = torch.arange(count, dtype=torch.float64)
    scales = view.attrs["scales"]
    scale = scales[axis] if scales is not None else (count / size if size else 1.0)
    transform = view.attrs["coordinates"]
    if transform == "kALIGN_CORNERS":
        return index * ((size - 1) / (count - 1)) if count > 1 else index * 0
    if transform == "kHALF_PIXEL":
        return (index + 0.5) / scale - 0.5
    return index / scale


def _linear_taps(position: Tensor) -> list[tuple[Tensor, Tensor]]:
    base = torch.floor(position)
    weight = position - base
    return [(base, 1 - weight), (base + 1, weight)]


def _cubic_taps(position: Tensor, a: float) -> list[tuple[Tensor, Tensor]]:
    """Keys' cubic convolution with parameter a."""
    base = torch.floor(position)
    t = position - base

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((d - 5) * d + 8) * d * a - 4 * a

    return [(base - 1, far(1 + t)), (base, near(t)), (base + 1, near(1 - t)), (base + 2, far(2 - t))]


@lowers("resize_nearest")
def _resize_nearest(view: OpView) -> Lowered:
    if view.attrs["rounding"] != "kFLOOR":
        raise UnsupportedOperation(
            f"tensorrt.resize_nearest {view.attrs['rounding']} is not supported by the portable runtime"
        )
    axes, indices = _resized_axes(view), []
    for axis in axes:
        # A position that is exact in real numbers may come out just below the integer.
        position = torch.floor(_coordinates(view, axis) + 1e-9)
        indices.append(position.clamp(0, view.type(0).dims[axis] - 1).to(torch.int64))

    def resize(x: Tensor, *indices: Tensor) -> Tensor:
        for axis, index in zip(axes, indices):
            x = x.index_select(axis, index)
        return x

    if not axes:
        return Lowered(identity, uses=(0,), is_view=True)
    return Lowered(resize, uses=(0,), tables=tuple(indices))


def _resized_axes(view: OpView) -> list[int]:
    source, target, scales = view.type(0).dims, view.declared[0].dims, view.attrs["scales"]
    return [
        axis
        for axis in range(len(source))
        if source[axis] != target[axis] or (scales is not None and scales[axis] != 1.0)
    ]


@lowers("resize_linear", "resize_cubic")
def _resize_interpolating(view: OpView) -> Lowered:
    """Separable interpolation, computed in float32; positions beyond the border read the border element."""
    axes, tables = _resized_axes(view), []
    for axis in axes:
        position = _coordinates(view, axis)
        last = view.type(0).dims[axis] - 1
        pairs = (
            _linear_taps(position)
            if view.name == "resize_linear"
            else _cubic_taps(position, view.attrs["cubic_coeff"])
        )
        tail = [1] * (view.type(0).rank - axis - 1)
        for index, weight in pairs:
            tables += [index.clamp(0, last).to(torch.int64), weight.to(torch.float32).reshape([-1, *tail])]
    element = view.type(0).element

    def resize(x: Tensor, *tables: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        per_axis = len(tables) // max(len(axes), 1)
        for number, axis in enumerate(axes):
            own = tables[number * per_axis : (number + 1) * per_axis]
            taps = [wide.index_select(axis, index) * weight for index, weight in zip(own[::2], own[1::2])]
            wide = functools.reduce(torch.add, taps)
        if element.is_float:
            return wide.to(x.dtype)
        return rounded_to_integer(wide, element)

    return Lowered(resize, uses=(0,), tables=tuple(tables))
