"""Builders of quantization, convolutions, pooling and resizing."""

from __future__ import annotations

from typing import Any

from tripy_portable.dialect.enums import EnumAttr
from tripy_portable.dialect.recording import build
from tripy_portable.ir.operations import OpResult, Value
from tripy_portable.ir.types import RankedTensorType


def quantize(result: RankedTensorType, input: Value, scale: Value, *, axis: Any = None) -> OpResult:
    """Divides by a scale, rounds and saturates."""
    return build("quantize", [input, scale], {"axis": axis}, [result])[0]


def dequantize(result: RankedTensorType, input: Value, scale: Value, *, axis: Any = None) -> OpResult:
    """Multiplies by a scale."""
    return build("dequantize", [input, scale], {"axis": axis}, [result])[0]


def convolution(
    input: Value,
    stride: Any,
    pre_padding: Any,
    post_padding: Any,
    *,
    kernel: Value | None = None,
    bias: Value | None = None,
    num_groups: int | None = None,
    dilation: Any = None,
) -> OpResult:
    """Correlates with a kernel."""
    attrs = _window_attrs(stride, pre_padding, post_padding, num_groups, dilation)
    return build("convolution", [input, kernel, bias], attrs)[0]


def deconvolution(
    input: Value,
    stride: Any,
    pre_padding: Any,
    post_padding: Any,
    *,
    kernel_weights: Value | None = None,
    bias_weights: Value | None = None,
    num_groups: int | None = None,
    dilation: Any = None,
) -> OpResult:
    """The gradient of a convolution with respect to its input."""
    attrs = _window_attrs(stride, pre_padding, post_padding, num_groups, dilation)
    return build("deconvolution", [input, kernel_weights, bias_weights], attrs)[0]


def _window_attrs(
    stride: Any, pre_padding: Any, post_padding: Any, num_groups: Any, dilation: Any
) -> dict[str, Any]:
    return {
        "stride": stride,
        "pre_padding": pre_padding,
        "post_padding": post_padding,
        "num_groups": 1 if num_groups is None else num_groups,
        "dilation": dilation if dilation is not None else (1,) * len(stride),
    }


def pooling(
    input: Value,
    window_size: Any,
    stride: Any,
    pre_padding: Any,
    post_padding: Any,
    pooling_type: EnumAttr,
    *,
    average_count_excludes_padding: Any = None,
) -> OpResult:
    """Reduces windows to their maximum or mean."""
    attrs = {
        "window_size": window_size,
        "stride": stride,
        "pre_padding": pre_padding,
        "post_padding": post_padding,
        "pooling_type": pooling_type,
        "average_count_excludes_padding": average_count_excludes_padding,
    }
    return build("pooling", [input], attrs)[0]


def resize_nearest(
    result: RankedTensorType,
    input: Value,
    coordinate_transformation: EnumAttr,
    nearest_rounding: EnumAttr,
    selector_for_single_pixel: EnumAttr,
    *,
    output_shape: Value | None = None,
    scales: Any = None,
) -> OpResult:
    """Resizes by the nearest element."""
    attrs = {
        "coordinates": coordinate_transformation,
        "rounding": nearest_rounding,
        "selector": selector_for_single_pixel,
        "scales": scales,
    }
    return build("resize_nearest", [input, output_shape], attrs, [result])[0]


def resize_linear(
    result: RankedTensorType,
    input: Value,
    coordinate_transformation: EnumAttr,
    selector_for_single_pixel: EnumAttr,
    *,
    output_shape: Value | None = None,
    scales: Any = None,
) -> OpResult:
    """Resizes by linear interpolation."""
    attrs = {
        "coordinates": coordinate_transformation,
        "selector": selector_for_single_pixel,
        "scales": scales,
    }
    return build("resize_linear", [input, output_shape], attrs, [result])[0]


def resize_cubic(
    result: RankedTensorType,
    input: Value,
    coordinate_transformation: EnumAttr,
    selector_for_single_pixel: EnumAttr,
    cubic_coeff: Any,
    *,
    output_shape: Value | None = None,
    scales: Any = None,
) -> OpResult:
    """Resizes by cubic interpolation."""
    attrs = {
        "coordinates": coordinate_transformation,
        "selector": selector_for_single_pixel,
        "cubic_coeff": cubic_coeff,
        "scales": scales,
    }
    return build("resize_cubic", [input, output_shape], attrs, [result])[0]
