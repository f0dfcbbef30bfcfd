"""Padding that leaks is named at the argument that keeps garbage, where the reference has none."""

from dataclasses import replace

import pytest
import torch

from parity.verdict.judgement import Diagnosis
from parity.verdict.padding import in_front_of_leak
from tests.parity.comparisons import B, N, evidence_with, normal, results_with
from tests.parity.verdict.received_calls import capture

LEAK = "block.inner"
FOUND = Diagnosis(
    "check", LEAK, "padding leaks: garbage in padded positions changes valid bits at block.inner"
)
X = normal(8, B, N, 3)
PADDED = X.clone()
PADDED[2, 3] += 1  # the third sequence has one item
CLEAN, GARBAGE = (X, X), (X, PADDED)
"""An argument in the clean run and in the one with garbage in the padding."""
KEPT = "padding leaks: garbage in padded positions reaches {0} of {1}, where the reference has none, and "


def runs(calls, origins=None):
    """The clean run and the one with garbage; `calls` has pairs of values by call and argument."""
    facts = {"origins": origins or {}}
    return [
        capture(
            *((call, {name: pair[run] for name, pair in own.items()}, facts) for call, own in calls.items())
        )
        for run in (0, 1)
    ]


def placed(port, reference, diagnosis=FOUND, leak=LEAK, origins=None, others=None):
    """The diagnosis of a leak; the arguments of the reference's calls are taps of the name `others`."""
    clean, poisoned = runs(port, origins)
    ours = runs(reference, origins if others is None else others)
    evidence = evidence_with(poisoned=lambda: ours[1])
    evidence.reference.arguments, evidence.reference.call_inputs = ours[0].arguments, ours[0].call_inputs
    results = results_with(received=clean, received_poisoned=poisoned)
    return in_front_of_leak(evidence, results, leak, diagnosis)


@pytest.mark.parametrize("call", ["block", LEAK])
def test_the_argument_that_keeps_garbage_is_named(call):
    found = placed({call: {"x": GARBAGE}}, {call: {"x": CLEAN}})
    text = KEPT.format("x", call) + "changes valid bits at block.inner; the code of block makes the argument"
    assert found == Diagnosis("between", call, text, code="block", argument=f"{call}(x)")


def test_the_code_of_the_entry_makes_the_arguments_of_calls_without_a_caller():
    clean, poisoned = runs({"block": {"x": GARBAGE}})
    poisoned.arguments["block"] = replace(poisoned.arguments["block"], parent="")
    ours = runs({"block": {"x": CLEAN}})
    evidence = evidence_with(poisoned=lambda: ours[1])
    evidence.reference.arguments, evidence.reference.call_inputs = ours[0].arguments, ours[0].call_inputs
    results = results_with(received=clean, received_poisoned=poisoned)
    found = in_front_of_leak(evidence, results, LEAK, FOUND)
    assert found.text.endswith("; the code of score makes the argument")
    assert (found.tap, found.code) == ("block", "")


def test_a_call_without_a_result_has_the_place_of_the_leak():
    found = placed({"block@3": {"x": GARBAGE}}, {"block@3": {"x": CLEAN}})
    assert (found.kind, found.tap, found.argument) == ("between", LEAK, "block@3(x)")


@pytest.mark.parametrize("call", ["bias", "block.other", "block.inner.part", "blocks", "block.inner@1"])
def test_only_the_leaking_call_and_those_around_it_are_asked(call):
    assert placed({call: {"x": GARBAGE}}, {call: {"x": CLEAN}}) is FOUND
    calls = ({name: {"x": pair} for name in (call, "block")} for pair in (GARBAGE, CLEAN))
    assert placed(*calls).argument == "block(x)"


@pytest.mark.parametrize("later", ["block.inner@1", "block@1"])
def test_a_call_behind_the_leak_is_not_named(later):
    """It may receive what the leak has changed."""
    port = {"block": {"x": CLEAN}, LEAK: {"x": CLEAN}, later: {"x": GARBAGE}}
    assert placed(port, {call: {"x": CLEAN} for call in port}) is FOUND
    before = placed({later: {"x": GARBAGE}, LEAK: {"x": CLEAN}}, dict.fromkeys((later, LEAK), {"x": CLEAN}))
    assert before.argument == ("" if later == "block.inner@1" else "block@1(x)")


def test_the_leak_of_a_tap_without_a_call_is_placed_around_it():
    found = placed(
        {"block": {"x": GARBAGE}}, {"block": {"x": CLEAN}}, replace(FOUND, tap="block.part"), "block.part"
    )
    assert found.argument == "block(x)"


