"""Notes at taps: every fact has its sentence, and stands at its own tap alone."""

from dataclasses import replace

import pytest

from parity.verdict.comparison import compare
from parity.verdict.judgement import MODEL_OUTPUT, ArgumentDifference, CallJudgement
from parity.verdict.notes import notes
from tests.parity.comparisons import OUTPUT, evidence_with, results_with
from tests.parity.judgements import tap, verdict

UNKNOWN = {"block": {"lib.scan": "7 terms are measured"}, "": {"lib.fold": "two terms are assumed"}}


def noted(judged, calls=(), regrouped=None):
    """The notes at a tap of a comparison with these calls and regrouped taps."""
    evidence = evidence_with()
    evidence = replace(evidence, reference=replace(evidence.reference, unknown_sums=UNKNOWN))
    results = replace(results_with(), regrouped=regrouped or {})
    comparison = replace(compare(evidence, results), calls=tuple(calls))
    return notes(evidence, results, comparison, judged)


def with_ties(number):
    return replace(verdict(), ties=number)


@pytest.mark.parametrize(("field", "place"), [("isolated", "alone"), ("accumulated", "inside the model")])
def test_other_choices_are_counted_for_each_verdict(field, place):
    assert noted(tap("bias", **{field: with_ties(3)})) == (
        f"3 of 640 integers or booleans are other choices than the oracle's {place}; "
        "rounding explains them, and results behind them follow the port",
    )


def test_one_other_choice_is_told_and_none_is_not():
    assert len(noted(tap("bias", isolated=with_ties(1), accumulated=with_ties(2)))) == 2
    assert noted(tap("bias")) == ()


def test_unknown_sums_are_told_at_their_module_and_at_the_models_outputs():
    assert noted(tap("block")) == ("the longest sum of lib.scan is not known: 7 terms are measured",)
    assert noted(tap("block.inner")) == ()
    output = replace(tap(OUTPUT, MODEL_OUTPUT), path="score")
    assert noted(output) == ("the longest sum of lib.fold is not known: two terms are assumed",)


def test_axes_that_the_port_merges_are_told_at_their_tap():
    regrouped = {"bias": "(batch, position)"}
    expected = ("the port merges or splits axes; compared as (batch, position)",)
    assert noted(tap("bias"), regrouped=regrouped) == expected
    assert noted(tap("block.inner"), regrouped=regrouped) == ()


def test_other_arguments_are_told_at_their_call():
    difference = ArgumentDifference("mask", "value", "2 of 3 elements differ")
    second = CallJudgement("bias@1", "", (difference,))
    calls = [CallJudgement("bias", "", (difference,), equal=("query",)), second]
    expected = "receives another mask: 2 of 3 elements differ; query is equal"
    assert noted(tap("bias"), calls) == (expected,)
    assert noted(tap("bias[1]"), calls) == (expected,)
    assert noted(tap("bias@1"), calls) == ("receives another mask: 2 of 3 elements differ",)
    assert noted(tap("block.inner"), calls) == ()
