"""Terms of windows: convolutions, pooling and interpolation.

A formula gives the terms of an inner result element. Windows that reach into padding have fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parity.capture.terms.call import Call, Formula, by_name, parts


def _each(value: int | Sequence[int], count: int) -> list[int]:
    """An option of every axis; one value stands for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _taps(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Pairs of an input and a tap of a transposed window that add up in one result, on one axis."""
    return min(size, -(-kernel // (stride // math.gcd(stride, dilation))))


def _convolution(call: Call) -> int:
    operand, weight, bias = call.tensor(0), call.tensor(1), call.get("bias")
    sizes, kernel = operand.shape[2:], weight.shape[2:]
    axes = len(kernel)
    stride, dilation = (_each(call.get(name) or 1, axes) for name in ("stride", "dilation"))
    if call.get("transposed", False):
        inputs = weight.shape[0] // call["groups"]
        window = math.prod(map(_taps, sizes, kernel, stride, dilation))
    else:
        inputs = weight.shape[1]
        paddings = _each(call.get("padding", 0), axes)
        window = math.prod(map(_window, sizes, kernel, stride, dilation, paddings))
    return inputs * window * parts(operand) + (bias is not None)


def _window(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    """Taps of the fullest window that lie inside the input, on one axis."""
    positions = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    fullest = 0
    for position in range(positions):
        start = position * stride - padding
        first = max(0, -(start // dilation))
        last = min(kernel - 1, (size - 1 - start) // dilation)
        fullest = max(fullest, last - first + 1)
        if fullest == min(kernel, -(-size // dilation)):
            break
    return fullest


def _temporal_convolution(call: Call) -> int:
    weight = call["weight"]
    return weight.shape[0] * weight.shape[1] + 1


def _folded(call: Call) -> int:
    """Overlapping patches."""
    axes = zip(call["output_size"], call["kernel_size"], call["stride"], call["dilation"], strict=True)
    return math.prod(_taps(size, kernel, stride, dilation) for size, kernel, stride, dilation in axes)


def _average_pool(call: Call) -> int:
    operand, kernel = call.tensor(0), call["kernel_size"]
    axes = 3 if call.func.overloadpacket.__name__.endswith("3d") else 2
    return math.prod(map(min, operand.shape[-axes:], _each(kernel, axes)))


def _adaptive_pool(call: Call) -> int:
    operand, result = call.tensor(0), call.outputs[0]
    axes = 3 if call.func.overloadpacket.__name__.endswith("3d") else 2
    return math.prod(map(_longest_bin, operand.shape[-axes:], result.shape[-axes:]))


def _longest_bin(size: int, bins: int) -> int:
    """Elements of the longest bin: bin i goes from floor(i * size / bins) to ceil((i + 1) * size / bins)."""
    return max(-(-(number + 1) * size // bins) - number * size // bins for number in range(bins))


def _interpolation(points: int, axes: int) -> Formula:
    def formula(call: Call) -> int:
        return math.prod(min(points, size) for size in call.tensor(0).shape[-axes:])

    return formula


def _antialiased(points: int) -> Formula:
    """Windows of `points` that are as much wider as the image gets smaller."""

    def formula(call: Call) -> int:
        sizes, results = call.tensor(0).shape[-2:], call.outputs[0].shape[-2:]
        factors = (call.get("scales_h"), call.get("scales_w"))
        aligned = bool(call["align_corners"])
        window = 1
        for size, result, factor in zip(sizes, results, factors, strict=True):
            scale = _scale(size, result, factor, aligned)
            support = points / 2 * max(1.0, scale)
            centers = [scale * (number + 0.5) for number in range(result)]
            spans = [
                min(int(center + support + 0.5), size) - max(int(center - support + 0.5), 0)
                for center in centers
            ]
            window *= max(spans, default=1)
        return window

    return formula


def _scale(size: int, result: int, factor: float | None, aligned: bool) -> float:
    """Input elements for one result element."""
    if aligned:
        return (size - 1) / (result - 1) if result > 1 else 0.0
    return 1.0 / factor if factor else size / result


def _grid_sample(call: Call) -> int:
    axes = call.tensor(0).ndim - 2
    points = {0: 2, 1: 0, 2: 4}[call["interpolation_mode"]]
    return math.prod(min(points, size) for size in call.tensor(0).shape[-axes:])


WINDOWS = by_name(
    {
        """
        convolution _convolution convolution_overrideable cudnn_convolution mkldnn_convolution
        _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d _conv_depthwise2d
        conv_depthwise3d
        """: _convolution,
        "conv_tbc": _temporal_convolution,
        "col2im": _folded,
        "avg_pool2d avg_pool3d": _average_pool,
        "_adaptive_avg_pool2d _adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d": _adaptive_pool,
        "upsample_linear1d": _interpolation(2, 1),
        "upsample_bilinear2d": _interpolation(2, 2),
        "upsample_trilinear3d": _interpolation(2, 3),
        "upsample_bicubic2d": _interpolation(4, 2),
        "_upsample_bilinear2d_aa": _antialiased(2),
        "_upsample_bicubic2d_aa": _antialiased(4),
        "_upsample_lanczos2d_aa": _antialiased(6),
        "grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback cudnn_grid_sampler": _grid_sample,
        "affine_grid_generator": lambda call: len(call["size"]) - 1,
    }
)
"""Formulas by the names of operations."""
