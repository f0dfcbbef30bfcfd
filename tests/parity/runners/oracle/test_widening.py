"""Where a model asks for float32 by itself, the oracle computes in float64."""

from __future__ import annotations

import logging

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.base.precision import PRECISIONS
from parity.runners.oracle.widening import InFloat64

X = torch.linspace(0.1, 3.0, 24, dtype=torch.float64).reshape(4, 6)
TABLE = torch.linspace(0.0, 1.0, 6)
COUNTS = torch.arange(1, 7)
SECONDS = torch.tensor([1_699_999_199, -1_699_999_201, 61])
"""Two moments beside an hour, which float32 moves by 33 seconds, and a small one."""
IN_FLOAT32 = torch.tensor([1_699_999_232, -1_699_999_232, 61])


def wide(run, precision="fp32"):
    with torch.inference_mode(), InFloat64(PRECISIONS[precision]):
        return run(X)


def test_a_view_that_fails_is_not_tried_in_float32(caplog):
    """It has every type: it fails for its sizes, also where a copy of the tensor would have others."""
    with pytest.raises(RuntimeError, match="view"):
        wide(lambda x: x.T.view(24))
    assert not caplog.records


@pytest.mark.parametrize(
    ("run", "exact"),
    [
        (lambda x: x.float() * 0.3, lambda x: x * 0.3),
        (lambda x: x.to(torch.float32).exp().type_as(x), lambda x: x.exp()),
        (lambda x: x.sum(-1, dtype=torch.float32), lambda x: x.sum(-1)),
        (lambda x: torch.softmax(x, -1, dtype=torch.float32), lambda x: x.softmax(-1)),
        (lambda x: x.float() @ torch.ones(6, 2), lambda x: x @ torch.ones(6, 2, dtype=torch.float64)),
        (lambda x: x @ torch.ones(6, 2), lambda x: x @ torch.ones(6, 2, dtype=torch.float64)),
        (lambda x: torch.linspace(0, 1, 7), lambda x: torch.linspace(0, 1, 7, dtype=torch.float64)),
        (
            lambda x: torch.arange(0, 6, dtype=torch.float32) / 7,
            lambda x: torch.arange(0, 6, dtype=torch.float64) / 7,
        ),
        (lambda x: COUNTS.log(), lambda x: COUNTS.double().log()),
        (lambda x: COUNTS / 7, lambda x: COUNTS.double() / 7),
        (lambda x: COUNTS.float().sqrt(), lambda x: COUNTS.double().sqrt()),
        (lambda x: x * TABLE, lambda x: x * TABLE.double()),
        (lambda x: TABLE.cos(), lambda x: TABLE.double().cos()),
        (lambda x: torch.cat([TABLE, TABLE]) * 0.7, lambda x: torch.cat([TABLE, TABLE]).double() * 0.7),
        (
            lambda x: torch.polar(x.float(), x.float()).to(torch.complex64).real * 1.0,
            lambda x: torch.polar(x, x).real,
        ),
    ],
)
def test_results_are_those_of_float64(run, exact):
    result = wide(run)
    assert result.dtype is torch.float64
    assert torch.equal(result, exact(X))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x: SECONDS.float(), IN_FLOAT32),
        (lambda x: SECONDS.to(torch.float32).div(3600).floor(), IN_FLOAT32.div(3600, rounding_mode="floor")),
        (lambda x: SECONDS.float().to(torch.int64), IN_FLOAT32),
        (lambda x: SECONDS.int().float(), IN_FLOAT32),
        # The type of a tensor is the oracle's.
        (lambda x: SECONDS.to(x.dtype), SECONDS),
        (lambda x: SECONDS * 0.5, SECONDS.double() * 0.5),
        (lambda x: COUNTS.float(), COUNTS),
    ],
)
def test_integers_that_are_cast_to_float32_are_its_numbers(run, expected, precision):
    assert torch.equal(wide(run, precision).double(), expected.double())


def test_rows_are_written_into_a_tensor_of_the_default_type():
    def run(x):
        rows = torch.zeros(5, 6)
        rows[torch.tensor([0, 1, 2, 3])] = x * 0.3
        return rows

    assert torch.equal(wide(run)[:4], X * 0.3)


@pytest.mark.parametrize(
    ("run", "precision", "dtype"),
    [
        # The tested precision by name is that of the model.
        (lambda x: x.bfloat16() * 1.0, "bf16", torch.float64),
        (lambda x: x.half() * 1.0, "fp16", torch.float64),
        # Any other type is part of what the model computes.
        (lambda x: x.bfloat16() * 1.0, "fp32", torch.bfloat16),
        (lambda x: x.half() * 1.0, "bf16", torch.float16),
        (lambda x: COUNTS * 2, "fp32", torch.int64),
        (lambda x: torch.arange(3), "fp32", torch.int64),
        (lambda x: COUNTS > 2.5, "fp32", torch.bool),
        (lambda x: x.float().to(torch.int32), "fp32", torch.int32),
    ],
)
def test_types_that_stay(run, precision, dtype):
    assert wide(run, precision).dtype is dtype


def test_bits_are_those_of_the_tested_precision():
    """Code that reads the bits of float32 numbers has as many integers as in a run."""
    bits = wide(lambda x: x.float().view(torch.int32))
    assert torch.equal(bits, X.float().view(torch.int32))
    assert torch.equal(wide(lambda x: x.view(torch.int16), "bf16"), X.bfloat16().view(torch.int16))
    assert torch.equal(wide(lambda x: x.view(torch.int64)), X.view(torch.int64))


@torch.library.custom_op("parity_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    """An operation that has one type, as those of some libraries."""
    if x.dtype is not torch.float32:
        raise RuntimeError("expected float32")
    return x * 3.3


def test_an_operation_of_float32_alone_runs_in_it_and_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        result = wide(lambda x: tripled(x.float()))
    assert torch.equal(result, (X.float() * 3.3).double())
    assert "parity_tests.tripled" in caplog.text


def test_an_error_of_the_model_is_its_own():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        wide(lambda x: x.float() @ x.float())
    with pytest.raises(IndexError):
        wide(lambda x: x.float()[7])


class Norm(torch.nn.Module):
    """The norm of many language models: float32 inside, the type of the input outside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class NormPort(tp.Module):
    def __init__(self, dtype: tp.dtype, factor: float) -> None:
        super().__init__()
        self.weight = tp.zeros((32,), dtype=dtype)
        self._factor = factor

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        wide = tp.cast(x, tp.float32)
        size = tp.sqrt(tp.sum(wide * wide, dim=-1, keepdim=True) / 32.0 + 1e-6)
        return self.weight * tp.cast(wide / size * self._factor, x.dtype)


class Port(tp.Module):
    def __init__(self, dtype: tp.dtype, factor: float) -> None:
        super().__init__()
        self.norm = NormPort(dtype, factor)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.norm(x)


@pytest.mark.parametrize("rows", [40, 300, 20_000])
@pytest.mark.parametrize("factor", [1.0, 1.0 + 2e-6])
def test_a_norm_in_float32_with_other_operations(rows, factor):
    """Rows beyond those with rounding samples, too: the reference's own error is measured."""
    x = {"x": np.random.default_rng(0).standard_normal((rows, 32)).astype(np.float32)}
    precisions = ("fp32", "bf16") if factor == 1.0 else ("fp32",)
    result = parity.compare(Model(), lambda dtype: Port(dtype, factor), x, precisions)
    if factor == 1.0:
        result.raise_if_failed()
    else:
        assert "fp32 FAIL at norm" in str(result)
