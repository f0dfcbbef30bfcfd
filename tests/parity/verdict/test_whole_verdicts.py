"""Verdicts as whole values: every number, every reason, the worst elements in order."""

import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import bound_for
from parity.verdict.distances import Distance
from parity.verdict.rule import Element, Verdict, failure, judge
from parity.verdict.sampling_error import RoundingSamples, SampledErrors, expected_error

FP32, BF16 = PRECISIONS["fp32"], PRECISIONS["bf16"]
NAN = math.nan
ULP = 2.0**-22
"""Distance of two float32 numbers between 2 and 4."""
ZERO = Distance(0.0, 0.0, 0.0)


def _same(actual: Verdict, expected: Verdict) -> None:
    """Equality in which NaN equals itself."""
    assert repr(actual) == repr(expected)


def _tensors(dtype=torch.float64, **by_side):
    return {side: torch.tensor(values, dtype=dtype) for side, values in by_side.items()}


def test_a_pass_with_all_its_numbers():
    """Rows (3, 0) and (0, 4); a column at a discontinuity and a row of padding do not count."""
    oracle = torch.tensor([[3.0, 7.0, 0.0], [0.0, 0.0, 4.0], [NAN, 5.0, 6.0]], dtype=torch.float64)
    reference, port = oracle.float(), oracle.float()
    reference[0, 0] += ULP
    port[1, 2] -= 2 * ULP
    port[0, 1] = -1.0
    boundary = np.array([[False, True, False], [False, False, False], [True, True, False]])
    valid = np.array([[True], [True], [False]])
    verdict = judge(oracle, reference, port, FP32, 8, valid, boundary, modules=3)
    bound = bound_for(FP32, 8, 3)
    rows = 25**2 / (81 + 256)
    err_ref = Distance(ULP / 5, ULP / 4, ULP * 3 / 25)
    limit = bound.limit(expected_error(err_ref, rows, SampledErrors()), rows)
    assert verdict.port == Distance(2 * ULP / 5, ULP / 2, pytest.approx(-2 * ULP * 4 / 25))
    assert verdict.reference == Distance(err_ref.l2, err_ref.largest, pytest.approx(err_ref.scale_error))
    for measure in ("l2", "largest", "scale_error"):
        assert getattr(verdict.limit, measure) == pytest.approx(getattr(limit, measure), rel=1e-12)
    assert (verdict.status, verdict.reason, verdict.checked, verdict.boundary) == ("PASS", "", 5, 1)
    assert verdict.bound == bound
    assert verdict.worst[:2] == (
        Element((1, 2), 4.0, 4.0, 4.0 - 2 * ULP),
        Element((0, 0), 3.0, 3.0 + ULP, 3.0),
    )
    assert len(verdict.worst) == 5
    assert {element.index for element in verdict.worst} == {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)}
    assert 0.0 < verdict.min_detectable_error < math.inf


def test_the_numbers_of_modules_default_to_one():
    one = torch.ones(3)
    assert judge(one.double(), one, one, FP32, 8).bound == bound_for(FP32, 8, 1)


def test_rounding_samples_raise_the_limit_of_few_rows():
    oracle = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    exact = oracle.float()
    port = exact * (1 + 2.0**-20)
    assert not judge(oracle, exact, port, FP32, 1).passed
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64).reshape(4, 1, 1)
    samples = RoundingSamples(oracle * (1 + signs * 2.0**-20))
    verdict = judge(oracle, exact, port, FP32, 1, rounding_samples=samples)
    assert verdict.passed
    sampled = SampledErrors(4, *[pytest.approx(2.0**-20)] * 3, l2_rows=1.0, largest_rows=1.0)
    assert samples.errors(None, np.ones((1, 2), bool)) == sampled
    limit = bound_for(FP32, 1).limit(expected_error(ZERO, 1.0, SampledErrors(4, *[2.0**-20] * 3)), 1.0)
    assert verdict.limit.l2 == pytest.approx(limit.l2, rel=1e-6)


def test_a_failure_without_numbers():
    unknown = Distance(NAN, NAN, NAN)
    bound = bound_for(FP32, 8)
    _same(
        failure("no such module", bound),
        Verdict("FAIL", "no such module", unknown, unknown, unknown, NAN, 0, 0, bound, ()),
    )


@pytest.mark.parametrize(
    ("oracle", "port", "reason"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), "shape (3, 2) differs from the reference's (2, 3)"),
        (torch.ones(3, 2), torch.ones(2, 3), "oracle shape (3, 2) differs from (2, 3)"),
        (
            torch.ones(2, 3),
            torch.ones(2, 3, dtype=torch.float16),
            "dtype torch.float16 differs from the reference's torch.float32",
        ),
        (
            torch.tensor([[1.0, NAN, 1.0], [1.0, 1.0, 1.0]]),
            torch.tensor([[1.0, NAN, 1.0], [1.0, 1.0, math.inf]]),
            "NaN or Inf among the compared elements: 1 in the oracle, 2 in the port",
        ),
    ],
    ids=["shape", "oracle", "dtype", "NaN"],
)
def test_the_reason_why_nothing_can_be_compared(oracle, port, reason):
    verdict = judge(oracle.double(), torch.ones(2, 3), port, FP32, 8, modules=3)
    _same(verdict, failure(reason, bound_for(FP32, 8, 3)))


