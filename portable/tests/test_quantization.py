"""Quantization against rounding done with Python's own numbers."""

import numpy as np
import pytest
import torch
from harness import compile_graph, memrefs, run, session
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, floats

from mlir_tensorrt.compiler.dialects import tensorrt
from tripy_portable.dtypes import F8, F32, I4, I8
from tripy_portable.ir.types import tensor_type


def quantize(element, axis=None):
    return lambda x, scale: tensorrt.quantize(tensor_type(x.type.dims, element), x, scale, axis=axis)


def dequantize(axis=None):
    return lambda x, scale: tensorrt.dequantize(tensor_type(x.type.dims, F32), x, scale, axis=axis)


@FEW
@given(data=st.data())
def test_int8_rounds_half_to_even_and_saturates(data):
    x = data.draw(floats((7,), low=-100, high=100))
    scale = data.draw(st.sampled_from([0.25, 0.5, 1.0, 2.0]))
    expected = [min(max(round(value / scale), -128), 127) for value in x.tolist()]
    assert run(quantize(I8), x, np.float32(scale)).tolist() == expected


def test_ties_and_specials():
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, np.inf, -np.inf, np.nan])
    assert run(quantize(I8), x, np.float32(1)).tolist() == [0, 2, 2, 0, -2, 127, -128, 0]


def test_per_channel():
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    quantized = run(quantize(I8, axis=0), x, np.float32([0.5, 2]))
    assert quantized.tolist() == [[2, 4, 6], [2, 2, 3]]
    assert run(dequantize(axis=0), quantized, np.float32([0.5, 2])).tolist() == [[1, 2, 3], [4, 4, 6]]


def test_int4_blocks():
    x, scale = (
        torch.tensor([[0.0, 1.0], [2.0, 30.0], [4.0, 5.0], [6.0, -90.0]]),
        torch.tensor([[1.0, 2.0], [2.0, 10.0]]),
    )
    executable = compile_graph(quantize(I4), [tensor_type((4, 2), F32), tensor_type((2, 2), F32)])
    result = session(executable).execute_function("main", memrefs([x, scale]))[0]
    assert result.element is I4
    assert result.tensor.tolist() == [[0, 0], [2, 7], [2, 0], [3, -8]]
    back = compile_graph(dequantize(), [tensor_type((4, 2), I4), tensor_type((2, 2), F32)])
    values = session(back).execute_function("main", memrefs([result.tensor, scale], [I4, F32]))[0]
    assert values.tensor.tolist() == [[0, 0], [2, 14], [4, 0], [6, -80]]


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, 1.0), (500.0, 448.0), (-1e9, -448.0), (0.07, 0.0703125)]
)
def test_float8_rounds_and_saturates(value, expected):
    quantized = run(quantize(F8), np.float32([value]), np.float32(1))
    assert quantized.to(torch.float32).item() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_inputs(dtype):
    assert run(
        quantize(I8), torch.tensor([3.0, -2.0], dtype=dtype), torch.tensor(0.5, dtype=dtype)
    ).tolist() == [6, -4]
