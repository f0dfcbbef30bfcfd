"""Convolutions, pooling and resizing against loops over windows in float64."""

import itertools

import numpy as np
import pytest
import torch
from harness import constant, float64, ranked, run

from mlir_tensorrt.compiler import ir
from mlir_tensorrt.compiler.dialects import tensorrt

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
# spatial extents, window, stride, pre, post, dilation, groups
CASES = [
    ((5, 6), (3, 2), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    ((5, 6), (3, 2), (2, 1), (1, 0), (2, 1), (1, 2), 2),
    ((4, 4), (1, 1), (3, 3), (0, 0), (0, 0), (1, 1), 4),
    ((3, 4, 5), (2, 2, 3), (1, 2, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1), 1),
]


def random(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_sum_of(actual, exact, absolute, terms, dtype):
    """Float32 accumulation of `terms` products, and one rounding to the type."""
    info = torch.finfo(dtype)
    rounding = info.eps * np.maximum(np.abs(exact), info.smallest_normal)
    bound = (terms + 2) * np.finfo(np.float32).eps * absolute + rounding
    assert float64(actual).shape == exact.shape
    assert (np.abs(float64(actual) - exact) <= bound + 1e-30).all()


def convolve(x, kernel, stride, pre, post, dilation, groups):
    """The definition, one output element at a time."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pre, post)])
    window = kernel.shape[2:]
    out = [
        (extent - d * (w - 1) - 1) // s + 1
        for extent, w, s, d in zip(padded.shape[2:], window, stride, dilation)
    ]
    result = np.zeros((x.shape[0], kernel.shape[0], *out))
    per_group = kernel.shape[0] // groups
    channels = x.shape[1] // groups
    for channel in range(kernel.shape[0]):
        first = channel // per_group * channels
        for position in itertools.product(*map(range, out)):
            box = tuple(
                slice(p * s, p * s + d * (w - 1) + 1, d)
                for p, s, d, w in zip(position, stride, dilation, window)
            )
            patch = padded[(slice(None), slice(first, first + channels), *box)]
            result[(slice(None), channel, *position)] = (
                (patch * kernel[channel]).reshape(x.shape[0], -1).sum(1)
            )
    return result


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_convolution(case, dtype):
    extents, window, stride, pre, post, dilation, groups = case
    x, kernel = random((2, 4, *extents), dtype, 0), random((8, 4 // groups, *window), dtype, 1)
    bias = random((8,), dtype, 2)
    actual = run(
        lambda a, k, b: tensorrt.convolution(
            a,
            stride,
            pre_padding=pre,
            post_padding=post,
            kernel=k,
            bias=b,
            num_groups=groups,
            dilation=dilation,
        ),
        x,
        kernel,
        bias,
    )
    arguments = (stride, pre, post, dilation, groups)
    shift = float64(bias).reshape([1, -1] + [1] * len(extents))
    exact = convolve(float64(x), float64(kernel), *arguments) + shift
    absolute = convolve(np.abs(float64(x)), np.abs(float64(kernel)), *arguments) + np.abs(shift)
    terms = kernel[0].numel()
    # A kernel library may round the sum to the type before it adds the bias.
    absolute += torch.finfo(dtype).eps / np.finfo(np.float32).eps / terms * absolute
    assert_sum_of(actual, exact, absolute, terms, dtype)


def deconvolve(x, kernel, stride, pre, post, dilation, groups):
    """Each input element adds its scaled kernel to the output."""
    window = kernel.shape[2:]
    full = [(e - 1) * s + d * (w - 1) + 1 for e, s, d, w in zip(x.shape[2:], stride, dilation, window)]
    per_group = kernel.shape[1]
    result = np.zeros((x.shape[0], per_group * groups, *full))
    channels = x.shape[1] // groups
    for channel in range(x.shape[1]):
        first = channel // channels * per_group
        for position in np.ndindex(*x.shape[2:]):
            box = tuple(
                slice(p * s, p * s + d * (w - 1) + 1, d)
                for p, s, d, w in zip(position, stride, dilation, window)
            )
            value = x[(slice(None), channel, *position)].reshape([-1] + [1] * (1 + len(window)))
            result[(slice(None), slice(first, first + per_group), *box)] += value * kernel[channel][None]
    crop = tuple(slice(a, extent - b) for a, b, extent in zip(pre, post, full))
    return result[(slice(None), slice(None), *crop)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "case", CASES[:1] + CASES[3:] + [((4, 3), (3, 3), (2, 2), (1, 0), (0, 2), (1, 1), 2)]
)
def test_deconvolution(case, dtype):
    extents, window, stride, pre, post, dilation, groups = case
    x, kernel = random((2, 4, *extents), dtype, 0), random((4, 3, *window), dtype, 1)
    actual = run(
        lambda a, k: tensorrt.deconvolution(
            a,
            stride,
            pre_padding=pre,
            post_padding=post,
            kernel_weights=k,
            num_groups=groups,
            dilation=dilation,
        ),
        x,
        kernel,
    )
    arguments = (stride, pre, post, dilation, groups)
    exact = deconvolve(float64(x), float64(kernel), *arguments)
    absolute = deconvolve(np.abs(float64(x)), np.abs(float64(kernel)), *arguments)
    assert_sum_of(actual, exact, absolute, 4 * kernel[0, 0].numel(), dtype)


def pooled(x, window, stride, pre, post, reduce, fill):
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pre, post)], constant_values=fill)
    out = [(extent - w) // s + 1 for extent, w, s in zip(padded.shape[2:], window, stride)]
    result = np.empty((*x.shape[:2], *out))
    for position in itertools.product(*map(range, out)):
        box = tuple(slice(p * s, p * s + w) for p, s, w in zip(position, stride, window))
        patch = padded[(slice(None), slice(None), *box)].reshape(*x.shape[:2], -1)
        result[(slice(None), slice(None), *position)] = reduce(patch, -1)
    return result


def pool(kind, window, stride, pre, post, excludes=None):
    attribute = tensorrt.PoolingTypeAttr.get(kind)
    options = {} if excludes is None else {"average_count_excludes_padding": ir.BoolAttr.get(excludes)}
    return lambda x: tensorrt.pooling(x, window, stride, pre, post, attribute, **options)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", [case[:5] for case in CASES[:2] + CASES[3:]])
def test_pooling(case, dtype):
    extents, window, stride, pre, post = case
    x = random((2, 3, *extents), dtype, 0)
    greatest = run(pool("kMAX", window, stride, pre, post), x)
    np.testing.assert_array_equal(
        float64(greatest), pooled(float64(x), window, stride, pre, post, np.max, -np.inf)
    )
    for excludes in (False, True):
        actual = run(pool("kAVERAGE", window, stride, pre, post, excludes), x)
        with np.errstate(all="ignore"):
            mean = np.nanmean if excludes else np.mean
            exact = pooled(float64(x), window, stride, pre, post, mean, np.nan if excludes else 0.0)
            absolute = pooled(
                np.abs(float64(x)), window, stride, pre, post, mean, np.nan if excludes else 0.0
            )
        assert_sum_of(actual, exact, absolute, int(np.prod(window)), dtype)


def test_pooling_of_int8():
    x = np.int8([[[[-128, 3], [5, -7]]]])
    assert run(pool("kMAX", (2, 2), (1, 1), (0, 0), (0, 0)), x).item() == 5
    assert run(pool("kAVERAGE", (2, 2), (1, 1), (0, 0), (0, 0), True), x).item() == -32


def cubic_weight(distance, a=-0.75):
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def resized(x, target, kind, align):
    """One axis after the other, from the definition of each mode."""
    for axis, count in enumerate(target):
        size = x.shape[axis]
        if size == count:
            continue
        lines = []
        for i in range(count):
            if kind == "nearest":
                taps = [(int(i * size // count), 1.0)]
            else:
                position = (i * (size - 1) / max(count - 1, 1)) if align else (i + 0.5) * size / count - 0.5
                base = int(np.floor(position))
                reach = range(base, base + 2) if kind == "linear" else range(base - 1, base + 3)
                weight = (lambda d: max(0.0, 1 - abs(d))) if kind == "linear" else cubic_weight
                taps = [(tap, weight(position - tap)) for tap in reach]
            lines.append(sum(w * np.take(x, min(max(tap, 0), size - 1), axis=axis) for tap, w in taps))
        x = np.stack(lines, axis)
    return x


def resize(kind, target, align):
    def build(v):
        coordinates = tensorrt.ResizeCoordinateTransformationAttr.get(
            "kASYMMETRIC" if kind == "nearest" else "kALIGN_CORNERS" if align else "kHALF_PIXEL"
        )
        selector = tensorrt.ResizeSelectorAttr.get("kFORMULA")
        result = ranked(v.type.rank, torch.float32 if v.type.element.code == "f32" else torch.float16)
        shape = constant(list(target))
        if kind == "nearest":
            rounding = tensorrt.ResizeRoundModeAttr.get("kFLOOR")
            return tensorrt.resize_nearest(result, v, coordinates, rounding, selector, output_shape=shape)
        if kind == "linear":
            return tensorrt.resize_linear(result, v, coordinates, selector, output_shape=shape)
        coefficient = ir.FloatAttr.get(ir.F32Type.get(), -0.75)
        return tensorrt.resize_cubic(result, v, coordinates, selector, coefficient, output_shape=shape)

    return build


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("target", [(1, 2, 7, 3), (1, 2, 2, 9), (1, 2, 1, 1), (1, 2, 4, 5)])
@pytest.mark.parametrize(
    ("kind", "align"),
    [("nearest", False), ("linear", False), ("linear", True), ("cubic", False), ("cubic", True)],
)
def test_resize(kind, align, target, dtype):
    x = random((1, 2, 4, 5), dtype, 0)
    exact = resized(float64(x), target, kind, align)
    actual = float64(run(resize(kind, target, align), x))
    # Weights of magnitude up to 1.4 a tap, rounded to float32.
    assert (
        np.abs(actual - exact) <= 64 * np.finfo(np.float32).eps + torch.finfo(dtype).eps * np.abs(exact)
    ).all()


def test_resize_by_scales():
    selector = tensorrt.ResizeSelectorAttr.get("kFORMULA")
    coordinates = tensorrt.ResizeCoordinateTransformationAttr.get("kASYMMETRIC")
    rounding = tensorrt.ResizeRoundModeAttr.get("kFLOOR")
    scales = ir.DenseF32ArrayAttr.get([1.0, 1.0, 2.0, 1.5])
    x = torch.arange(8.0).reshape(1, 1, 2, 4)
    actual = run(
        lambda v: tensorrt.resize_nearest(
            ranked(4, torch.float32), v, coordinates, rounding, selector, scales=scales
        ),
        x,
    )
    assert actual[0, 0].tolist() == [[0, 0, 1, 2, 2, 3]] * 2 + [[4, 4, 5, 6, 6, 7]] * 2
