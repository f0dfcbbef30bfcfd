"""Padding inside a module that fails alone: where the diagnosis stays, and which call is named."""

from dataclasses import replace

import pytest

from parity.capture.names import TapName
from parity.verdict.judgement import ArgumentDifference, CallJudgement, Diagnosis
from parity.verdict.padding import inside_through_padding
from tests.parity.comparisons import evidence_with, results_with
from tests.parity.judgements import tap, verdict
from tests.parity.verdict.received_calls import capture
from tests.parity.verdict.test_padding import LIMIT, PADDED, X

PASSES, FAILS = verdict(), verdict(2.0)
LARGE = replace(FAILS, port=replace(FAILS.port, l2=1.0))
FOUND = Diagnosis("module", "block", "block (Module) diverges on its own")
READER = tap("block.reader", "Module", accumulated=LARGE, isolated=PASSES)


def inside(diagnosis=FOUND, taps=(READER,), calls=(), call="block.reader", differs=True):
    """The diagnosis of a block that fails alone, with another padding of `x` at a call."""
    reference, port = (capture((call, {"x": x})) for x in (X, PADDED if differs else X))
    evidence, results = evidence_with(), results_with(received=port)
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    return inside_through_padding(evidence, results, list(taps), calls, diagnosis)


def test_the_call_whose_padding_differs_is_named():
    found = inside()
    assert (found.kind, found.tap, found.argument) == ("module", "block", "block.reader(x)")
    receives = "block.reader receives another x in its padding: 3 of 21"
    assert found.text.startswith(f"{FOUND.text}; inside, {receives}")
    assert found.explanation == FOUND.explanation


@pytest.mark.parametrize(
    "diagnosis",
    [
        replace(FOUND, kind="between"),
        replace(FOUND, argument="block.reader(mask)"),
        replace(FOUND, tap=str(replace(TapName.parse("append:block")))),
    ],
)
def test_other_diagnoses_stay(diagnosis):
    assert inside(diagnosis) is diagnosis


@pytest.mark.parametrize(
    "reader",
    [
        replace(READER, isolated=FAILS),
        replace(READER, isolated=None),
        replace(READER, accumulated=PASSES),
        replace(READER, accumulated=replace(LARGE, port=replace(LARGE.port, l2=LIMIT))),
        tap("blocks.reader", "Module", accumulated=LARGE, isolated=PASSES),
        tap("append:block.reader", "Module", accumulated=LARGE, isolated=PASSES),
    ],
)
def test_a_result_that_needs_no_padding_to_be_wrong_tells_nothing(reader):
    assert inside(taps=(reader,)) is FOUND


def test_only_the_first_wrong_result_counts():
    earlier = tap("block.other", "Module", accumulated=LARGE, isolated=None)
    assert inside(taps=(earlier, READER)) is FOUND
    assert inside(taps=(replace(earlier, accumulated=PASSES), READER)).argument == "block.reader(x)"


def test_a_known_wrong_argument_goes_before_padding():
    wrong = CallJudgement("block.reader", "block", (ArgumentDifference("mask", "value", "all"),))
    assert inside(calls=[wrong]) is FOUND
    assert inside(calls=[replace(wrong, call="elsewhere")]) is not FOUND


@pytest.mark.parametrize(("call", "differs"), [("block.reader", False), ("block", True), ("other", True)])
def test_equal_padding_and_other_calls_tell_nothing(call, differs):
    assert inside(call=call, differs=differs) is FOUND
