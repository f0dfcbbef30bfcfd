"""NaN and infinities: one on a single side fails, the same infinity on all three sides is right."""

import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import bound_for
from parity.verdict.rule import failure, judge

FP32, FP16 = PRECISIONS["fp32"], PRECISIONS["fp16"]


@pytest.mark.parametrize("side", ["oracle", "reference", "port"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_on_any_side_fails(side, value):
    sides = {"oracle": torch.ones(3).double(), "reference": torch.ones(3), "port": torch.ones(3)}
    sides[side] = sides[side].clone()
    sides[side][1] = value
    verdict = judge(**sides, precision=FP32, longest_sum=1)
    assert not verdict.passed
    assert side in verdict.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_of_the_port_alone_has_a_limit_and_a_place(value):
    oracle = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4)
    port = oracle.float()
    passing = judge(oracle, oracle.float(), port, FP32, longest_sum=8)
    port[1, 2] = value
    verdict = judge(oracle, oracle.float(), port, FP32, longest_sum=8)
    assert not verdict.passed
    assert verdict.reason == "NaN or Inf among the compared elements: 1 in the port"
    assert math.isnan(verdict.port.l2)
    assert math.isnan(verdict.min_detectable_error)
    assert (verdict.limit, verdict.reference) == (passing.limit, passing.reference)
    assert (verdict.checked, verdict.rows) == (12, passing.rows)
    first, second = verdict.worst[:2]
    assert first.index == (1, 2)
    assert repr(first.port) == repr(value)
    assert math.isfinite(second.port)


def test_an_infinity_of_all_three_sides_is_right():
    """Masked logits. The other elements are judged as without them."""
    oracle = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4)
    finite = judge(oracle[:, 1:], oracle[:, 1:].float(), oracle[:, 1:].float(), FP32, longest_sum=1)
    for value in (math.inf, -math.inf):
        oracle[:, 0] = value
        verdict = judge(oracle, oracle.float(), oracle.float(), FP32, longest_sum=1)
        assert verdict.passed
        assert (verdict.checked, verdict.limit) == (9, finite.limit)
    off = oracle.float()
    off[1, 2] *= 1.001
    assert judge(oracle, oracle.float(), off, FP32, longest_sum=1).worst[0].index == (1, 2)


@pytest.mark.parametrize("other", [math.inf, math.nan, -1e30, 0.0])
@pytest.mark.parametrize("side", ["oracle", "reference", "port"])
def test_an_infinity_of_another_sign_or_place_fails(side, other):
    sides = {"oracle": torch.ones(4).double(), "reference": torch.ones(4), "port": torch.ones(4)}
    for values in sides.values():
        values[2] = -math.inf
    sides[side][2] = other
    verdict = judge(**sides, precision=FP32, longest_sum=1)
    assert not verdict.passed
    assert "NaN or Inf among the compared elements" in verdict.reason


def test_infinities_alone_are_nothing_to_compare():
    values = torch.full((2, 2), -math.inf)
    verdict = judge(values.double(), values, values, FP32, longest_sum=1)
    assert repr(verdict) == repr(failure("nothing to compare: every element is infinite", bound_for(FP32, 1)))


def test_an_infinity_that_is_left_out_decides_nothing():
    oracle, reference = torch.tensor([1.0, -math.inf]).double(), torch.tensor([1.0, -math.inf])
    port, valid = torch.tensor([1.0, 7.0]), np.array([True, False])
    assert judge(oracle, reference, port, FP32, 1, valid=valid).passed


def test_a_shared_overflow_is_no_match():
    huge = torch.tensor([1.0, 1e6])
    half = huge.half()
    assert not judge(huge.double(), half, half, FP16, longest_sum=1).passed
