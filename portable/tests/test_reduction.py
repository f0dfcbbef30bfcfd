"""Reductions, top-k and softmax against NumPy in float64 and Python integers."""

import numpy as np
import pytest
import torch
from harness import float64, run
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, FLOATS, floats, integers, shapes

from mlir_tensorrt.compiler import ir
from mlir_tensorrt.compiler.dialects import tensorrt


def reduce(operation, axes, keep):
    attribute = tensorrt.ReduceOperationAttr.get(operation)
    return lambda x: tensorrt.reduce(x, ir.DenseI64ArrayAttr.get(axes), attribute, keep_dimensions=keep)


@st.composite
def reduction(draw, min_side=0):
    """A shape, some of its axes, and whether they are kept."""
    shape = draw(shapes(min_dims=1, max_dims=5, min_side=min_side))
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return shape, tuple(sorted(axes)), draw(st.booleans())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@FEW
@given(data=st.data())
def test_float_sum_and_average_accumulate_in_float32(dtype, data):
    shape, axes, keep = data.draw(reduction())
    x = data.draw(floats(shape, dtype))
    count = int(np.prod([shape[axis] for axis in axes]))
    # One rounding to the type, whose subnormal numbers lie `smallest` apart, and one in float32 an addition.
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    bound = np.finfo(np.float32).eps * count * np.abs(float64(x)).sum(axes, keepdims=keep) + smallest
    with np.errstate(all="ignore"):
        for operation, exact in (
            ("kSUM", float64(x).sum(axes, keepdims=keep)),
            (
                "kAVG",
                float64(x).sum(axes, keepdims=keep) / count
                if count
                else np.sum(float64(x), axes, keepdims=keep) * np.nan,
            ),
        ):
            actual = float64(run(reduce(operation, axes, keep), x))
            np.testing.assert_array_equal(np.isnan(actual), np.isnan(exact))
            error = np.nan_to_num(np.abs(actual - exact))
            assert actual.shape == exact.shape
            assert (error <= bound + info.eps * np.nan_to_num(np.abs(exact))).all()


@FEW
@given(data=st.data())
def test_float_product(data):
    shape, axes, keep = data.draw(reduction())
    x = data.draw(floats(shape, torch.float32, 0.5, 1.5))
    exact = float64(x).prod(axes, keepdims=keep)
    actual = float64(run(reduce("kPROD", axes, keep), x))
    np.testing.assert_allclose(actual, exact, rtol=np.finfo(np.float32).eps * max(np.prod(shape), 1))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
@pytest.mark.parametrize("operation", ["kMAX", "kMIN"])
@FEW
@given(data=st.data())
def test_extremes_are_exact_and_an_empty_axis_gives_the_identity(operation, dtype, data):
    shape, axes, keep = data.draw(reduction())
    x = data.draw(integers(shape, np.int32)).astype(dtype)
    greatest = operation == "kMAX"
    if dtype is np.float32:
        identity = -np.inf if greatest else np.inf
    else:
        identity = np.iinfo(dtype).min if greatest else np.iinfo(dtype).max
    exact = (np.max if greatest else np.min)(x, axes, keepdims=keep, initial=identity)
    np.testing.assert_array_equal(run(reduce(operation, axes, keep), x).numpy(), exact)


@pytest.mark.parametrize("operation", ["kMAX", "kMIN"])
def test_nan_propagates(operation):
    assert run(reduce(operation, (0,), False), np.float32([1, np.nan, 2])).isnan()


def wrap(value, bits):
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("operation", ["kSUM", "kPROD", "kAVG"])
@FEW
@given(data=st.data())
def test_integer_reductions_keep_their_type_and_wrap(operation, dtype, data):
    length = data.draw(st.integers(0, 5))
    x = data.draw(integers((2, length), dtype))
    bits = np.iinfo(dtype).bits
    exact = []
    for row in x.tolist():
        total = 1 if operation == "kPROD" else 0
        for value in row:
            total = wrap(total * value if operation == "kPROD" else total + value, bits)
        if operation == "kAVG":
            total = 0 if not row else abs(total) // len(row) * (1 if total >= 0 else -1)
        exact.append(total)
    actual = run(reduce(operation, (1,), False), x)
    assert actual.dtype == torch.from_numpy(x).dtype
    assert actual.tolist() == exact


def test_no_axes_is_the_identity():
    x = np.float32([[1, 2], [3, 4]])
    np.testing.assert_array_equal(run(reduce("kSUM", (), False), x).numpy(), x)


@pytest.mark.parametrize("operation", ["kMAX", "kMIN"])
@FEW
@given(data=st.data())
def test_top_k_is_sorted_and_ties_keep_their_order(operation, data):
    shape = data.draw(shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    x = data.draw(integers(shape, np.int32, 0, 3))
    attribute = tensorrt.TopKOperationAttr.get(operation)
    values, indices = run(lambda v: tensorrt.top_k(v, k, axis, attribute), x)
    order = np.argsort(-x if operation == "kMAX" else x, axis=axis, kind="stable")
    expected = np.take(order, range(k), axis=axis)
    np.testing.assert_array_equal(indices.numpy(), expected)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, expected, axis))
    assert indices.dtype == torch.int32


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@FEW
@given(data=st.data())
def test_softmax(dtype, data):
    shape = data.draw(shapes(min_dims=1, max_dims=5))
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = data.draw(floats(shape, dtype, -30, 30))
    wide = float64(x)
    exponentials = np.exp(wide - wide.max(axis, keepdims=True, initial=-np.inf)) if wide.size else wide
    exact = exponentials / exponentials.sum(axis, keepdims=True)
    actual = float64(run(lambda v: tensorrt.softmax(v, axis), x))
    # exp of a difference that was rounded in float32: up to 60 * eps relative, then one rounding to the type.
    eps = torch.finfo(dtype).eps + 64 * torch.finfo(torch.float32).eps
    assert (np.abs(actual - exact) <= eps * exact + torch.finfo(dtype).smallest_normal).all()


def test_softmax_of_all_minus_infinity_is_nan():
    assert run(lambda v: tensorrt.softmax(v, 0), np.float32([-np.inf, -np.inf])).isnan().all()
