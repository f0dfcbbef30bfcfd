"""Runners that are judged with one standard of a tap have the verdicts that they have alone."""

import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import bound_for
from parity.verdict.comparison import compare, compare_runners
from parity.verdict.rule import Standard, failure, judge
from parity.verdict.sampling_error import RoundingSamples
from parity.verdict.standards import Standards, nothing_left
from tests.parity.comparisons import (
    CHECK,
    FP32,
    OUTPUT,
    TENSORS,
    B,
    D,
    N,
    copies,
    evidence_with,
    results_with,
)

VALID = np.array([[True], [True], [False]])


def _verdicts(oracle, reference, *ports):
    """The representations of the verdicts with one standard; asserts that all are as alone."""
    standard = Standard(oracle, reference, bound_for(FP32, 8), VALID, by_row=True)
    shared = [standard.judge(port) for port in ports]
    for port, verdict in zip(ports, shared, strict=True):
        assert repr(verdict) == repr(judge(oracle, reference, port, FP32, 8, VALID, by_row=True))
    return shared


def test_results_of_the_same_bits_have_the_same_verdict():
    reference = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    other_padding, one_off, negative_zero = reference.clone(), reference.clone(), reference.clone()
    other_padding[2] = math.nan
    one_off[1, 7] += 2.0**-20
    negative_zero[0, 0] = -0.0
    verdicts = _verdicts(
        reference.double(), reference, reference.clone(), other_padding, one_off, negative_zero
    )
    assert verdicts[0] is verdicts[1]
    assert verdicts[2] != verdicts[0]
    assert not verdicts[3].passed


def test_a_standard_has_no_errors_by_row_unless_asked():
    reference = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    verdict = Standard(reference.double(), reference, bound_for(FP32, 8)).judge(reference.clone())
    assert verdict.passed
    assert verdict.row_errors is None


def test_an_infinity_of_some_ports_does_not_count_for_them_alone():
    reference = torch.ones(3, 4)
    reference[0, 1] = math.inf
    finite, elsewhere = reference.clone(), reference.clone()
    finite[0, 1] = 1.0
    elsewhere[1, 1] = math.inf
    verdicts = _verdicts(reference.double(), reference, finite, reference.clone(), elsewhere, finite * 1.1)
    assert [verdict.passed for verdict in verdicts] == [False, True, False, False]
    assert verdicts[1].checked == 7


def test_runners_together_have_the_verdicts_of_runners_alone():
    """Beside a right runner: one with a flip, a wrong one, one without taps, one with another tap."""
    boundary = np.zeros((B, N, D), bool)
    boundary[0, 3, 0] = True
    oracle = {CHECK: TENSORS[OUTPUT]}
    evidence = evidence_with(boundary={"bias": boundary}, reference_incremental=oracle)
    flips, wrong, extra = results_with(), results_with(incremental=dict(oracle)), results_with()
    flips.tapped["bias"][0, 3, 0] += 1.0
    flips.tapped["block"][0, 4] += 1.0
    wrong.isolated["block.inner"][1, 2] += 1.0
    extra.tapped["block.more"] = torch.ones(2)
    whole = results_with(untapped=copies(OUTPUT), tapped={}, isolated={}, taps_modules=False, appends=False)
    runners = [results_with(incremental=dict(oracle)), flips, wrong, whole, extra]
    together = compare_runners(evidence, runners)
    assert [comparison.passed for comparison in together] == [True, False, False, True, False]
    assert [repr(comparison) for comparison in together] == [
        repr(compare(evidence, results)) for results in runners
    ]


