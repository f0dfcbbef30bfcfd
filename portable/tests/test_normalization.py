"""Normalization against float64, within the bound of float32 statistics."""

import numpy as np
import pytest
import torch
from harness import float64, run
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, FLOATS, floats, shapes

from mlir_tensorrt.compiler import ir
from mlir_tensorrt.compiler.dialects import tensorrt


def normalize(axes, eps, groups=1):
    return lambda x, scale, bias: tensorrt.normalization(
        x, scale, bias, axis=ir.DenseI64ArrayAttr.get(axes), eps=eps, num_groups=groups
    )


def oracle(x, scale, bias, axes, eps):
    mean = x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * scale + bias


def assert_close(actual, exact, dtype, magnitude):
    """A few roundings in float32, amplified by the input's size over its spread, and one to the type."""
    bound = (32 * np.finfo(np.float32).eps * magnitude + 3 * torch.finfo(dtype).eps) * (1 + np.abs(exact))
    assert (np.abs(float64(actual) - exact) <= bound).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@FEW
@given(data=st.data())
def test_layer_norm(dtype, data):
    shape = data.draw(shapes(min_dims=1, max_dims=5, min_side=1))
    count = data.draw(st.integers(1, len(shape)))
    axes = tuple(range(len(shape) - count, len(shape)))
    affine = (1,) * (len(shape) - count) + shape[len(shape) - count :]
    x, scale, bias = (
        data.draw(floats(shape, dtype)),
        data.draw(floats(affine, dtype)),
        data.draw(floats(affine, dtype)),
    )
    exact = oracle(float64(x), float64(scale), float64(bias), axes, 1.0)
    assert_close(run(normalize(axes, 1.0), x, scale, bias), exact, dtype, magnitude=16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("groups", [3, 6])
def test_group_and_instance_norm(dtype, groups):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 4, 5, generator=generator).to(dtype)
    scale = torch.randn(1, groups, 1, 1, generator=generator).to(dtype)
    bias = torch.randn(1, groups, 1, 1, generator=generator).to(dtype)
    grouped = float64(x).reshape(2, groups, -1)
    exact = oracle(grouped, float64(scale).reshape(1, -1, 1), float64(bias).reshape(1, -1, 1), (2,), 1e-3)
    actual = run(normalize((2, 3), 1e-3, groups), x, scale, bias)
    assert_close(actual, exact.reshape(x.shape), dtype, magnitude=8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_statistics_of_half_types_are_float32(dtype):
    """A sum of 4096 values near 10 is beyond what a half type can accumulate."""
    x = (10 + torch.randn(1, 4096, generator=torch.Generator().manual_seed(0))).to(dtype)
    one, zero = torch.ones(1, 4096, dtype=dtype), torch.zeros(1, 4096, dtype=dtype)
    exact = oracle(float64(x), 1.0, 0.0, (1,), 1e-6)
    assert_close(run(normalize((1,), 1e-6), x, one, zero), exact, dtype, magnitude=16)
