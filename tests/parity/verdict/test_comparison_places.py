"""The places that whole comparisons name: in front of a leak, in padding, in appends, at broadcasts."""

from dataclasses import replace

import pytest
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.values import Opaque
from parity.verdict import comparison as module
from parity.verdict.comparison import Comparison, compare
from parity.verdict.judgement import Diagnosis
from tests.parity.comparisons import CHECK, OUTPUT, TENSORS, B, N, evidence_with, normal, results_with
from tests.parity.verdict.received_calls import capture
from tests.parity.verdict.test_spare_calls import AGAIN, of_reference

X = normal(8, B, N, 3)
PADDED = X.clone()
PADDED[2, 3] += 1  # the third sequence has one item


def received(*calls, port=(), **evidence):
    """The evidence and results of calls; `port` has those of the port that differ."""
    sides = capture(*calls), capture(*(dict(calls) | dict(port)).items())
    known, results = evidence_with(**evidence), results_with(received=sides[1])
    known.reference.arguments, known.reference.call_inputs = sides[0].arguments, sides[0].call_inputs
    return known, results


def test_a_leak_is_named_in_front_of_the_module_that_reads_the_garbage():
    calls = ("block", {"x": X})
    evidence, results = received(calls, poisoned=lambda: capture(calls))
    results.poisoned["block"][0, 0] += 1
    results.received_poisoned = capture(("block", {"x": PADDED}))
    found = compare(evidence, results)
    assert (found.padding_leak, found.diagnosis.kind, found.diagnosis.argument) == (
        "block",
        "between",
        "block(x)",
    )
    results.received_poisoned = capture(calls)
    assert compare(evidence, results).diagnosis.kind == "check"


@pytest.mark.parametrize("has_arguments", [True, False])
def test_a_wrong_append_is_named_at_the_argument_that_its_code_makes(has_arguments):
    calls = [("block", {"x": X})] if has_arguments else []
    evidence, results = received(*calls, reference_incremental={CHECK: TENSORS[OUTPUT]})
    results.incremental = {CHECK: 2 * TENSORS[OUTPUT]}
    lengths = torch.tensor([3, 1, 4, 1])
    evidence.appending = capture(("append:block", {"lengths": lengths}))
    results.appending = capture(("append:block", {"lengths": lengths + 1}))
    found = compare(evidence, results).diagnosis
    assert (found.kind, found.tap, found.argument) == ("between", CHECK, "append:block(lengths)")


def test_padding_behind_a_module_that_does_not_run_alone_is_named_around_it():
    evidence, results = received(("block", {"x": X}), port=[("block", {"x": PADDED})])
    evidence.kinds["block.inner"] = replace(evidence.kinds["block.inner"], args=[Opaque("Cache")])
    results.tapped["block.inner"] = 1.5 * TENSORS["block.inner"]
    found = compare(evidence, results).diagnosis
    assert (found.kind, found.tap, found.argument) == ("between", "block", "block(x)")
    assert "block passes on its own" in found.text


def test_padding_inside_a_module_that_is_wrong_alone_is_named():
    evidence, results = received(("block.inner", {"x": X}), port=[("block.inner", {"x": PADDED})])
    results.tapped["block.inner"] = 1.5 * TENSORS["block.inner"]
    results.tapped["block"] = results.isolated["block"] = 1.5 * TENSORS["block"]
    found = compare(evidence, results).diagnosis
    assert (found.kind, found.tap, found.argument) == ("module", "block", "block.inner(x)")
    assert "inside, block.inner receives another x in its padding" in found.text


def test_padding_around_the_code_that_passes_a_wrong_argument_is_named():
    mask, x = {"mask": torch.ones(B, 7)}, {"x": X}
    wrong = {"mask": torch.zeros(B, 7)}
    calls = ("block", x), ("block.inner", mask)
    evidence, results = received(*calls, port=[("block.inner", wrong)])
    results.tapped["block.inner"] = 1.5 * TENSORS["block.inner"]
    assert compare(evidence, results).diagnosis.argument == "block.inner(mask)"
    evidence, results = received(*calls, port=[("block", {"x": PADDED}), ("block.inner", wrong)])
    results.tapped["block.inner"] = 1.5 * TENSORS["block.inner"]
    assert compare(evidence, results).diagnosis.argument == "block(x)"


@pytest.mark.parametrize("is_wrong", [True, False])
def test_an_argument_that_broadcasts_is_wrong_where_the_result_is(is_wrong):
    evidence, results = received(("block", {"x": X}), port=[("block", {"x": X[:1] + 1})])
    if is_wrong:
        results.tapped["block"] = 1.5 * TENSORS["block"]
    found = compare(evidence, results)
    assert found.calls[0].differing[0].kind == ("value" if is_wrong else "form")
    assert (found.diagnosis.argument, found.passed) == (("block(x)", False) if is_wrong else ("", True))


def test_a_port_without_recorded_arguments_has_no_code_between_its_modules():
    results = results_with()
    results.untapped[OUTPUT] = 2 * TENSORS[OUTPUT]
    found = compare(evidence_with(), results).diagnosis
    assert (found.kind, found.tap) == ("module", OUTPUT)


def test_joined_calls_whose_module_takes_another_shape_alone_are_judged_by_the_outputs():
    """The port calls a module once for two calls of the reference, which it cannot take alone."""
    evidence, results = of_reference(again=TENSORS["block"]), results_with()
    results.tapped["block"] = results.poisoned["block"] = torch.cat([TENSORS["block"]] * 2)
    results.isolated |= {"block": 3 * TENSORS["block"], AGAIN: TENSORS["block"]}
    for run, shape in ((evidence.reference, (2, 3)), (results.received, (4, 3))):
        run.call_inputs = {"mask": torch.zeros(shape)}
        run.arguments = {"block": Received("", 0, 0, (Argument("mask", 0, "mask"),))}
    found = compare(evidence, results)
    assert found.without_partner == {"block": "the port calls block once, the reference 2 times"}
    block = found.tap("block")
    assert (block.accumulated, block.isolated, found.passed) == (None, None, True)


def test_forms_are_told_under_the_choices_of_the_port(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "in_forms", lambda evidence, results, taps: seen.append(evidence) or results)
    evidence, own, results = evidence_with(), evidence_with(), results_with()
    failed = Comparison((), {}, "", 0.0, Diagnosis("module", "block", "it diverges"), evidence=own)
    for known, expected in ((failed, own), (replace(failed, evidence=None), evidence)):
        assert module._in_forms(known, evidence, results) is known
        assert seen.pop() is expected
    passed = replace(failed, diagnosis=Diagnosis())
    assert module._in_forms(passed, evidence, results) is passed
    assert not seen


def test_sizes_of_calls_are_those_under_the_choices_of_the_port(monkeypatch):
    """As of an expert, whose rows the choices tell."""
    seen = []
    monkeypatch.setattr(module, "of_other_sizes", lambda evidence, results, taps: seen.append(evidence) or {})
    evidence, own, results = evidence_with(), evidence_with(), results_with()
    failed = Comparison((), {}, "", 0.0, Diagnosis("module", "block", "it diverges"), evidence=own)
    assert module._in_other_sizes(failed, evidence, results) is failed
    assert seen.pop() is own