def _asked(**changes):
    """Evidence that notes which tap and place it is asked for: a sum of 7 terms and 3 modules everywhere."""
    evidence, asked = evidence_with(**changes), []

    def answer(name, value):
        def function(tap, isolated):
            asked.append((name, tap, isolated))
            return value

        setattr(evidence, name, function)

    answer("longest_sum", 7)
    answer("modules", 3)
    answer("rounding_samples", None)
    return evidence, asked


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(("sampled", "samples"), [({}, "block"), ({"sampled_tap": "full"}, "full")])
def test_a_standard_is_of_its_tap_and_place_and_serves_every_runner(isolated, sampled, samples):
    evidence, asked = _asked(ties={samples: 2}, ties_isolated={samples: 5})
    standards, exact = Standards(evidence), TENSORS["block"]
    for port in (exact.clone(), exact * (1 + 2**-23)):
        verdict = standards.judge("block", exact.double(), exact, port, None, isolated, **sampled)
        assert verdict.bound == bound_for(FP32, 7, 3)
        assert verdict.ties == (5 if isolated else 2)
        assert (verdict.row_errors is not None) == isolated
    assert [entry for entry in asked if entry[0] == "rounding_samples"] == [
        ("rounding_samples", samples, isolated)
    ]
    assert {entry for entry in asked if entry[0] != "rounding_samples"} == {
        ("longest_sum", "block", isolated),
        ("modules", "block", isolated),
    }


def test_a_result_that_is_missing_fails_with_its_bound():
    standards, exact = Standards(_asked()[0]), TENSORS["block"]
    bound = bound_for(FP32, 7, 3)
    for oracle, port, reason in (
        (exact.double(), None, "missing: the port has no such result"),
        (None, exact, "missing: the oracle has no such tap"),
    ):
        verdict = standards.judge("block", oracle, exact, port, None)
        assert repr(verdict) == repr(failure(reason, bound))


def test_rounding_samples_raise_the_limit():
    exact, evidence = TENSORS["block"], _asked()[0]
    plain = Standards(evidence).judge("block", exact.double(), exact, exact, None)
    noise = torch.randn(32, *exact.shape, generator=torch.Generator().manual_seed(0)).double()
    samples = RoundingSamples(exact.double() + 1e-3 * noise)
    evidence.rounding_samples = lambda tap, isolated: samples
    sampled = Standards(evidence).judge("block", exact.double(), exact, exact, None)
    assert sampled.ties == 0
    assert sampled.limit.l2 > 100 * plain.limit.l2


def test_a_port_is_judged_on_what_flips_leave_over():
    evidence, exact = _asked()[0], TENSORS["block"]
    flipped = np.ones(tuple(exact.shape), bool)
    assert Standards(evidence).judge("block", exact.double(), exact, exact, flipped) is None
    flipped[0, 0] = False
    verdict = Standards(evidence).judge("block", exact.double(), exact, exact, flipped)
    assert (verdict.status, verdict.bound) == ("PASS", bound_for(FP32, 7, 3))
    assert verdict.checked == exact[0, 0].numel()
    wrong = exact.clone()
    wrong[0, 0, 0] += 1.0
    verdict = Standards(evidence).judge("block", exact.double(), exact, wrong, flipped)
    assert "exceeds" in verdict.reason


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_check_that_no_batch_judges_fails_and_says_why(precision):
    verdict = nothing_left(PRECISIONS[precision])
    reason = "nothing to compare: all elements depend on a discontinuity that the port takes otherwise"
    assert (verdict.status, verdict.reason, verdict.checked) == ("FAIL", reason, 0)
    assert verdict.bound == bound_for(PRECISIONS[precision], 1)


def test_a_module_that_the_reference_computes_in_float32_has_its_bound_alone():
    evidence, exact = _asked(precision=PRECISIONS["bf16"])[0], TENSORS["block"]
    evidence.reference.coarsest_types["block"] = torch.float32
    for isolated, precision in ((True, FP32), (False, PRECISIONS["bf16"])):
        verdict = Standards(evidence).judge("block", exact.double(), exact, exact, None, isolated)
        assert verdict.bound == bound_for(precision, 7, 3)


def test_one_row_of_a_batch_of_several_is_told():
    evidence, exact = _asked()[0], torch.ones(1, D)
    verdict = Standards(evidence).judge("block", exact.double(), exact, exact, None)
    assert verdict.rows.is_of_batch