@pytest.mark.parametrize(
    ("port", "reference"),
    [
        # The reference has the same garbage, or the port has none.
        ({"x": GARBAGE}, {"x": GARBAGE}),
        ({"x": CLEAN}, {"x": CLEAN}),
        ({"x": CLEAN}, {"x": GARBAGE}),
        # One side has no such tensor.
        ({"x": GARBAGE}, {}),
        ({}, {"x": CLEAN}),
        ({"x": GARBAGE}, {"x": (1.5, 1.5)}),
        ({"x": (X, 2.5)}, {"x": CLEAN}),
        ({"x": (2.5, X)}, {"x": CLEAN}),
    ],
)
def test_the_diagnosis_stays_where_the_port_alone_keeps_no_garbage(port, reference):
    assert placed({"block": port}, {"block": reference}) is FOUND
    # The next call is asked.
    found = placed({"block": port, LEAK: {"y": GARBAGE}}, {"block": reference, LEAK: {"y": CLEAN}})
    assert found.argument == "block.inner(y)"


def test_an_argument_is_named_as_the_reference_s_where_the_port_s_has_another_name():
    found = placed({"block": {"mask": CLEAN, "p": GARBAGE}}, {"block": {"mask": CLEAN, "x": CLEAN}})
    effect = "changes valid bits at block.inner; the code of block makes the argument"
    text = KEPT.format("x", "block") + effect
    assert found == Diagnosis("between", "block", text, code="block", argument="block(x)")
    both = {"x": "bias", "p": "bias"}
    found = placed({"block": {"p": GARBAGE}}, {"block": {"x": CLEAN}}, origins=both)
    assert (found.kind, found.tap) == ("check", "bias")


def test_an_argument_that_the_port_lacks_ends_no_search():
    values = {"first": CLEAN, "x": CLEAN}
    assert placed({"block": {"x": GARBAGE}}, {"block": values}).argument == "block(x)"


def test_a_call_of_the_port_alone_is_not_named():
    assert placed({"block": {"x": GARBAGE}}, {}) is FOUND


def test_the_first_argument_that_keeps_garbage_is_named():
    values = {"mask": CLEAN, "y": GARBAGE, "z": GARBAGE}
    assert placed({"block": values}, {"block": dict.fromkeys(values, CLEAN)}).argument == "block(y)"


@pytest.mark.parametrize("side", ["reference", "port"])
def test_a_tensor_that_is_stored_without_its_garbage_has_changed(side):
    """The run with garbage stores the clean tensor of a tap that differs in its padding alone."""
    clean, poisoned = runs({"block": {"x": CLEAN}})
    ours = runs({"block": {"x": CLEAN}})
    (ours[1] if side == "reference" else poisoned).padded.add("block(x)")
    evidence = evidence_with(poisoned=lambda: ours[1])
    evidence.reference.arguments, evidence.reference.call_inputs = ours[0].arguments, ours[0].call_inputs
    results = results_with(received=clean, received_poisoned=poisoned)
    found = in_front_of_leak(evidence, results, LEAK, FOUND)
    assert found is FOUND if side == "reference" else found.argument == "block(x)"


def test_a_result_that_both_sides_pass_on_is_named_itself():
    calls = {"block": {"x": GARBAGE}}, {"block": {"x": CLEAN}}
    found = placed(*calls, origins={"x": "bias"})
    text = KEPT.format("x", "block") + "changes valid bits at block.inner; it is the result of bias"
    assert found == Diagnosis("check", "bias", text)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"x": "bias"}, {"x": "block"}),
        ({"x": "bias"}, {}),
        ({"x": "score(ids)"}, {"x": "score(ids)"}),
        ({}, {}),
    ],
)
def test_another_tensor_than_the_reference_s_is_made_by_the_code(ours, theirs):
    found = placed({"block": {"x": GARBAGE}}, {"block": {"x": CLEAN}}, origins=ours, others=theirs)
    assert (found.kind, found.tap) == ("between", "block")


@pytest.mark.parametrize(
    "other",
    [
        Diagnosis(),
        Diagnosis("check", "block", "another leak"),
        Diagnosis("between", LEAK, "a wrong argument"),
        Diagnosis("module", LEAK, "it diverges"),
    ],
)
def test_another_diagnosis_stays(other):
    calls = {"block": {"x": GARBAGE}}, {"block": {"x": CLEAN}}
    assert placed(*calls, diagnosis=other) is other
    assert placed(*calls, diagnosis=other, leak="") is other


def test_no_run_with_garbage_is_read_without_a_leak():
    evidence = evidence_with(poisoned=lambda: pytest.fail("the run was read"))
    assert in_front_of_leak(evidence, results_with(), "", Diagnosis()) == Diagnosis()


def test_arguments_of_other_types_have_changed():
    assert placed({"block": {"x": (X, X.double())}}, {"block": {"x": CLEAN}}).argument == "block(x)"
    ids = torch.arange(B * N).reshape(B, N)
    assert placed({"block": {"x": (ids, ids)}}, {"block": {"x": CLEAN}}) is FOUND
