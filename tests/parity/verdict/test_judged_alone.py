"""Calls without a partner: which of their failures count, and what is told where they are no fault."""

from dataclasses import replace

import pytest

from parity.verdict.calls import ONE_SIDED, judged_alone, without_calls
from parity.verdict.judgement import MODEL_OUTPUT
from tests.parity.comparisons import B, N, evidence_with, normal, results_with
from tests.parity.judgements import tap, verdict
from tests.parity.verdict.received_calls import capture

COUNTS = "the port calls block once, the reference 2 times"
NUMBERS = {"block": COUNTS}
PASSES, FAILS = verdict(), verdict(2.0)
X = normal(14, B, N, 3)
RIGHT, WRONG = (tap("score.out", MODEL_OUTPUT, accumulated=own, isolated=None) for own in (PASSES, FAILS))


def judged(own, allows=True, output=RIGHT, port=X, numbers=NUMBERS):
    """The judgement on a tap; the port's call receives `port` in the place of `X`."""
    evidence = evidence_with(absence=lambda path, kind: "stated" if allows and path == "block" else "")
    reference = capture(("block", {"x": X}))
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    results = results_with(received=capture(("block", {"x": port})))
    taps = judged_alone(evidence, results, (own, output), numbers)
    assert taps[1] == output
    assert (taps[0].tap, taps[0].path, taps[0].kind) == (own.tap, own.path, own.kind)
    return taps[0]


def test_a_failure_inside_the_model_does_not_count_and_the_module_alone_does():
    for accumulated in (FAILS, None):
        found = judged(tap("block", accumulated=accumulated, isolated=PASSES))
        assert (found.accumulated, found.isolated, found.gap, found.passed) == (None, PASSES, "", True)
    found = judged(tap("block", accumulated=FAILS, isolated=FAILS))
    assert (found.accumulated, found.isolated) == (None, FAILS)
    found = judged(tap("block", accumulated=FAILS, isolated=None))
    assert (found.accumulated, found.isolated, found.gap) == (None, None, COUNTS)


def test_a_call_that_is_right_inside_the_model_keeps_its_verdict():
    for isolated in (PASSES, None):
        found = judged(tap("block", accumulated=PASSES, isolated=isolated))
        assert (found.accumulated, found.isolated, found.gap) == (PASSES, isolated, "")


@pytest.mark.parametrize("accumulated", [PASSES, FAILS])
def test_a_module_of_another_shape_that_is_wrong_alone_counts_with_a_wrong_output_only(accumulated):
    inside = PASSES if accumulated is PASSES else None
    own = tap("block", accumulated=accumulated, isolated=FAILS)
    found = judged(own, port=X[:2])
    assert (found.accumulated, found.isolated) == (inside, None)
    assert found.gap == ("" if inside else COUNTS)
    for found in (judged(own, port=X[:2], output=WRONG), judged(own)):
        assert (found.accumulated, found.isolated) == (inside, FAILS)
    right = judged(replace(own, isolated=PASSES), port=X[:2])
    assert right.isolated == PASSES


def test_a_case_that_asks_for_equal_calls_has_both_numbers_in_the_failure():
    own = tap("block", accumulated=FAILS, isolated=PASSES)
    found = judged(own, allows=False)
    assert found == replace(own, accumulated=replace(FAILS, reason=f"exceeds; {COUNTS}; {ONE_SIDED}"))
    told = replace(own, accumulated=replace(FAILS, reason=f"missing: {COUNTS}"))
    for other in (told, tap("block"), tap("block", accumulated=None)):
        assert judged(other, allows=False) == other


@pytest.mark.parametrize(
    "own",
    [
        tap("bias", accumulated=FAILS),
        tap("append:block", accumulated=FAILS),
        tap("block", MODEL_OUTPUT, accumulated=FAILS),
        replace(tap("block", accumulated=FAILS), gap="another reason"),
    ],
)
def test_other_taps_stay(own):
    assert judged(own) == own
    assert judged(tap("block", accumulated=FAILS), numbers={}) == tap("block", accumulated=FAILS)


def test_the_arguments_of_such_calls_are_left_out():
    received = capture(*((call, {"x": X}) for call in ("bias", "block", "block@1", "block.inner")))
    results = results_with(received=received)
    found = without_calls(results, ["block"])
    assert list(found.received.arguments) == ["bias", "block.inner"]
    assert found.received.call_inputs == received.call_inputs
    assert found.tapped is results.tapped
    assert list(results.received.arguments) == ["bias", "block", "block@1", "block.inner"]


def test_a_case_is_asked_for_leave_by_the_path_and_kind_of_the_reference_s_module():
    asked = []
    evidence = evidence_with(absence=lambda path, kind: asked.append((path, kind)) or "")
    assert not evidence.allows_one_side("block")
    assert not evidence.allows_one_side("elsewhere")
    assert asked == [("block", "Block"), ("elsewhere", "unknown")]
    assert evidence_with(absence=lambda path, kind: "stated").allows_one_side("block")
