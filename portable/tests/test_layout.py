"""Operations that move elements, against NumPy indexing: the bits must be the same."""

import numpy as np
import pytest
import torch
from harness import compile_graph, constant, execute, ranked, run
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, integers, shapes

from mlir_tensorrt.compiler.dialects import affine, tensorrt
from tripy_portable.dtypes import F32, I32
from tripy_portable.ir.types import DYNAMIC, tensor_type

DTYPES = [np.float32, np.float16, np.int32, np.int64, np.int8, np.bool_]


def numbered(shape, dtype=np.int32):
    """Distinct values."""
    return np.arange(1, int(np.prod(shape)) + 1).reshape(shape).astype(dtype)


def torch_type(array):
    return torch.from_numpy(np.array(array)).dtype


@pytest.mark.parametrize("dtype", DTYPES)
@FEW
@given(data=st.data())
def test_transpose(dtype, data):
    x = numbered(data.draw(shapes()), dtype)
    permutation = data.draw(st.permutations(range(x.ndim)))
    actual = run(lambda v: tensorrt.transpose(v, affine.AffineMap.get_permutation(permutation)), x)
    np.testing.assert_array_equal(actual.numpy(), x.transpose(permutation))


@pytest.mark.parametrize("dtype", DTYPES)
@FEW
@given(data=st.data())
def test_reshape(dtype, data):
    x = numbered(data.draw(shapes(max_dims=4)), dtype)
    target = data.draw(st.permutations(x.shape).map(list))
    target.insert(data.draw(st.integers(0, len(target))), 1)
    expected = x.reshape(target)
    if x.size and data.draw(st.booleans()):
        target[data.draw(st.integers(0, len(target) - 1))] = -1
    actual = run(lambda v: tensorrt.reshape(ranked(len(target), torch_type(x)), v, shape=constant(target)), x)
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_reshape_keeps_a_zero_extent():
    actual = run(
        lambda v: tensorrt.reshape(ranked(2, torch.float32), v, shape=constant([3, 0])),
        np.zeros((0, 2), np.float32),
    )
    assert tuple(actual.shape) == (3, 0)


def test_collapse_rank():
    x = numbered((1, 3, 1))
    result = tensor_type((3,), I32)
    np.testing.assert_array_equal(run(lambda v: tensorrt.collapse_rank(result, v), x).numpy(), x.reshape(3))


@FEW
@given(data=st.data())
def test_broadcast(data):
    target = data.draw(shapes(max_dims=5))
    rank = data.draw(st.integers(0, len(target)))
    source = [data.draw(st.sampled_from([1, extent])) for extent in target[len(target) - rank :]]
    x = numbered(tuple(source), np.float32)
    dims = list(range(len(target) - rank, len(target)))
    actual = run(
        lambda v: tensorrt.broadcast(
            ranked(len(target), torch.float32), v, dims, shape=constant(list(target))
        ),
        x,
    )
    np.testing.assert_array_equal(actual.numpy(), np.broadcast_to(x, target))


def test_broadcast_to_chosen_dimensions():
    x = numbered((2, 3), np.float32)
    actual = run(
        lambda v: tensorrt.broadcast(ranked(3, torch.float32), v, [2, 0], shape=constant([3, 4, 2])), x
    )
    np.testing.assert_array_equal(actual.numpy(), np.broadcast_to(x.T[:, None, :], (3, 4, 2)))


@FEW
@given(data=st.data())
def test_shape(data):
    shape = data.draw(shapes())
    actual = run(tensorrt.shape, np.zeros(shape, np.float32))
    assert actual.dtype == torch.int32
    assert tuple(actual.tolist()) == shape


@pytest.mark.parametrize("dtype", DTYPES)
@FEW
@given(data=st.data())
def test_concatenation(dtype, data):
    shape = data.draw(shapes(min_dims=1))
    axis = data.draw(st.integers(0, len(shape) - 1))
    extents = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    arrays = [numbered((*shape[:axis], extent, *shape[axis + 1 :]), dtype) for extent in extents]
    actual = run(lambda *vs: tensorrt.concatenation(list(vs), axis=axis), *arrays)
    np.testing.assert_array_equal(actual.numpy(), np.concatenate(arrays, axis))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@FEW
@given(data=st.data())
def test_gather_reads_zero_out_of_bounds_and_counts_negatives_from_the_end(dtype, index_dtype, data):
    x = numbered(data.draw(shapes(min_dims=1, max_dims=4)), dtype)
    axis = data.draw(st.integers(0, x.ndim - 1))
    indices = data.draw(integers(data.draw(shapes(max_dims=2)), index_dtype, -5, 5))
    extent = x.shape[axis]
    wrapped = np.where(indices < 0, indices + extent, indices)
    outside = (wrapped < 0) | (wrapped >= extent)
    padded = np.concatenate([x, np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), dtype)], axis)
    expected = np.take(padded, np.where(outside, extent, wrapped), axis=axis)
    actual = run(lambda v, i: tensorrt.gather(v, i, axis=axis), x, indices)
    np.testing.assert_array_equal(actual.numpy(), expected)


