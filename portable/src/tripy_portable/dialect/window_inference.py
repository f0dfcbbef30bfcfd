"""Result types of convolutions, pooling, resizing and quantization."""

from __future__ import annotations

from tripy_portable.diagnostics import VerificationError
from tripy_portable.dialect.inference import OpView, infers
from tripy_portable.dtypes import F8, I4
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type


def _check_spatial(view: OpView, *names: str) -> int:
    rank = view.type(0).rank
    if rank not in (4, 5):
        raise VerificationError(
            f"input must be 4D or 5D (2 or 3 spatial dimensions), but got '{view.type(0)}'"
        )
    for name in names:
        if len(view.attrs[name]) != rank - 2:
            raise VerificationError(
                f"{name} should have size equal to the number of spatial dimensions, {rank - 2}, "
                f"but got {list(view.attrs[name])}"
            )
    return rank - 2


def _static(view: OpView, extent: int, what: str) -> int:
    if extent < 0:
        raise VerificationError(
            f"failed to compute the output shape: {what} would be negative for '{view.type(0)}'"
        )
    return extent


@infers("convolution")
def _convolution(view: OpView) -> list[RankedTensorType]:
    spatial = _check_spatial(view, "stride", "pre_padding", "post_padding", "dilation")
    data, kernel, groups = view.type(0), view.type(1), view.attrs["num_groups"]
    if kernel.rank != data.rank:
        raise VerificationError(f"kernel must have the input's rank: got '{data}' and '{kernel}'")
    _check_channels(data.dims[1], kernel.dims[1], groups, kernel.dims[0])
    _check_bias(view, kernel.dims[0])
    extents = []
    for axis in range(spatial):
        size, window = data.dims[axis + 2], kernel.dims[axis + 2]
        if DYNAMIC in (size, window):
            extents.append(DYNAMIC)
            continue
        reach = view.attrs["dilation"][axis] * (window - 1) + 1
        room = size + view.attrs["pre_padding"][axis] + view.attrs["post_padding"][axis] - reach
        extents.append(_static(view, room, "a window's room") // view.attrs["stride"][axis] + 1)
    return [tensor_type((data.dims[0], kernel.dims[0], *extents), data.element)]


def _check_channels(input_channels: int, kernel_channels: int, groups: int, output_channels: int) -> None:
    if DYNAMIC in (input_channels, kernel_channels, output_channels):
        return
    if input_channels % groups or output_channels % groups:
        raise VerificationError(
            f"both input channels ({input_channels}) and output channels ({output_channels}) must be "
            "divisible by "
            f"num_groups ({groups})"
        )
    if input_channels // groups != kernel_channels:
        raise VerificationError(
            f"for num_groups = {groups} and input channels = {input_channels}, second (idx = 1) kernel "
            "dimension "
            f"should be {input_channels // groups}, but got {kernel_channels}"
        )


def _check_bias(view: OpView, channels: int) -> None:
    bias = view.types[2] if len(view.types) > 2 else None
    if bias is None:
        return
    if bias.rank != 1 or (DYNAMIC not in (bias.dims[0], channels) and bias.dims[0] != channels):
        raise VerificationError(
            f"bias type should be a rank-1 tensor type with size equal to the number of output channels "
            f"({channels}), but got '{bias}'"
        )


@infers("deconvolution")
def _deconvolution(view: OpView) -> list[RankedTensorType]:
    spatial = _check_spatial(view, "stride", "pre_padding", "post_padding", "dilation")
    data, kernel, groups = view.type(0), view.type(1), view.attrs["num_groups"]
    if kernel.rank != data.rank:
        raise VerificationError(f"kernel must have the input's rank: got '{data}' and '{kernel}'")
    if DYNAMIC not in (data.dims[1], kernel.dims[0]) and data.dims[1] != kernel.dims[0]:
        raise VerificationError(
            f"input channels ({data.dims[1]}) must equal the kernel's first dimension ({kernel.dims[0]})"
        )
    if data.dims[1] != DYNAMIC and data.dims[1] % groups:
        raise VerificationError(f"input channels ({data.dims[1]}) must be divisible by num_groups ({groups})")
    channels = DYNAMIC if kernel.dims[1] == DYNAMIC else kernel.dims[1] * groups
    _check_bias(view, channels)
    extents = []
    for axis in range(spatial):
        size, window = data.dims[axis + 2], kernel.dims[axis + 2]
        if DYNAMIC in (size, window):
            extents.append(DYNAMIC)
            continue
        full = (size - 1) * view.attrs["stride"][axis] + view.attrs["dilation"][axis] * (window - 1) + 1
        padding = view.attrs["pre_padding"][axis] + view.attrs["post_padding"][axis]
        extents.append(_static(view, full - padding, "an extent"))
    return [tensor_type((data.dims[0], channels, *extents), data.element)]


@infers("pooling")
def _pooling(view: OpView) -> list[RankedTensorType]:
    spatial = _check_spatial(view, "window_size", "stride", "pre_padding", "post_padding")
    data, extents = view.type(0), []
    for axis in range(spatial):
        size = data.dims[axis + 2]
        if size == DYNAMIC:
            extents.append(DYNAMIC)
            continue
        room = size + view.attrs["pre_padding"][axis] + view.attrs["post_padding"][axis]
        room -= view.attrs["window_size"][axis]
        extents.append(_static(view, room, "a window's room") // view.attrs["stride"][axis] + 1)
    return [tensor_type((*data.dims[:2], *extents), data.element)]


@infers("resize_nearest", "resize_linear", "resize_cubic")
def _resize(view: OpView) -> list[RankedTensorType]:
    data, target, scales = view.type(0), view.ints(1), view.attrs["scales"]
    if scales is not None:
        if len(scales) != data.rank:
            raise VerificationError(
                f"scales must have one value a dimension: got {list(scales)} for '{data}'"
            )
        dims = tuple(DYNAMIC if e == DYNAMIC else int(e * scale) for e, scale in zip(data.dims, scales))
    elif target is not None:
        if len(target) != data.rank:
            raise VerificationError(
                f"output_shape must have one value a dimension: got {target} for '{data}'"
            )
        dims = tuple(target)
    else:
        dims = (DYNAMIC,) * data.rank
    return [tensor_type(dims, data.element)]


@infers("quantize", "dequantize")
def _quantization(view: OpView) -> list[RankedTensorType]:
    data, scale, axis = view.type(0), view.type(1), view.attrs["axis"]
    element = view.declared[0].element
    if data.rank == 0:
        raise VerificationError(f"input must have at least one dimension, but got '{data}'")
    if scale.rank == 0:
        if axis is not None:
            raise VerificationError("a scalar scale is per-tensor, and thus axis shouldn't be provided")
    elif scale.rank == 1 and axis is not None:
        if not 0 <= axis < data.rank:
            raise VerificationError(f"expected axis to be non-negative and less than {data.rank}")
        if DYNAMIC not in (data.dims[axis], scale.dims[0]) and data.dims[axis] != scale.dims[0]:
            raise VerificationError(
                f"for a per-channel scale, expected its size ({scale.dims[0]}) to match the input's "
                "dimension "
                f"{axis} ({data.dims[axis]})"
            )
    elif scale.rank == data.rank and axis is None:
        quantized = element if view.name == "quantize" else data.element
        if quantized not in (I4, F8):
            raise VerificationError("block quantization is supported only for int4 or fp8 types")
        _check_blocks(data, scale)
    else:
        raise VerificationError(
            "scale must be a scalar (per-tensor), 1D with an axis (per-channel), or of the input's rank "
            "without "
            f"an axis (block): got '{scale}' with axis {axis} for '{data}'"
        )
    return [tensor_type(data.dims, element)]


def _check_blocks(data: RankedTensorType, scale: RankedTensorType) -> None:
    blocked = []
    for axis, (extent, count) in enumerate(zip(data.dims, scale.dims)):
        if DYNAMIC in (extent, count) or extent == count:
            continue
        if count == 0 or extent % count:
            raise VerificationError(
                f"the scale's dimension {axis} ({count}) must divide the input's ({extent}) for block "
                "quantization"
            )
        blocked.append(axis)
    if len(blocked) > 1 or any(axis < data.rank - 2 for axis in blocked):
        raise VerificationError(
            "block quantization allows a single blocking dimension, the last or second last: "
            f"got '{data}' and scale '{scale}'"
        )
