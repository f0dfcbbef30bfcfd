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
RECEIVES = "receives another x in its padding: 3 of 21 elements, all at the batch 2; at axis 1 3"
EFFECT = "block.reader passes on its own, and no other difference reaches it"
CODE = "the code of block makes the argument"
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
    assert (found.kind, found.tap, found.code, found.argument) == (
        "module",
        "block",
        "block",
        "block.reader(x)",
    )
    assert found.text == f"{FOUND.text}; inside, block.reader {RECEIVES}; {EFFECT}; {CODE}"
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
    elsewhere, append = (
        tap(name, accumulated=LARGE, isolated=PASSES) for name in ("blocks.reader", "append:block.reader")
    )
    others = (replace(earlier, accumulated=own) for own in (PASSES, None))
    for other in (*others, elsewhere, append):
        assert inside(taps=(other, READER)).argument == "block.reader(x)"


def test_a_known_wrong_argument_goes_before_padding():
    wrong = CallJudgement("block.reader", "block", (ArgumentDifference("mask", "value", "all"),))
    assert inside(calls=[wrong]) is FOUND
    assert inside(calls=[replace(wrong, call="elsewhere")]) is not FOUND


@pytest.mark.parametrize(("call", "differs"), [("block.reader", False), ("block", True), ("other", True)])
def test_equal_padding_and_other_calls_tell_nothing(call, differs):
    assert inside(call=call, differs=differs) is FOUND


SOURCE, MAKER = tap("block.source", "Source"), tap("block.maker", "Maker")
CHAIN = ("block.source", "block.maker", "block.reader")


def handed(*wrong, taps=(SOURCE, MAKER, READER), name="x", known=CHAIN, **changes):
    """The diagnosis where some calls receive another padding: each result in a chain is the next argument.

    Args:
        wrong: The calls, by the last part of their name.
        taps: The judgements.
        name: The name of the port's argument.
        known: The calls whose arguments the reference has.
        changes: Facts of the port's last call.
    """
    sides = []
    for own, padded, facts in (("x", (), {}), (name, [f"block.{part}" for part in wrong], changes)):
        calls = [
            (call, {own: PADDED if call in padded else X}, {"origins": {own: origin}})
            for call, origin in zip(CHAIN, ("", *CHAIN), strict=False)
        ]
        calls[-1][2].update(facts)
        sides.append(capture(*calls))
    evidence, reference, results = evidence_with(), sides[0], results_with(received=sides[1])
    evidence.reference.arguments = {call: reference.arguments[call] for call in known}
    evidence.reference.call_inputs = reference.call_inputs
    return inside_through_padding(evidence, results, list(taps), (), FOUND)


@pytest.mark.parametrize("name", ["x", "the_port_s"])
def test_the_module_is_named_that_makes_another_padding_of_equal_arguments(name):
    found = handed("reader", name=name)
    assert (found.kind, found.tap, found.code, found.argument) == ("module", "block.maker", None, "")
    told = f"block.reader {RECEIVES}; {EFFECT}"
    assert found.text == f"block.maker (Maker) makes another result in its padding: {told}"
    assert found.explanation == ("3 of 21 wrong elements, all at the batch 2; at axis 1 3",)


def test_a_module_that_receives_another_padding_itself_is_right():
    found = handed("maker", "reader")
    told = f"block.maker {RECEIVES}; {EFFECT}"
    assert (found.kind, found.tap) == ("module", "block.source")
    assert found.text == f"block.source (Source) makes another result in its padding: {told}"
    # The code around makes what no module does.
    found = handed("source", "maker", "reader")
    assert (found.tap, found.code, found.argument) == ("block", "block", "block.source(x)")
    assert found.text == f"{FOUND.text}; inside, block.source {RECEIVES}; {EFFECT}; {CODE}"


def test_only_the_call_that_makes_the_argument_is_asked():
    assert handed("source", "reader").tap == "block.maker"


def test_a_maker_whose_arguments_are_not_known_is_named():
    assert handed("maker", "reader", known=("block.source", "block.reader")).tap == "block.maker"


def test_a_port_that_takes_its_arguments_in_another_order_and_by_other_names_has_no_maker():
    reference = ("block.reader", {"a": X, "x": X}, {"origins": {"a": "block.source", "x": "block.maker"}})
    port = ("block.reader", {"p": X, "q": PADDED}, {"origins": {"q": "block.source"}})
    evidence, results = evidence_with(), results_with(received=capture(port))
    known = capture(reference)
    evidence.reference.arguments, evidence.reference.call_inputs = known.arguments, known.call_inputs
    found = inside_through_padding(evidence, results, [SOURCE, MAKER, READER], (), FOUND)
    assert (found.tap, found.argument) == ("block", "block.reader(x)")


def test_an_argument_of_the_port_that_is_another_tensor_is_made_by_the_code():
    for facts in ({"origins": {"x": "block.source"}}, {"origins": {}}):
        assert handed("reader", **facts).argument == "block.reader(x)"


@pytest.mark.parametrize("taps", [(READER,), (tap("maker"), READER), (tap("block@1.maker"), READER)])
def test_a_maker_that_is_not_judged_inside_is_not_named(taps):
    assert handed("reader", taps=taps).argument == "block.reader(x)"
