"""Comparisons as whole values: every tap of both sides, every reason, incremental outputs, samples."""

import dataclasses

import pytest
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture
from parity.verdict.bound import bound_for
from parity.verdict.calls import REMEDY
from parity.verdict.comparison import Comparison, compare
from parity.verdict.evidence import Results
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis
from parity.verdict.rule import failure, judge
from parity.verdict.sampling_error import RoundingSamples
from tests.parity.comparisons import (
    APPENDED,
    CHECK,
    FP32,
    OUTPUT,
    SUMS,
    TENSORS,
    VALID,
    copies,
    evidence_with,
    results_with,
    wide,
)


def _text(verdict):
    return None if verdict is None else verdict.reason


def test_every_tap_is_judged_inside_the_model_and_alone():
    comparison = compare(evidence_with(), results_with())
    assert [(tap.tap, tap.path, tap.kind) for tap in comparison.taps] == [
        ("bias", "bias", "Bias"),
        ("block.inner", "block.inner", "Block.Inner"),
        ("block", "block", "Block"),
        (APPENDED, "block", "Block"),
        (OUTPUT, OUTPUT, MODEL_OUTPUT),
    ]
    inside = {tap.tap: tap.accumulated for tap in comparison.taps}
    alone = {tap.tap: tap.isolated for tap in comparison.taps}
    assert inside.pop(APPENDED) is None
    assert alone.pop(OUTPUT) is None
    modules = {"bias": (1, 1), "block.inner": (4, 2), "block": (15, 3), OUTPUT: (11, 3)}
    for name, verdict in inside.items():
        terms, count = modules[name]
        valid = None if name == OUTPUT else VALID[:, :, None]
        if name == "bias":
            valid = VALID[:, :, None] & VALID[:, None, :]
        exact = TENSORS[name]
        expected = judge(exact.double(), exact, exact, FP32, terms, valid, modules=count)
        assert repr(verdict) == repr(expected)
    for name, verdict in alone.items():
        assert verdict.bound == bound_for(FP32, SUMS[name.removeprefix("append:")], 1)
        assert (verdict.status, verdict.margin) == ("PASS", 0.0)
    assert comparison == Comparison(comparison.taps, {}, "", 0.0, Diagnosis())
    assert comparison.passed
    assert comparison.tap("block") is comparison.taps[2]
    assert comparison.tap("other") is None


def test_a_runner_without_taps_is_judged_by_its_outputs():
    results = Results(untapped=copies(OUTPUT), taps_modules=False, appends=False)
    evidence = evidence_with(reference_incremental={CHECK: TENSORS[OUTPUT]})
    comparison = compare(evidence, results)
    assert [(tap.tap, tap.kind, tap.status) for tap in comparison.taps] == [(OUTPUT, MODEL_OUTPUT, "PASS")]
    assert (comparison.checks, comparison.padding_leak, comparison.observer_difference) == ({}, "", 0.0)
    more = dataclasses.replace(results, untapped=copies(OUTPUT) | {"z": torch.ones(1), "a": torch.ones(1)})
    extra = compare(evidence, more).taps
    assert [(tap.tap, tap.kind, _text(tap.accumulated)) for tap in extra] == [
        (OUTPUT, MODEL_OUTPUT, ""),
        ("z", "unknown", "extra: the reference's score returns no such output"),
        ("a", "unknown", "extra: the reference's score returns no such output"),
    ]
    assert repr(extra[1].accumulated) == repr(
        failure("extra: the reference's score returns no such output", bound_for(FP32, 1))
    )
    missing = compare(evidence, dataclasses.replace(results, untapped={}))
    assert [_text(tap.accumulated) for tap in missing.taps] == [
        "missing: the port's score returns no such output"
    ]


def test_taps_of_one_side_only():
    results = results_with()
    results.tapped["z"] = results.isolated["y"] = results.untapped["score.x"] = torch.ones(1)
    taps = compare(evidence_with(), results).taps
    assert [(tap.tap, tap.kind) for tap in taps[len(TENSORS) :]] == [
        ("score.x", MODEL_OUTPUT),
        ("y", "unknown"),
        ("z", "unknown"),
    ]
    assert [_text(tap.accumulated) for tap in taps[len(TENSORS) :]] == [
        "extra: the reference's score returns no such output",
        "extra: the reference never calls y",
        "extra: the reference never calls z",
    ]
    assert {tap.isolated for tap in taps[len(TENSORS) :]} == {None}


