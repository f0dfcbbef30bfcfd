"""Matrix products against exact sums in float64, within the bound of float32 accumulation."""

import numpy as np
import pytest
import torch
from harness import float64, run
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, FLOATS, floats, shapes

from mlir_tensorrt.compiler.dialects import tensorrt


def multiply(op0, op1):
    attributes = [tensorrt.MatrixOperationAttr.get(op) for op in (op0, op1)]
    return lambda a, b: tensorrt.matrix_multiply(a, b, *attributes)


def assert_accumulated_in_float32(actual, a, b, dtype):
    """|error| <= n * u32 * |a| @ |b|, and one rounding to the type, whose spacing ends at the subnormals'."""
    exact = a @ b
    info = torch.finfo(dtype)
    accumulated = a.shape[-1] * np.finfo(np.float32).eps * (np.abs(a) @ np.abs(b))
    bound = accumulated + info.eps * np.maximum(np.abs(exact), info.smallest_normal)
    assert float64(actual).shape == exact.shape
    assert (np.abs(float64(actual) - exact) <= bound + 1e-30).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@FEW
@given(data=st.data())
def test_batched_products_broadcast_extents_of_one(dtype, data):
    batch = data.draw(shapes(max_dims=3))
    batches = [tuple(data.draw(st.sampled_from([1, extent])) for extent in batch) for _ in range(2)]
    rows, inner, columns = (data.draw(st.integers(0, 4)) for _ in range(3))
    a = data.draw(floats((*batches[0], rows, inner), dtype))
    b = data.draw(floats((*batches[1], inner, columns), dtype))
    actual = run(multiply("kNONE", "kNONE"), a, b)
    assert_accumulated_in_float32(actual, float64(a), float64(b), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 4096, 1), (33, 2048, 17), (1, 1023, 8)])
def test_long_sums_do_not_lose_small_terms(dtype, m, k, n):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    assert_accumulated_in_float32(run(multiply("kNONE", "kNONE"), a, b), float64(a), float64(b), dtype)


@pytest.mark.parametrize("shape", [(2, 3), (5, 2, 3)])
def test_transposes(shape):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    actual = run(multiply("kTRANSPOSE", "kNONE"), a, a)
    assert_accumulated_in_float32(actual, float64(a).swapaxes(-1, -2), float64(a), torch.float32)
    actual = run(multiply("kNONE", "kTRANSPOSE"), a, a)
    assert_accumulated_in_float32(actual, float64(a), float64(a).swapaxes(-1, -2), torch.float32)


@pytest.mark.parametrize(
    ("ops", "shapes_of_both", "told"),
    [
        (
            ("kNONE", "kNONE"),
            ((2, 3), (4, 5)),
            "last dimension of input0 = 3 and second to last dimension of input1 = 4",
        ),
        (
            ("kNONE", "kTRANSPOSE"),
            ((2, 3), (4, 5)),
            "last dimension of input0 = 3 and last dimension of input1 = 5",
        ),
        (
            ("kTRANSPOSE", "kNONE"),
            ((2, 3), (4, 5)),
            "second to last dimension of input0 = 2 and second to last dimension of input1 = 4",
        ),
    ],
)
def test_a_mismatch_names_the_dimension_that_is_contracted(ops, shapes_of_both, told):
    a, b = (torch.zeros(shape) for shape in shapes_of_both)
    with pytest.raises(Exception, match=told):
        run(multiply(*ops), a, b)


def test_vectors():
    a, b = torch.arange(3.0), torch.arange(6.0).reshape(3, 2)
    assert run(multiply("kVECTOR", "kVECTOR"), a, a).item() == 5
    assert run(multiply("kVECTOR", "kNONE"), a, b).tolist() == [10, 13]
    assert run(multiply("kNONE", "kVECTOR"), b.T.contiguous(), a).tolist() == [10, 13]


def test_infinity_times_zero_is_nan():
    assert run(multiply("kNONE", "kNONE"), torch.tensor([[torch.inf]]), torch.tensor([[0.0]])).isnan().all()