def cut(mode, start, size, stride, fill=None):
    def build(v):
        options = {} if fill is None else {"fill": constant(fill, torch.float32)}
        return tensorrt.slice(
            v,
            start=constant(start),
            size=constant(size),
            stride=constant(stride),
            mode=tensorrt.SliceModeAttr.get(mode),
            **options,
        )

    return build


@pytest.mark.parametrize("dtype", DTYPES)
@FEW
@given(data=st.data())
def test_slice_inside(dtype, data):
    x = numbered(data.draw(shapes(max_dims=4, max_side=6)), dtype)
    start, size, stride = [], [], []
    for extent in x.shape:
        step = data.draw(st.sampled_from([-2, -1, 1, 2, 3]))
        first = data.draw(st.integers(0, max(extent - 1, 0)))
        room = 0 if extent == 0 else 1 + (first // -step if step < 0 else (extent - 1 - first) // step)
        start.append(first)
        size.append(data.draw(st.integers(0, room)))
        stride.append(step)
    indices = [a + s * np.arange(n) for a, n, s in zip(start, size, stride)]
    expected = x[np.ix_(*indices)] if indices else x
    np.testing.assert_array_equal(run(cut("kDEFAULT", start, size, stride), x).numpy(), expected)


def reflected(index, extent):
    """Follows the reflection step by step."""
    while not 0 <= index < extent:
        index = -index if index < 0 else 2 * (extent - 1) - index
    return index


@pytest.mark.parametrize("mode", ["kFILL", "kCLAMP", "kWRAP", "kREFLECT"])
@FEW
@given(data=st.data())
def test_slice_outside(mode, data):
    x = numbered(data.draw(shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)), np.float32)
    start = [data.draw(st.integers(-4, 4)) for _ in x.shape]
    size = [data.draw(st.integers(0, 6)) for _ in x.shape]
    stride = [data.draw(st.sampled_from([-1, 1, 2])) for _ in x.shape]
    actual = run(cut(mode, start, size, stride, fill=-9.0 if mode == "kFILL" else None), x)
    expected = np.empty(size, np.float32)
    for position in np.ndindex(*size):
        index = [a + s * i for a, s, i in zip(start, stride, position)]
        inside = all(0 <= i < extent for i, extent in zip(index, x.shape))
        if mode == "kFILL" and not inside:
            expected[position] = -9.0
            continue
        if mode == "kCLAMP":
            index = [min(max(i, 0), extent - 1) for i, extent in zip(index, x.shape)]
        elif mode == "kWRAP":
            index = [i % extent for i, extent in zip(index, x.shape)]
        elif mode == "kREFLECT":
            index = [0 if extent == 1 else reflected(i, extent) for i, extent in zip(index, x.shape)]
        expected[position] = x[tuple(index)]
    np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64], ids=str)
@FEW
@given(data=st.data())
def test_linspace(dtype, data):
    shape = data.draw(shapes(min_dims=1, max_dims=4))
    step = data.draw(st.lists(st.integers(-3, 3), min_size=len(shape), max_size=len(shape)))
    executable = compile_graph(
        lambda: tensorrt.linspace(
            ranked(len(shape), dtype),
            shape=constant(list(shape)),
            start=constant(5, dtype),
            step=constant(step, dtype),
        ),
        [],
    )
    expected = np.full(shape, 5)
    for axis, extent in enumerate(shape):
        expected = expected + step[axis] * np.arange(extent).reshape([-1] + [1] * (len(shape) - axis - 1))
    actual = execute(executable, [])[0]
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual.numpy(), expected)


def test_shapes_at_the_ends_of_a_profile():
    """The same executable, at the least, typical and greatest extents."""

    def build(v):
        size = tensorrt.shape(v)
        reversed_size = tensorrt.gather(size, constant([1, 0]), axis=0)
        return tensorrt.reshape(ranked(2, torch.float32), v, shape=reversed_size)

    executable = compile_graph(build, [tensor_type((DYNAMIC, DYNAMIC), F32)], [((0, 1), (2, 3), (4, 5))])
    for shape in ((0, 1), (2, 3), (4, 5), (0, 5), (4, 1)):
        x = numbered(shape, np.float32)
        np.testing.assert_array_equal(
            execute(executable, [torch.from_numpy(x)])[0].numpy(), x.reshape(shape[::-1])
        )