def test_no_element_to_compare():
    empty = torch.ones(0, 4)
    reason = "nothing to compare: the tensor has no valid element"
    _same(judge(empty.double(), empty, empty, FP32, 8), failure(reason, bound_for(FP32, 8)))
    one = torch.ones(2)
    at_discontinuities = judge(one.double(), one, one, FP32, 8, boundary=np.ones(2, bool))
    _same(at_discontinuities, failure(reason, bound_for(FP32, 8)))


def test_each_measure_beyond_its_limit_is_a_reason():
    oracle = torch.tensor([4.0, 3.0], dtype=torch.float64).repeat(50)
    verdict = judge(oracle, oracle.float(), oracle.float() * 0.75, FP32, 1)
    limit = verdict.limit
    assert (verdict.status, verdict.passed) == ("FAIL", False)
    assert verdict.reason == (
        f"relative L2 error 0.25 exceeds {limit.l2:.3g}; "
        f"relative max error 0.25 exceeds {limit.largest:.3g}; "
        f"scale error -0.25 exceeds {limit.scale_error:.3g}"
    )
    assert math.isnan(verdict.min_detectable_error)
    assert verdict.margin == pytest.approx(0.25 / limit.scale_error)


@pytest.mark.parametrize("measure", ["l2", "largest", "scale_error"])
def test_one_measure_beyond_its_limit_fails(measure):
    """The port's errors are of one kind: along the result, in one element, or in all elements alike."""
    rng = np.random.default_rng(5)
    values = rng.choice([-1.0, 1.0], size=(400, 25))
    signs = rng.choice([-1.0, 1.0], size=(400, 25))
    unit = FP32.unit_roundoff
    # A reference whose errors are one unit everywhere: the limits are about 2.8 units in both norms.
    oracle = torch.from_numpy(values * (1 - unit * signs))
    reference = torch.from_numpy(values.copy())
    port = oracle.numpy().copy()
    if measure == "l2":
        # The largest errors of the reference and of the port are alike, and their share of elements differs.
        reference = torch.from_numpy(oracle.numpy().copy())
        reference[0, 0] += 8 * unit
        port += 4 * unit * rng.choice([-1.0, 1.0], size=port.shape)
    elif measure == "largest":
        port[0, 0] += 8 * unit
    else:
        port *= 1 + 1.4 * unit
    # Both are float64, which holds errors below a unit.
    verdict = judge(oracle, reference, torch.from_numpy(port), FP32, 1)
    exceeded = [
        name
        for name in ("l2", "largest", "scale_error")
        if abs(getattr(verdict.port, name)) > getattr(verdict.limit, name)
    ]
    assert exceeded == [measure]
    assert verdict.status == "FAIL"
    ratio = abs(getattr(verdict.port, measure)) / getattr(verdict.limit, measure)
    assert verdict.margin == pytest.approx(ratio)


def test_rounded_numbers_that_only_move_are_the_references():
    """The rounding of the inputs parts both programs from the oracle."""
    exact = torch.randn(64, 48, generator=torch.Generator().manual_seed(5)).double()
    rounded = exact.bfloat16()
    assert judge(exact, rounded, rounded.clone(), BF16, longest_sum=0).passed
    other = rounded.clone()
    other[3, 4] *= 1.01
    assert not judge(exact, rounded, other, BF16, longest_sum=0).passed


def test_data_that_moves_is_compared_by_value():
    values = torch.tensor([[1.0, 2.0]])
    off = torch.tensor([[1.0, 3.0]])
    zero = Distance(0.0, 0.0, 0.0)
    error = Distance(1 / math.sqrt(5), 0.5, pytest.approx(2 / 5))
    verdict = judge(values.double(), values, off, FP32, 0)
    assert verdict.reason == (
        "the port differs from the reference although the module only moves data; "
        "relative L2 error 0.447 exceeds 0; relative max error 0.5 exceeds 0; scale error +0.4 exceeds 0"
    )
    assert (verdict.port, verdict.limit, verdict.margin) == (error, zero, math.inf)
    # One unit in the last place, however small its share of the largest element, is a difference.
    large = torch.tensor([[1e30, 1.0]])
    ulp = judge(large.double(), large, torch.tensor([[1e30, 1.0 + 2.0**-23]]), FP32, 0)
    assert ulp.reason.startswith("the port differs from the reference although the module only moves data")


