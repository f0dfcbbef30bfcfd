"""A limit among other right programs: whose errors count, when they are asked, and what passes among them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import bound_for
from parity.verdict.comparison import compare
from parity.verdict.distances import Distance, Oracle, carrying_rows
from parity.verdict.evidence import Evidence
from parity.verdict.expectation import Expectation
from parity.verdict.rule import Standard, failure
from parity.verdict.sampling_error import (
    RoundingSamples,
    SampledErrors,
    error_of_programs,
    expected_error,
    sampling_factor,
)
from parity.verdict.standards import Standards
from tests.parity.comparisons import OUTPUT, TENSORS, evidence_with, normal, results_with

BF16 = PRECISIONS["bf16"]
U = BF16.unit_roundoff
BOUND = bound_for(BF16, 8)
COUNT = 32


def _with_factors(result, size):
    """Programs that have the result times a factor of their own, of this size."""
    factors = normal(0, COUNT, *[1] * result.ndim).double()
    return RoundingSamples(result.double() * (1 + size * factors))


def test_the_error_of_programs_has_the_scale_error_of_one_more_program():
    reference = Distance(l2=0.01, largest=0.02, scale_error=-0.001)
    programs = SampledErrors(8, 0.03, 0.04, 0.005, 2000.0, 3.0)
    error, by_rows = error_of_programs(reference, 500.0, programs), expected_error(reference, 500.0, programs)
    pooled = math.sqrt((0.001**2 + 8 * 0.005**2) / 9)
    assert error.scale_error == pytest.approx(sampling_factor(1.0, 9.0) * pooled, rel=1e-12)
    # Rows of a program share what no number of them averages out.
    assert error.scale_error > 4 * by_rows.scale_error
    assert (error.l2, error.largest) == (by_rows.l2, by_rows.largest)


@pytest.mark.parametrize(
    ("port", "alone"),
    [
        (Distance(1.0, 2.0, 3.1), True),
        (Distance(1.0, 2.0, -3.1), True),
        (Distance(1.0, 2.0, 3.0), False),
        (Distance(1.1, 2.0, 3.1), False),
        (Distance(1.0, 2.1, 3.1), False),
        (Distance(0.0, 0.0, 0.0), False),
    ],
)
def test_a_scale_error_is_too_large_alone_where_both_norms_are_within_their_limits(port, alone):
    verdict = replace(failure("", BOUND), port=port, limit=Distance(1.0, 2.0, 3.0))
    assert verdict.exceeds_scale_alone is alone


def _repeated():
    """Ten equal rows that carry all the error of the reference, and 19 exact ones."""
    oracle = normal(1, 20, 6).double()
    oracle = torch.cat([oracle, oracle[:1].expand(9, 6)])
    is_repeated = (oracle == oracle[0]).all(-1, keepdim=True)
    assert int(is_repeated.sum()) == 10
    return oracle, oracle * (1 + 0.01 * is_repeated), is_repeated


def _expectation(oracle, reference, samples=None, programs=None):
    counted = np.ones(tuple(oracle.shape), bool)
    o, r = oracle.numpy().ravel(), reference.double().numpy().ravel()
    return Expectation(oracle, o, r, counted, BOUND, samples, programs=programs)


@pytest.mark.parametrize("sampled", [False, True])
def test_equal_rows_that_carry_an_error_are_one_row(sampled):
    oracle, reference, is_repeated = _repeated()
    noise = 0.01 * normal(2, COUNT, *oracle.shape).double()
    samples = RoundingSamples(oracle * (1 + noise * is_repeated)) if sampled else None
    error = Oracle(oracle.numpy().ravel()).distance(reference.numpy().ravel()).l2
    limit = _expectation(oracle, reference, samples).limit
    # One number among 33, in place of ten; or at most as in the fewest samples of a tap.
    assert limit.l2 > 3.0 * BOUND.k * error


def test_samples_and_the_reference_have_one_error_in_equal_rows():
    oracle = normal(1, 2, 3).double()
    counted, truth = np.ones((2, 3), bool), Oracle(oracle.numpy().ravel())
    shifted, one = oracle + 0.01, np.zeros(2, dtype=np.int64)
    samples = RoundingSamples(shifted[None])
    for numbers, rows in ((one, 1.0), (None, 2.0)):
        errors = samples.errors(truth, counted, numbers)
        assert (errors.l2_rows, errors.largest_rows) == (pytest.approx(rows), pytest.approx(rows))
        samples = RoundingSamples(shifted[None])
        of_reference = SampledErrors.of_reference(truth, shifted.numpy().ravel(), counted, numbers)
        assert (of_reference.l2_rows, of_reference.largest_rows) == (
            pytest.approx(rows),
            pytest.approx(rows),
        )


def test_the_limit_among_programs_is_that_of_their_errors_where_it_is_larger():
    oracle, reference, is_repeated = _repeated()
    factors = 0.1 * normal(3, COUNT, 1, 1).double()
    programs = RoundingSamples(oracle * (1 + factors * is_repeated))
    among = _expectation(oracle, reference, programs=programs)
    counted = np.ones(tuple(oracle.shape), bool)
    carrying = carrying_rows(oracle.numpy(), counted)
    errors = programs.errors(among.truth, counted, carrying.numbers)
    assert errors.l2_rows == pytest.approx(1.0)
    error = error_of_programs(among.err_ref, carrying.count, errors)
    assert among.limit == BOUND.limit(error, carrying.count)
    assert among.lasting_limit == BOUND.lasting(error.scale_error)


def test_a_limit_among_programs_is_never_smaller():
    oracle, reference, _ = _repeated()
    plain = _expectation(oracle, reference)
    among = _expectation(oracle, reference, programs=RoundingSamples(oracle.expand(COUNT, *oracle.shape)))
    assert (among.limit.l2, among.limit.largest) == (plain.limit.l2, plain.limit.largest)
    assert among.limit.scale_error >= plain.limit.scale_error
    assert among.lasting_limit >= plain.lasting_limit


def test_a_standard_among_programs_is_the_same_one_otherwise():
    """Its masks, samples, errors by row and batch."""
    oracle = normal(4, 1, 400).double()
    valid, boundary = np.ones((1, 400), bool), np.zeros((1, 400), bool)
    valid[0, :5], boundary[0, 5:8] = False, True
    samples = RoundingSamples(oracle + 0.01 * normal(5, COUNT, 1, 400).double())
    programs = _with_factors(oracle, 0.002)
    reference = oracle.float()
    port = reference * 1.004
    port[0, :8] = 9.0
    fields = (oracle, reference, BOUND, valid, boundary, samples, True, 3)
    verdict = Standard(*fields, programs).judge(port)
    assert (verdict.passed, verdict.checked, verdict.boundary) == (True, 392, 3)
    assert verdict.row_errors is not None
    assert verdict.rows.is_of_batch
    plain = Standard(*fields).judge(port)
    assert verdict.limit.l2 == plain.limit.l2 > 0.03
    assert verdict.limit.scale_error > plain.limit.scale_error


SCALE_ALONE, SCALE_INSIDE, NORM = 1 + 1.6 * U, 1 + 2.5 * U, 1 + 10 * U
"""The first two exceed the limit of the scale error alone, of a module alone and inside; the last one all."""


@pytest.mark.parametrize(
    ("isolated", "among", "factor", "asked"),
    [
        (True, False, SCALE_ALONE, True),
        (True, True, NORM, False),
        (True, True, 1.0, False),
        (False, True, SCALE_INSIDE, True),
        (False, True, NORM, True),
        (False, True, 1.0, False),
        (False, False, SCALE_INSIDE, False),
        (False, False, NORM, False),
    ],
)
def test_when_programs_are_asked(isolated, among, factor, asked):
    exact = TENSORS["block"]
    for ties in ({}, {"block": 1}):
        evidence, calls = evidence_with(precision=BF16, among_programs=among), []
        evidence.ties = evidence.ties_isolated = ties

        def programs(tap, isolated, calls=calls):
            calls.append((tap, isolated))
            return _with_factors(exact, 5 * U)

        evidence.programs = programs
        verdict = Standards(evidence).judge("block", exact.double(), exact, exact * factor, None, isolated)
        is_asked = asked and not ties
        assert calls == ([("block", isolated)] if is_asked else [])
        assert verdict.passed is (is_asked or factor == 1.0)


class _Replays:
    """Programs of calls and of the whole model, which count how often they run."""

    def __init__(self, alone, whole):
        self.alone, self.whole, self.asked = alone, whole, []

    def programs(self, call, inputs):
        self.asked.append((call.tap, inputs))
        return self.alone

    def whole_programs(self):
        self.asked.append("whole")
        return self.whole


def _size(samples):
    """The number that all elements of samples have."""
    return samples.errors(Oracle(np.ones(1)), np.ones(1, bool)).l2 + 1.0


def test_programs_of_evidence_are_those_of_the_call_or_of_the_whole_model():
    alone = {"block": torch.full((4, 1), 2.0), "block.inner": torch.full((4, 1), 3.0)}
    whole = {"block": torch.full((4, 1), 5.0), OUTPUT: torch.full((4, 1), 7.0)}
    evidence = evidence_with(replays=_Replays(alone, whole))
    inputs = evidence.reference.call_inputs
    assert [_size(evidence.programs("block", True)) for _ in range(2)] == [2.0, 2.0]
    # Each call runs once.
    assert evidence.replays.asked == [("block", inputs)]
    assert _size(evidence.programs("block.inner", True)) == 3.0
    assert evidence.replays.asked[1] == ("block.inner", inputs)
    assert evidence.replays.asked[1][1] is inputs
    assert _size(evidence.programs("block", False)) == 5.0
    assert _size(evidence.programs(OUTPUT, False)) == 7.0
    assert evidence.programs("bias", True) is None
    assert evidence.programs("bias", False) is None


def test_no_programs_where_none_can_run():
    assert evidence_with().programs("block", False) is None
    evidence = evidence_with(replays=_Replays({}, {}))
    # The model's output is the result of no call.
    assert evidence.programs(OUTPUT, True) is None
    assert evidence.replays.asked == []


@pytest.fixture
def judged(monkeypatch):
    """`judged(size, **changes)`: the comparison of a port whose block is right alone, and not inside.

    Other programs have factors of a size at the block inside the model.
    """

    def compared(size, **changes):
        def programs(evidence, tap, isolated):
            return _with_factors(TENSORS[tap], size) if size and not isolated else None

        monkeypatch.setattr(Evidence, "programs", programs)
        results = results_with()
        for captured in (results.tapped, results.poisoned):
            captured["block"] *= NORM
        return compare(evidence_with(precision=BF16, **changes), results)

    return compared


def test_a_port_whose_modules_pass_alone_passes_among_right_programs(judged):
    comparison = judged(5 * U)
    assert comparison.passed
    assert comparison.tap("block").accumulated.limit.l2 > 10 * U


@pytest.mark.parametrize("size", [0.0, U / 100])
def test_a_port_beyond_right_programs_keeps_its_comparison(judged, size):
    comparison = judged(size)
    assert comparison.diagnosis.kind == "amplification"
    assert comparison.diagnosis.tap == "block"
    assert comparison.evidence.among_programs is False


def test_programs_do_not_count_where_rounding_explains_integers(judged):
    """They make the oracle's own choices, and the port has made others."""
    assert judged(5 * U, ties={"ids": 0}).passed
    assert judged(5 * U, ties={"ids": 1}).diagnosis.kind == "amplification"


def test_a_module_that_fails_alone_is_not_judged_among_programs(judged):
    results = results_with()
    results.isolated["block"] *= NORM
    results.tapped["block"] *= NORM
    judged(5 * U)
    assert compare(evidence_with(precision=BF16), results).diagnosis.kind == "module"