@pytest.mark.parametrize("side", ["runner", "oracle"])
def test_the_incremental_forward_needs_both_sides(side):
    evidence = evidence_with(oracle_isolated={}) if side == "oracle" else evidence_with()
    names = [tap.tap for tap in compare(evidence, results_with(appends=side == "oracle")).taps]
    assert names == [tap for tap in TENSORS if tap != APPENDED]


def test_without_an_isolated_oracle_no_module_is_judged_alone():
    comparison = compare(evidence_with(oracle_isolated={}), results_with(isolated={}))
    assert {tap.isolated for tap in comparison.taps} == {None}
    assert comparison.passed


MISSING = "missing: the port has no such result"
NEVER = f"missing: the port never calls bias; {REMEDY}"
NO_ORACLE = "missing: the oracle has no such tap"


def test_what_is_missing_on_a_side():
    results = results_with()
    del results.tapped["bias"], results.isolated["block"]
    evidence = evidence_with()
    del evidence.oracle["block.inner"], evidence.oracle_isolated["bias"]
    taps = {tap.tap: tap for tap in compare(evidence, results).taps}
    inside = {name: tap.accumulated.reason for name, tap in taps.items() if tap.accumulated}
    alone = {name: tap.isolated.reason for name, tap in taps.items() if tap.isolated}
    assert inside == {"bias": NEVER, "block.inner": NO_ORACLE, "block": "", OUTPUT: ""}
    assert alone == {"bias": NO_ORACLE, "block.inner": "", "block": MISSING, APPENDED: ""}
    assert repr(taps["bias"].accumulated) == repr(failure(NEVER, bound_for(FP32, 1, 1)))
    assert repr(taps["block.inner"].accumulated) == repr(failure(NO_ORACLE, bound_for(FP32, 4, 2)))
    assert repr(taps["block"].isolated) == repr(failure(MISSING, bound_for(FP32, 11, 1)))


def test_a_module_that_raised():
    results = results_with(isolated_problems={"block": "ValueError: no"})
    tap = compare(evidence_with(), results).tap("block")
    assert repr(tap.isolated) == repr(failure("the module failed: ValueError: no", bound_for(FP32, 1)))


@pytest.mark.parametrize(("port", "fused"), [(True, False), (False, True), (True, True)])
def test_a_gap_of_the_port_or_of_a_fused_runner(port, fused):
    results = results_with(fused={"Block.Inner": "inside Block"} if fused else {})
    del results.tapped["block.inner"], results.isolated["block.inner"], results.poisoned["block.inner"]
    comparison = compare(evidence_with(gaps={"Block.Inner": "no such operation"} if port else {}), results)
    gap = comparison.tap("block.inner")
    assert (gap.gap, gap.path, gap.kind) == (
        "no such operation" if port else "inside Block",
        "block.inner",
        "Block.Inner",
    )
    assert (gap.accumulated, gap.isolated, gap.status) == (None, None, "GAP")
    assert comparison.passed


@pytest.mark.parametrize("side", ["tapped", "isolated"])
def test_a_tensor_of_a_module_with_a_gap_is_judged(side):
    results = results_with(fused={"Block.Inner": "inside Block"})
    del getattr(results, side)["block.inner"]
    tap = compare(evidence_with(), results).tap("block.inner")
    assert (tap.gap, tap.status) == ("", "FAIL")


def test_outputs_of_the_untapped_run_are_judged():
    results = results_with()
    results.tapped[OUTPUT] = results.tapped[OUTPUT] + 7.0
    results.poisoned[OUTPUT] = results.tapped[OUTPUT].clone()
    comparison = compare(evidence_with(), results)
    assert comparison.passed
    assert comparison.observer_difference == pytest.approx(7.0, rel=1e-6)
    results.untapped[OUTPUT] = results.tapped[OUTPUT]
    assert compare(evidence_with(), results).diagnosis.tap == OUTPUT


