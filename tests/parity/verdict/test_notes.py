"""Notes at taps: every fact has its sentence, and stands at its own tap alone."""

import math
from dataclasses import replace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture
from parity.capture.values import Opaque
from parity.verdict.comparison import compare
from parity.verdict.judgement import MODEL_OUTPUT, ArgumentDifference, CallJudgement
from parity.verdict.notes import INSIDE_ALONE, notes
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


def with_distance(l2):
    judged = verdict()
    return replace(judged, reference=replace(judged.reference, l2=l2))


@pytest.mark.parametrize(("field", "place"), [("isolated", " alone"), ("accumulated", "")])
def test_a_reference_far_from_the_oracle_is_told(field, place):
    judged = replace(tap("bias", **{field: with_distance(0.31)}), batch="few rows")
    assert noted(judged) == (
        f"the reference itself{place} is 0.31 of the result away from the oracle in batch few rows, "
        "so that errors of this size pass there",
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_rounding_of_the_precision_is_no_distance_of_the_reference(precision):
    evidence = replace(evidence_with(), precision=PRECISIONS[precision])
    comparison = compare(evidence_with(), results_with())
    least = {"fp32": 0.01, "fp16": 64 * 2.0**-11, "bf16": 64 * 2.0**-8}[precision]
    for l2, count in ((0.9 * least, 0), (least, 0), (1.1 * least, 1), (math.inf, 0)):
        judged = tap("bias", accumulated=with_distance(l2))
        assert len(notes(evidence, results_with(), comparison, judged)) == count


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


def test_axes_in_another_order_are_told_at_their_tap():
    results = replace(results_with(), other_axes={"bias": (2, 3)})
    comparison = compare(evidence_with(), results)
    expected = "the port has the axes in another order; compared as (2, 3)"
    assert notes(evidence_with(), results, comparison, tap("bias")) == (expected,)
    assert notes(evidence_with(), results, comparison, tap("block")) == ()


def test_a_call_in_another_order_is_told_at_all_its_results():
    results = replace(results_with(), reordered=frozenset({"bias@1"}))
    comparison = compare(evidence_with(), results)
    for name, expected in (("bias@1", True), ("bias@1[0]", True), ("bias", False), ("block@1", False)):
        told = notes(evidence_with(), results, comparison, tap(name))
        assert told == (("the port makes this call in another order",) if expected else ())


def other_masks(**changes):
    """The evidence and results of a call whose sides receive a mask of other types, or of other shapes."""
    evidence, results = evidence_with(), results_with(**changes)
    masks = {"mask": torch.zeros(2, 3, dtype=torch.bool)}, {"mask": torch.zeros(2, 1, 3)}
    for run, tensors in zip((evidence.reference, results.received), masks, strict=True):
        run.call_inputs = tensors
        run.arguments = {"bias": Received("", 0, 0, (Argument("mask", 0, "mask"),))}
    return evidence, results


def test_a_module_that_raises_alone_and_has_a_result_inside_says_why():
    evidence, results = other_masks(isolated_problems={"bias": "RuntimeError"})
    comparison = compare(evidence_with(), results_with())
    (told,) = notes(evidence, results, comparison, replace(tap("bias"), isolated=None))
    assert told.startswith(f"{INSIDE_ALONE}: it does not run with the reference's arguments, mask: ")
    assert notes(evidence, results, comparison, tap("bias")) == ()
    assert notes(evidence, results, comparison, replace(tap("block"), isolated=None)) == ()
    assert notes(evidence, results, comparison, replace(tap("unknown"), isolated=None)) == ()


def test_a_module_that_takes_other_shapes_alone_says_so_where_it_has_a_result():
    evidence, results = other_masks()
    evidence.reference.call_inputs = {"mask": torch.zeros(2, 3)}
    comparison = compare(evidence_with(), results_with())
    judged = replace(tap("bias"), isolated=None)
    (told,) = notes(evidence, results, comparison, judged)
    assert told.startswith(f"{INSIDE_ALONE}: it takes other arguments than the reference's, mask: ")
    results.isolated = {}
    assert notes(evidence, results, comparison, judged) == ()


def test_forms_factors_and_numbers_of_a_result_stand_at_its_tap():
    evidence = evidence_with()
    evidence.reference.forms["block"] = "PyTorch returns a sparse tensor, compared as a dense one"
    results = replace(results_with(), scaled={"bias": 4.0}, numbered={OUTPUT: "score.0"})
    comparison = compare(evidence, results)
    own = {
        name: notes(evidence, results, comparison, tap(name)) for name in ("block", "bias", OUTPUT, "other")
    }
    factor = "the port has 4 times the numbers, which the module around it undoes; compared without"
    assert own == {
        "block": ("PyTorch returns a sparse tensor, compared as a dense one",),
        "bias": (factor,),
        OUTPUT: ("the port returns it as score.0",),
        "other": (),
    }


def test_a_module_that_joins_calls_is_noted_where_it_is_judged_alone_only():
    evidence, results = evidence_with(), results_with()
    comparison = replace(compare(evidence, results), without_partner={"block": "the port calls block once"})
    alone = tap("block@1[0]", accumulated=None)
    told = ("judged alone: the port calls block once; the results behind it are judged",)
    assert notes(evidence, results, comparison, alone) == told
    for other in (tap("block"), tap("block", accumulated=None, isolated=None), replace(alone, gap="none")):
        assert notes(evidence, results, comparison, other) == ()
    assert notes(evidence, results, comparison, tap("bias", accumulated=None)) == ()


def test_evaluated_tensors_are_told_at_their_module_and_the_entry_s_at_its_first_output():
    evaluated = {"": "port.py:9", "block": "port.py:4"}
    results = results_with(received=Capture(evaluated=evaluated))
    first = next(iter(results.untapped))
    evidence = evidence_with()
    comparison = compare(evidence, results)
    of_output = replace(tap(first), kind=MODEL_OUTPUT)
    own = {
        name: notes(evidence, results, comparison, judged)
        for name, judged in {
            "block": tap("block"),
            "again": replace(tap("block@1[0]"), path="block"),
            "first": of_output,
            "second": replace(of_output, tap="score.second", path="score.second"),
            "other": tap("bias"),
        }.items()
    }
    told = (
        "the port's code evaluates a tensor while it is compiled, at port.py:{}: the executable holds the "
        "value as a constant"
    )
    assert own == {
        "block": (told.format(4),),
        "again": (told.format(4),),
        "first": (told.format(9),),
        "second": (),
        "other": (),
    }


def test_arguments_that_cannot_be_stored_are_named_with_their_class():
    evidence, results = evidence_with(), results_with()
    calls = [
        replace(call, args=[Opaque("Table"), Opaque("Cache")]) if call.tap == "block" else call
        for call in evidence.reference.calls
    ]
    evidence = replace(evidence, reference=replace(evidence.reference, calls=calls))
    comparison, own = compare(evidence, results), tap("block", isolated=None)
    start = f"{INSIDE_ALONE}: its arguments cannot be stored: "
    assert notes(evidence, results, comparison, own) == (f"{start}Cache, Table",)
    arguments = [Argument("x", 0), Argument("table", 1, other="Table"), Argument("cache", 2, other="Cache")]
    evidence.reference.arguments["block"] = Received("", 0, 0, tuple(arguments))
    assert notes(evidence, results, comparison, own) == (f"{start}table (Table), cache (Cache)",)
    assert notes(evidence, results, comparison, tap("block")) == ()
