"""Comparisons of calls in another order, of modules that take other shapes alone, of tolerated errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.capture.arguments import Argument, Received
from parity.verdict.calls import ONE_SIDED
from parity.verdict.comparison import compare
from tests.parity.comparisons import CHECK, OUTPUT, TENSORS, B, evidence_with, results_with
from tests.parity.verdict.received_calls import capture, tensor
from tests.parity.verdict.test_spare_calls import AGAIN, of_reference

CALLS = ("block", AGAIN)
INPUTS = tensor(B, 3, seed=1), tensor(B, 3, seed=2)
TURNED = dict(zip(CALLS, INPUTS[::-1], strict=True))


def twice(results):
    """The evidence of a shared module, and a port that exchanges its two calls; results of them by call."""
    evidence, port = of_reference(again=TENSORS["block"]), results_with()
    received = capture(*((call, {"x": x}) for call, x in zip(CALLS, INPUTS, strict=True)))
    evidence.reference.arguments, evidence.reference.call_inputs = received.arguments, received.call_inputs
    port.received = capture(*((call, {"x": x}) for call, x in TURNED.items()))
    port.isolated[AGAIN] = evidence.reference.tensors[AGAIN].clone()
    for part in (port.tapped, port.poisoned):
        part.update(results)
    return evidence, port


def exchanged():
    """As `twice`, where each call has its own result."""
    evidence, port = twice({})
    other = 2 * TENSORS["block"]
    evidence.reference.tensors[AGAIN] = port.isolated[AGAIN] = other
    evidence.oracle[AGAIN] = evidence.oracle_isolated[AGAIN] = other.double()
    for part in (port.tapped, port.poisoned):
        part |= {"block": other, AGAIN: TENSORS["block"]}
    return evidence, port


def test_exchanged_calls_of_a_right_port_move():
    comparison = compare(*exchanged())
    assert comparison.passed
    assert comparison.results.reordered == set(CALLS)


def test_exchanged_calls_with_one_result_stay():
    comparison = compare(*twice(dict.fromkeys(CALLS, TENSORS["block"])))
    assert comparison.passed
    assert comparison.results is None


def test_a_wrong_argument_is_named_in_place_of_a_wrong_output_behind_moved_calls():
    evidence, port = exchanged()
    port.untapped[OUTPUT] = 2 * TENSORS[OUTPUT]
    comparison = compare(evidence, port)
    assert (comparison.diagnosis.kind, comparison.diagnosis.tap) == ("between", "block")
    assert comparison.results is None


def other_shape(**tensors):
    """The evidence and results of a module `block` that receives a mask of another shape in the port."""
    evidence, results = evidence_with(), results_with()
    shapes = (2, 3), (2, 1, 3)
    for run, shape in zip((evidence.reference, results.received), shapes, strict=True):
        run.call_inputs = {"mask": torch.zeros(shape)}
        run.arguments = {"block": Received("", 0, 0, (Argument("mask", 0, "mask"),))}
    results.isolated |= tensors
    return evidence, results


def test_a_module_that_is_wrong_alone_with_another_shape_and_right_inside_is_judged_inside():
    comparison = compare(*other_shape(block=3 * TENSORS["block"]))
    block = comparison.tap("block")
    assert (block.isolated, block.accumulated.status) == (None, "PASS")
    assert comparison.passed


def test_a_module_that_is_right_alone_with_another_shape_is_judged_alone():
    assert compare(*other_shape()).tap("block").isolated.passed


def test_an_argument_of_another_shape_with_other_values_is_wrong_where_its_module_is_right_alone():
    evidence, results = other_shape()
    results.received.call_inputs["mask"] = torch.ones(1, 3)
    results.tapped["block"] = 3 * TENSORS["block"]
    diagnosis = compare(evidence, results).diagnosis
    assert (diagnosis.kind, diagnosis.argument) == ("between", "block(mask)")


def test_a_joined_call_that_is_wrong_alone_with_another_shape_is_judged_by_the_results_behind_it():
    """The reference calls the module twice."""
    _, results = other_shape(block=3 * TENSORS["block"])
    evidence = of_reference(again=TENSORS["block"])
    evidence.reference.call_inputs = {"mask": torch.zeros(2, 3)}
    evidence.reference.arguments = results.received.arguments
    results.isolated[AGAIN] = TENSORS["block"].clone()
    for part in (results.tapped, results.poisoned):
        part["block"] = torch.cat([TENSORS["block"]] * 2)
    comparison = compare(evidence, results)
    assert comparison.without_partner == {"block": "the port calls block once, the reference 2 times"}
    assert (comparison.tap("block").status, comparison.passed) == ("GAP", True)


SIZES = "the port's call has other sizes, mask: shape (2, 1, 3) in place of (2, 3)"


def other_sizes(**tensors):
    """As `other_shape`, of a module whose result in the port has more rows."""
    evidence, results = other_shape(**tensors)
    for part in (results.tapped, results.poisoned):
        part["block"] = torch.cat([TENSORS["block"]] * 2, dim=1)
    return replace(evidence, absence=lambda path, kind: "the case allows it"), results


def test_a_right_module_with_a_result_of_other_sizes_is_judged_alone_where_nothing_else_fails():
    evidence, results = other_sizes()
    comparison = compare(evidence, results)
    block = comparison.tap("block")
    assert (block.accumulated, block.isolated.status, comparison.passed) == (None, "PASS", True)
    assert comparison.without_partner == comparison.results.other_sizes == {"block": SIZES}
    # A batch in which no module runs alone.
    again = compare(replace(evidence, oracle_isolated={}), replace(results, isolated={}))
    assert (again.tap("block").status, again.passed) == ("GAP", True)
    # A case that asks for equal calls has both shapes in its failure.
    strict = compare(replace(evidence, absence=lambda path, kind: ""), results)
    assert strict.diagnosis.tap == "block"
    assert strict.diagnosis.text.endswith(f"; {SIZES}; {ONE_SIDED}")


def test_other_sizes_excuse_no_other_failure():
    wrong = {
        "alone": other_sizes(block=3 * TENSORS["block"]),
        "not alone": other_sizes(),
        "an output": other_sizes(),
        "another module": other_sizes(),
        "equal arguments": other_sizes(),
    }
    del wrong["not alone"][1].isolated["block"]
    wrong["an output"][1].untapped[OUTPUT] = 2 * TENSORS[OUTPUT]
    wrong["another module"][1].tapped["bias"] = 2 * TENSORS["bias"]
    wrong["equal arguments"][1].received.call_inputs["mask"] = torch.zeros(2, 3)
    for name, (evidence, results) in wrong.items():
        comparison = compare(evidence, results)
        assert not comparison.passed, name
        assert comparison.without_partner == {}, name


def test_a_wrong_result_of_the_reference_s_sizes_is_no_matter_of_sizes():
    evidence, results = other_sizes()
    results.tapped["block"] = 3 * TENSORS["block"]
    assert not compare(evidence, results).passed


def test_a_module_that_is_wrong_alone_and_has_no_verdict_inside_fails():
    evidence, results = other_shape()
    results.isolated["append:block"] = 3 * TENSORS["append:block"]
    for run in (evidence.reference, results.received):
        run.arguments["append:block"] = run.arguments["block"]
    results.tapped["append:block"] = TENSORS["append:block"]
    diagnosis = compare(evidence, results).diagnosis
    assert (diagnosis.kind, diagnosis.tap) == ("module", "append:block")


@pytest.mark.parametrize("has_arguments", [True, False])
def test_the_tap_whose_error_is_tolerated_is_named_where_more_of_it_arrives(has_arguments):
    evidence = evidence_with(tolerated=lambda tap, path: 0.5 if path == "bias" else 0.0)
    results = results_with()
    if has_arguments:
        for run in (evidence.reference, results.received):
            run.arguments["block"] = Received("", 1, 0, ())
    results.tapped["bias"] = 1.1 * TENSORS["bias"]
    results.tapped["block"] = 1.7 * TENSORS["block"]
    diagnosis = compare(evidence, results).diagnosis
    assert (diagnosis.kind, diagnosis.tap) == ("amplification", "block")
    assert "the error that the case tolerates at bias may be its cause" in diagnosis.text


def test_a_model_without_modules_names_the_code_of_its_entry():
    evidence, results = evidence_with(), results_with()
    evidence.reference.calls.clear()
    for part in (evidence.reference.tensors, evidence.oracle, results.tapped, results.isolated):
        for tap in [tap for tap in part if tap != OUTPUT]:
            del part[tap]
    results = results_with(tapped=results.tapped, isolated={}, poisoned={})
    results.untapped[OUTPUT] = 2 * TENSORS[OUTPUT]
    comparison = compare(evidence_with(reference=evidence.reference, oracle=evidence.oracle), results)
    diagnosis, reason = comparison.diagnosis, comparison.tap(OUTPUT).accumulated.reason
    assert (diagnosis.kind, diagnosis.tap) == ("between", OUTPUT)
    assert diagnosis.text == f"{OUTPUT}: {reason}; the code of score makes the output"


def test_incremental_outputs_of_which_nothing_is_left_are_no_pass():
    boundary = np.zeros(tuple(TENSORS["bias"].shape), bool)
    boundary[:, 0, 0] = True
    evidence = evidence_with(boundary={"bias": boundary}, reference_incremental={CHECK: TENSORS[OUTPUT]})
    results = results_with(incremental={CHECK: TENSORS[OUTPUT]})
    results.tapped["bias"][:, 0, 0] += 5.0
    check = compare(evidence, results).checks[CHECK]
    assert (check.status, check.checked) == ("FAIL", 0)
    assert check.reason.startswith("nothing to compare: ")