def test_the_observer_difference_is_the_largest_of_all_outputs():
    results = results_with()
    plain = {"score.a": torch.zeros(3), "score.b": torch.zeros(3), "score.c": torch.zeros(0)}
    results.untapped |= plain | {"score.d": torch.zeros(2), "score.e": torch.zeros(2)}
    results.tapped |= {"score.a": torch.tensor([0.0, -3.0, 1.0]), "score.b": torch.tensor([2.0, 0.0, 0.0])}
    results.tapped |= {"score.c": torch.zeros(0), "score.d": torch.full((3,), 9.0)}
    assert compare(evidence_with(), results).observer_difference == 3.0


# Checks of the incremental forward


def test_incremental_outputs_equal_the_full_forward():
    evidence = evidence_with(reference_incremental={CHECK: TENSORS[OUTPUT]})
    right = compare(evidence, results_with(incremental={CHECK: TENSORS[OUTPUT].clone()}))
    exact = TENSORS[OUTPUT]
    expected = judge(exact.double(), exact, exact, FP32, 11, modules=3)
    assert {name: repr(verdict) for name, verdict in right.checks.items()} == {CHECK: repr(expected)}
    wrong = compare(evidence, results_with(incremental={CHECK: exact * 1.5}))
    assert not wrong.passed
    assert (wrong.diagnosis.kind, wrong.diagnosis.tap) == ("check", CHECK)
    missing = compare(evidence, results_with())
    assert missing.checks[CHECK].reason == MISSING
    assert compare(evidence, results_with(appends=False)).checks == {}
    evidence.oracle = {name: tensor for name, tensor in evidence.oracle.items() if name != OUTPUT}
    assert compare(evidence, results_with(incremental={CHECK: exact})).checks[CHECK].reason == NO_ORACLE


def test_rounding_samples_belong_to_their_tap_and_place():
    def samples(name, size):
        signs = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64).reshape(-1, *[1] * TENSORS[name].ndim)
        return TENSORS[name].double() * (1 + size * signs)

    oracle = wide(TENSORS) | {f"rounding_samples:{OUTPUT}": samples(OUTPUT, 1e-3)}
    alone = wide(copies("bias", "block.inner", "block", APPENDED))
    alone["rounding_samples:block"] = samples("block", 1e-2)
    evidence = evidence_with(
        oracle=oracle, oracle_isolated=alone, reference_incremental={CHECK: TENSORS[OUTPUT]}
    )
    comparison = compare(evidence, results_with(incremental={CHECK: TENSORS[OUTPUT].clone()}))
    limits = {tap.tap: {name: v.limit.l2 for name, v in tap.verdicts.items()} for tap in comparison.taps}
    assert limits[OUTPUT]["accumulated"] > 1e-3
    assert comparison.checks[CHECK].limit.l2 == limits[OUTPUT]["accumulated"]
    assert limits["block"]["isolated"] > 1e-2 > 1e-3 > limits["block"]["accumulated"]
    assert limits["bias"]["isolated"] < 1e-3
    exact = TENSORS[OUTPUT]
    sampled = RoundingSamples(samples(OUTPUT, 1e-3))
    expected = judge(exact.double(), exact, exact, FP32, 11, modules=3, rounding_samples=sampled)
    assert repr(comparison.tap(OUTPUT).accumulated) == repr(expected)


@pytest.mark.parametrize(
    ("wrong", "kind"), [(None, "between"), ("bias", "amplification"), (OUTPUT, "between")]
)
def test_arguments_count_where_every_module_before_is_right(wrong, kind):
    """The call receives an integer of its own, after the bias and the module inside."""

    def arguments(value):
        received = Received("", 2, 0, (Argument("ids", 0, tensor="ids"),))
        return {"call_inputs": {"ids": torch.tensor([value])}, "arguments": {"block": received}}

    evidence = evidence_with()
    evidence.reference = dataclasses.replace(evidence.reference, **arguments(1))
    results = results_with(received=Capture(**arguments(2)))
    if wrong == OUTPUT:
        results.untapped[OUTPUT] = results.untapped[OUTPUT] * 1.5
    elif wrong:
        results.tapped[wrong] = results.poisoned[wrong] = results.tapped[wrong] * 1.5
    comparison = compare(evidence, results)
    assert comparison.diagnosis.kind == kind
    assert [call.call for call in comparison.calls] == ([] if wrong == "bias" else ["block"])