def test_integers_with_all_their_numbers():
    """Integers beyond 32 bits count, and those beyond the 53 bits of a float64."""
    far = 2**60
    sides = _tensors(
        torch.int64,
        oracle=[[far, far, far], [1, 2, 3]],
        reference=[[far, far, far], [1, 2, 3]],
        port=[[far, far + 2**32, far + 1], [1, 9, 3]],
    )
    boundary = np.array([[False] * 3, [False, True, False]])
    verdict = judge(**sides, precision=FP32, longest_sum=8, boundary=boundary, modules=3)
    worst = verdict.worst
    assert worst[:2] == (
        Element((0, 1), float(far), float(far), float(far + 2**32)),
        Element((0, 2), float(far), float(far), float(far + 1)),
    )
    _same(
        verdict,
        Verdict(
            status="FAIL",
            reason="2 of 5 integers or booleans differ from the oracle",
            reference=Distance(0.0, 0.0, 0.0),
            port=Distance(0.4, 0.4, 0.0),
            limit=Distance(0.0, 0.0, 0.0),
            min_detectable_error=NAN,
            checked=5,
            boundary=1,
            bound=bound_for(FP32, 8, 3),
            worst=worst,
        ),
    )
    assert verdict.margin == math.inf


def test_integers_that_are_equal():
    sides = _tensors(torch.int32, oracle=[1, 2], reference=[1, 2], port=[1, 2])
    verdict = judge(**sides, precision=FP32, longest_sum=8)
    _same(
        verdict,
        Verdict("PASS", "", ZERO, ZERO, ZERO, 0.0, 2, 0, bound_for(FP32, 8), verdict.worst),
    )
    assert verdict.margin == 0.0
    assert [element.index for element in sorted(verdict.worst, key=str)] == [(0,), (1,)]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_a_reference_off_the_oracle_fails_in_integers(dtype):
    sides = _tensors(dtype, oracle=[0, 1, 1, 1], reference=[1, 1, 1, 0], port=[0, 1, 1, 1])
    verdict = judge(**sides, precision=FP32, longest_sum=8)
    assert verdict.reason == "2 of 4 integers or booleans of the reference differ from the oracle"
    assert verdict.reference == Distance(0.5, 0.5, 0.0)
    assert (verdict.status, verdict.port) == ("FAIL", ZERO)
    assert math.isnan(verdict.min_detectable_error)
    # A port that is wrong too is the reason that counts.
    sides["port"] = torch.tensor([1, 1, 1, 1], dtype=dtype)
    both = judge(**sides, precision=FP32, longest_sum=8)
    assert both.reason == "1 of 4 integers or booleans differ from the oracle"


def test_half_precision_is_compared_exactly():
    """NumPy has no bfloat16; only counted elements are widened."""
    values = torch.tensor([[1.0, -2.5, NAN], [0.0, 3.0, 7.0]], dtype=torch.bfloat16)
    valid = np.array([[True, True, False], [True, True, True]])
    verdict = judge(values.double(), values, values.clone(), BF16, 8, valid)
    assert (verdict.status, verdict.port, verdict.checked) == ("PASS", ZERO, 5)
    assert {(e.index, e.port) for e in verdict.worst} == {
        ((0, 0), 1.0),
        ((0, 1), -2.5),
        ((1, 0), 0.0),
        ((1, 1), 3.0),
        ((1, 2), 7.0),
    }


def test_the_five_worst_elements_the_worst_first():
    oracle = torch.zeros(9, dtype=torch.float64) + 1.0
    port = oracle + torch.tensor([0.0, 7.0, -3.0, 9.0, 1.0, -8.0, 2.0, 0.0, 5.0])
    verdict = judge(oracle, oracle.float(), port.float(), FP32, 8)
    assert [element.index for element in verdict.worst] == [(3,), (5,), (1,), (8,), (2,)]
    assert [element.port for element in verdict.worst] == [10.0, -7.0, 8.0, 6.0, -2.0]


@pytest.mark.parametrize(
    ("port", "limit", "margin"),
    [
        (Distance(0.0, 0.0, 0.0), Distance(0.0, 0.0, 0.0), 0.0),
        (Distance(1.0, 0.0, 0.0), Distance(4.0, 0.0, 0.0), 0.25),
        (Distance(1.0, 3.0, 0.0), Distance(4.0, 4.0, 0.0), 0.75),
        (Distance(1.0, 3.0, -8.0), Distance(4.0, 4.0, 4.0), 2.0),
        (Distance(1.0, 0.0, 0.0), Distance(0.0, 4.0, 4.0), math.inf),
    ],
)
def test_the_margin_is_the_largest_ratio(port, limit, margin):
    assert Verdict("PASS", "", ZERO, port, limit, 0.0, 1, 0, bound_for(FP32, 8), ()).margin == margin
