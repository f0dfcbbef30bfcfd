"""Calls without a partner: which of their failures count, and what is told where they are no fault."""

from dataclasses import replace

import pytest

from parity.verdict.calls import ONE_SIDED, judged_alone, of_other_sizes, without_calls
from parity.verdict.judgement import MODEL_OUTPUT
from tests.parity.comparisons import TENSORS, B, N, evidence_with, normal, results_with
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


CALLS = ("bias", "block", "append:block")
FOUND = {"block": "the port's call has other sizes, x: shape (2, 5, 3) in place of (4, 5, 3)"}


def sizes(own, rows=2, **evidence_of):
    """The modules of other sizes for one tap; the port's calls receive and return fewer rows."""
    reference, port = (capture(*((call, {"x": x}) for call in CALLS)) for x in (X, X[:rows]))
    evidence, results = evidence_with(**evidence_of), results_with(received=port)
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    results.tapped.update({call: TENSORS[call][:rows] for call in CALLS if call != "bias"})
    del results.tapped["bias"]
    return of_other_sizes(evidence, results, (own,))


def test_a_module_of_other_sizes_that_fails_inside_the_model_alone_is_told():
    assert sizes(tap("block", accumulated=FAILS, isolated=PASSES)) == FOUND
    assert sizes(tap("block", accumulated=PASSES, isolated=PASSES)) == {}
    assert sizes(tap("block", accumulated=FAILS, isolated=FAILS)) == {}
    assert sizes(tap("block", accumulated=FAILS, isolated=PASSES), rows=B) == {}


def test_a_module_of_other_sizes_is_right_alone_where_any_runs_alone():
    own = tap("block", accumulated=FAILS, isolated=None)
    assert sizes(own) == {}
    assert sizes(own, oracle_isolated={}) == FOUND


@pytest.mark.parametrize("name", ["append:block", "bias", "elsewhere"])
def test_an_append_a_lost_result_and_a_module_of_the_port_have_no_other_sizes(name):
    assert sizes(tap(name, accumulated=FAILS, isolated=PASSES)) == {}


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
