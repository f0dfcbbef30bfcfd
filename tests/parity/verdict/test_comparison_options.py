"""A case's options in comparisons: modules of one side only, tolerated errors, parts of rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture, TensorKey
from parity.capture.names import TapName
from parity.case.pairing import RETURNS_INPUT
from parity.execution.record import RunnerRecord, Status
from parity.verdict import standards
from parity.verdict.bound import bound_for
from parity.verdict.comparison import compare
from parity.verdict.flips import row_mask
from parity.verdict.judgement import RunnerJudgement, TapJudgement
from parity.verdict.merging import merge_batches
from parity.verdict.rule import failure
from tests.parity.comparisons import FP32, OUTPUT, TENSORS, B, N, evidence_with, results_with


def named(path, kind):
    """A reason that has both arguments."""
    return f"{path} of {kind}"


def test_a_module_that_the_reference_never_calls_is_absent_by_its_path_and_kind():
    results = results_with()
    own, again = str(TapName("own", 1)), str(TapName("block", 1))
    results.tapped[own] = results.tapped[again] = results.untapped["score.x"] = torch.ones(1)
    taps = {tap.tap: tap for tap in compare(evidence_with(absence=named), results).taps}
    assert taps[own] == TapJudgement(own, "own", "unknown", None, None, "own of unknown")
    # A further call of a module that the reference has, and an output.
    assert taps[again].gap == ""
    extra = failure("extra: the reference's score returns no such output", bound_for(FP32, 1))
    assert taps["score.x"].path == "score.x"
    assert repr(taps["score.x"].accumulated) == repr(extra)


def test_a_module_that_the_port_lacks_is_absent_by_its_path_and_kind():
    results = results_with()
    for part in (results.tapped, results.isolated, results.poisoned):
        del part["block.inner"]
    tap = compare(evidence_with(absence=named), results).tap("block.inner")
    assert tap == TapJudgement(
        "block.inner", "block.inner", "Block.Inner", None, None, "block.inner of Block.Inner"
    )


def test_a_tolerated_error_passes_and_says_so():
    results = results_with()
    for part in (results.tapped, results.isolated):
        part["block"] = 1.25 * part["block"]
        part["block.inner"] = 1.25 * part["block.inner"]
    strict = {tap.tap: tap for tap in compare(evidence_with(), results).taps}
    allowed = strict["block"].isolated.port.l2

    def tolerated(tap, path):
        return allowed if (tap, path) == ("block", "block") else 0.0

    taps = {tap.tap: tap for tap in compare(evidence_with(tolerated=tolerated), results).taps}
    for kind in ("isolated", "accumulated"):
        failed, passed = (getattr(judged["block"], kind) for judged in (strict, taps))
        assert failed.status == "FAIL"
        assert passed == replace(
            failed,
            status="PASS",
            reason="",
            min_detectable_error=allowed,
            tolerated=f"{failed.reason}; the case tolerates 0.25",
        )
        assert getattr(taps["block.inner"], kind).status == "FAIL"


def test_a_module_alone_has_the_reference_of_its_own_run():
    again = {"block": 1.0625 * TENSORS["block"]}
    tap = compare(evidence_with(reference_isolated=again), results_with()).tap("block")
    assert tap.isolated.reference.l2 == pytest.approx(0.0625)
    assert tap.accumulated.reference.l2 == 0.0


def test_only_modules_alone_have_errors_by_row():
    tap = compare(evidence_with(), results_with()).tap("block")
    assert tap.accumulated.row_errors is None
    assert tap.isolated.row_errors is not None


def test_without_taps_no_observer_is_told():
    results = results_with(taps_modules=False)
    results.tapped[OUTPUT] = results.tapped[OUTPUT] + 1.0
    assert compare(evidence_with(), results).observer_difference == 0.0


def test_a_failure_beside_a_discontinuity_keeps_its_reason():
    boundary = np.zeros(tuple(TENSORS["block"].shape), bool)
    boundary[0] = True
    results = results_with()
    results.tapped["block"] = 1.5 * results.tapped["block"]
    verdict = compare(evidence_with(boundary={"block": boundary}), results).tap("block").accumulated
    assert verdict.boundary == 2 * N
    assert "exceeds" in verdict.reason


def test_elements_behind_flips_are_left_out_however_many():
    boundary = np.zeros(tuple(TENSORS["bias"].shape), bool)
    boundary[: B - 1, 0, 0] = True
    results = results_with()
    results.tapped["bias"][: B - 1, 0, 0] += 5.0
    comparison = compare(evidence_with(boundary={"bias": boundary}), results)
    verdict = comparison.tap(OUTPUT).accumulated
    left_out = TENSORS[OUTPUT][: B - 1].numel()
    assert (verdict.status, verdict.checked) == ("PASS", TENSORS[OUTPUT].numel() - verdict.boundary)
    assert 0 < verdict.boundary <= left_out


def test_a_batch_behind_flips_has_no_verdict_and_detects_nothing():
    """Another batch has to judge the tap. One that judges nothing in any batch is INSENSITIVE, not a PASS."""
    boundary = np.zeros(tuple(TENSORS["bias"].shape), bool)
    boundary[:, 0, 0] = True
    results = results_with()
    results.tapped["bias"][:, 0, 0] += 5.0
    comparison = compare(evidence_with(boundary={"bias": boundary}), results)
    tap = comparison.tap(OUTPUT)
    assert (tap.accumulated, tap.min_detectable_error) == (None, math.inf)
    record = RunnerRecord(label="tripy")
    lost, judged = (
        RunnerJudgement(record, Status.OK, "", "PASS", own.diagnosis, (own.tap(OUTPUT),))
        for own in (comparison, compare(evidence_with(), results_with()))
    )
    assert merge_batches([{"tripy": lost}], 0, recorded=False)["tripy"].verdict == "INSENSITIVE"
    assert merge_batches([{"tripy": lost}] * 2, 1, False, most=1)["tripy"].verdict == "INSENSITIVE"
    for batches in ([lost, judged], [judged, lost]):
        merged = merge_batches([{"tripy": own} for own in batches], 0, recorded=False)["tripy"]
        assert merged.taps[0].accumulated is not None
        assert merged.taps[0].min_detectable_error < math.inf


@pytest.mark.parametrize(("rows", "count"), [(100, 1), (100, 4), (7, 2)])
def test_the_chance_of_boundaries_is_the_binomial_tail(rows, count):
    chance = standards._chance_of_boundaries(count / rows, rows)
    assert chance == pytest.approx(stats.binom.sf(count - 1, rows, 0.01), rel=1e-9)


def test_flipped_rows_in_tensors_of_every_rank():
    rows = np.zeros((B, N), bool)
    rows[1, 2] = True
    assert row_mask(rows, torch.zeros(B)).tolist() == [False, True, False, False]
    np.testing.assert_array_equal(row_mask(rows, torch.zeros(B, N)), rows)
    assert row_mask(rows, torch.zeros(B, N, 3)).sum() == 3
    assert row_mask(rows, torch.zeros(B, N + 1)).sum() == N + 1
    assert row_mask(rows, torch.zeros(B + 1, N)) is None
    assert row_mask(None, torch.zeros(B, N)) is None


@pytest.mark.parametrize(("is_flipped", "calls"), [(True, []), (False, ["block"])])
def test_an_argument_behind_a_flip_is_not_compared(is_flipped, calls):
    """Ids that follow from a discontinuity differ in the sequence that crosses it."""
    boundary = np.zeros(tuple(TENSORS["bias"].shape), bool)
    boundary[0, 1, 1] = True
    evidence, port = evidence_with(boundary={"bias": boundary}), Capture()
    for capture, changed in ((evidence.reference, 0), (port, 1)):
        capture.call_inputs["ids"] = torch.arange(B * N).reshape(B, N).clone()
        capture.call_inputs["ids"][0, 3] += changed
        capture.arguments["block"] = Received("", 1, 0, (Argument("ids", 0, "ids"),))
    results = results_with(received=port)
    for part in (results.tapped, results.poisoned):
        part["bias"][0, 1, 1] += 5.0 * is_flipped
    comparison = compare(evidence, results)
    assert [judged.call for judged in comparison.calls] == calls
    assert (comparison.checks, comparison.padding_leak, comparison.observer_difference) == ({}, "", 0.0)
    assert [tap.tap for tap in comparison.taps] == list(TENSORS)


def test_a_leak_beside_equal_arguments_is_the_diagnosis():
    evidence, port = evidence_with(), Capture()
    for capture in (evidence.reference, port):
        capture.arguments["block"] = Received("", 1, 0, ())
    results = results_with(received=port)
    results.poisoned["block"] = results.poisoned["block"] + 1.0
    comparison = compare(evidence, results)
    assert (comparison.padding_leak, comparison.diagnosis.kind) == ("block", "check")


GIVEN = TENSORS["bias"]


def without_bias():
    """The results of a runner that lacks the module `bias`."""
    results = results_with()
    for part in (results.tapped, results.isolated, results.poisoned):
        del part["bias"]
    return results


@pytest.mark.parametrize(
    ("inputs", "changes"),
    [
        ({"x": GIVEN}, False),
        ({"x": GIVEN, "mask": torch.ones(2)}, False),
        ({"first": GIVEN + 1, "second": GIVEN}, False),
        ({"x": GIVEN + 1}, True),
        ({"first": GIVEN + 1, "second": GIVEN + 2}, True),
        # No tensor of this shape is its input, so that nothing tells.
        ({"x": torch.ones(2)}, False),
        ({}, False),
        # Spooled away, or of another call.
        ({"x": None}, False),
        ({"other call": GIVEN + 1}, False),
    ],
)
def test_a_module_without_a_verdict_that_changes_its_input_says_so(inputs, changes):
    """As of a dropout that a user names in `inert`."""
    evidence = evidence_with(gaps={"Bias": RETURNS_INPUT})
    names = [name for name in inputs if name != "other call"]
    place = next(place for place, call in enumerate(evidence.reference.calls) if call.path == "bias")
    call = evidence.reference.calls[place]
    evidence.reference.calls[place] = replace(call, args=[TensorKey(name) for name in names])
    evidence.kinds["bias"] = evidence.reference.calls[place]
    evidence.reference.call_inputs = {name: x for name, x in inputs.items() if x is not None}
    gap = compare(evidence, without_bias()).tap("bias").gap
    told = "is named in inert, and changes its input; the results behind it are judged"
    assert gap == (told if changes else RETURNS_INPUT)


def test_another_gap_is_told_as_it_is():
    evidence = evidence_with(gaps={"Bias": "a reason"})
    call = replace(evidence.kinds["bias"], args=[TensorKey("x")])
    evidence.kinds["bias"] = call
    evidence.reference.call_inputs = {"x": GIVEN + 1}
    assert compare(evidence, without_bias()).tap("bias").gap == "a reason"


def test_a_result_that_one_side_alone_returns_is_absent():
    results = results_with()
    results.tapped["block[1]"] = torch.ones(1)
    spare = compare(evidence_with(absence=named), results).tap("block[1]")
    text = "the port alone returns its result [1]"
    assert spare == TapJudgement("block[1]", "block", "unknown", None, None, text)
    # The reference's own has the kind of its call.
    evidence = evidence_with(absence=lambda path, kind: "may be" if kind == "Block" else "")
    call = replace(evidence.kinds["block"], outputs=("block", "block[1]"))
    evidence.kinds["block[1]"] = call
    evidence.reference.tensors["block[1]"] = torch.ones(1)
    tap = compare(evidence, results_with()).tap("block[1]")
    assert tap == TapJudgement(
        "block[1]", "block", "Block", None, None, "the reference alone returns its result [1]"
    )


def test_a_bag_whose_rows_the_port_looks_up_is_absent():
    evidence = evidence_with(absence=lambda path, kind: "may be" if kind == "EmbeddingBag" else "")
    evidence.kinds["bias"] = replace(evidence.kinds["bias"], kind="EmbeddingBag")
    results = results_with()
    results.tapped["bias"] = torch.stack([TENSORS["bias"]] * 3, dim=-2)
    text = "the port looks its rows up alone; the results behind them are judged"
    assert compare(evidence, results).tap("bias") == TapJudgement(
        "bias", "bias", "EmbeddingBag", None, None, text
    )


def test_nan_in_an_input_is_no_change_of_it():
    evidence = evidence_with(gaps={"Bias": RETURNS_INPUT})
    call = replace(evidence.kinds["bias"], args=[TensorKey("x")])
    evidence.kinds["bias"] = call
    evidence.reference.calls = [call if own.path == "bias" else own for own in evidence.reference.calls]
    result = evidence.reference.tensors["bias"]
    result.view(-1)[0] = math.nan
    evidence.reference.call_inputs = {"x": result.clone()}
    assert compare(evidence, without_bias()).tap("bias").gap == RETURNS_INPUT
    evidence.reference.call_inputs["x"].view(-1)[1] = math.nan
    assert compare(evidence, without_bias()).tap("bias").gap != RETURNS_INPUT
