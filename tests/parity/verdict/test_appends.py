"""The first call of the incremental forward with a wrong argument gives a failing output its place."""

from dataclasses import replace

import pytest
import torch

from parity.verdict.appends import in_appends
from parity.verdict.comparison import compare
from parity.verdict.judgement import Diagnosis
from tests.parity.comparisons import CHECK, OUTPUT, evidence_with, results_with
from tests.parity.verdict.received_calls import capture, tensor

LENGTHS = torch.tensor([3, 1, 4])
STATE = tensor(3, 5)
FAILED = Diagnosis("check", "incremental.current", "incremental.current: relative L2 error 1 exceeds 0.1")
CALLS = ("append:block", "append:block@1")


def diagnosed(port, reference=None):
    """The diagnosis for the arguments of the port's and the reference's calls of the incremental forward."""
    right = {call: {"lengths": LENGTHS, "state": STATE, "flag": True} for call in CALLS}
    sides = [capture(*(values or right).items()) for values in (reference, port)]
    evidence, results = evidence_with(reference_incremental={FAILED.tap: STATE}), results_with()
    evidence.appending = sides[0]
    return in_appends(evidence, replace(results, appending=sides[1]), FAILED)


def changed(**values):
    """Right arguments of the first call, and other ones of the second call."""
    right = {"lengths": LENGTHS, "state": STATE, "flag": True}
    return {CALLS[0]: right, CALLS[1]: right | values}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"lengths": LENGTHS + 1}, "receives another lengths: 3 of 3 elements"),
        ({"state": STATE * 1.5}, "receives another state: 15 of 15 elements"),
        ({"flag": False}, "receives another flag: False in place of True"),
    ],
)
def test_a_wrong_argument_is_named_with_its_call_and_code(values, told):
    own = diagnosed(changed(**values))
    assert own.kind == "between"
    assert own.tap == FAILED.tap
    assert own.text.startswith(f"append:block@1 {told}")
    assert own.text.endswith(f"the code of block makes the argument; so {FAILED.text}")
    assert own.code == "block"
    assert own.argument == f"append:block@1({next(iter(values))})"


def test_the_explanation_is_that_of_the_first_wrong_argument_in_the_words_of_that_argument():
    own = diagnosed(changed(lengths=LENGTHS + 1, state=STATE * 1.5))
    assert own.explanation == ("equals the oracle plus 1",)
    assert own.argument == "append:block@1(lengths)"
    assert "flag" not in own.text


def test_an_argument_that_the_port_passes_in_another_form_is_not_told():
    own = diagnosed(changed(lengths=None, state=STATE * 1.5))
    assert own.text.startswith("append:block@1 receives another state: 15 of 15 elements; every module")
    assert own.argument == "append:block@1(state)"


def test_the_code_of_the_incremental_forward_itself_has_no_module():
    sides = [capture((CALLS[0], {"lengths": lengths})) for lengths in (LENGTHS, LENGTHS + 1)]
    for side in sides:
        side.arguments[CALLS[0]] = replace(side.arguments[CALLS[0]], parent="")
    evidence, results = evidence_with(reference_incremental={FAILED.tap: STATE}), results_with()
    evidence.appending = sides[0]
    own = in_appends(evidence, replace(results, appending=sides[1]), FAILED)
    assert own.code == ""
    assert "; the code of prefill or extend makes the argument; so " in own.text


def test_rounding_is_no_wrong_argument():
    assert diagnosed(changed(state=STATE * (1 + 1e-5))) is FAILED


def test_right_arguments_leave_the_diagnosis():
    assert diagnosed(changed()) is FAILED


def test_calls_without_a_partner_are_left_out():
    port = changed(lengths=LENGTHS + 1) | {"append:block@2": {"lengths": LENGTHS}}
    assert diagnosed(port) is FAILED


def test_without_captures_the_diagnosis_stays():
    assert in_appends(evidence_with(), results_with(), FAILED) is FAILED


def test_another_failure_keeps_its_diagnosis():
    evidence, results = evidence_with(), results_with()
    evidence.appending = capture(*{CALLS[0]: {"lengths": LENGTHS}}.items())
    wrong = replace(results, appending=capture(*{CALLS[0]: {"lengths": LENGTHS + 1}}.items()))
    assert in_appends(evidence, wrong, FAILED) is FAILED
    evidence.reference_incremental = {FAILED.tap: STATE}
    assert in_appends(evidence, wrong, replace(FAILED, kind="module")).kind == "module"
    assert in_appends(evidence, wrong, FAILED).kind == "between"


def test_an_argument_of_another_layout_hides_no_wrong_one():
    right = {"state": STATE, "rows": STATE, "lengths": LENGTHS}
    port = {CALLS[0]: right | {"state": "none", "rows": STATE[:2], "lengths": LENGTHS + 1}}
    own = diagnosed(port, {CALLS[0]: right})
    assert own.text.startswith(f"{CALLS[0]} receives another lengths: 3 of 3 elements; every module")


def test_a_runner_whose_calls_are_not_compared_has_the_place_of_its_appends():
    """A form of another layout has no arguments of the full forward, and those of its appends."""
    expected = evidence_with().reference.tensors[OUTPUT]
    evidence = evidence_with(reference_incremental={CHECK: expected})
    evidence.appending = capture(*{CALLS[0]: {"lengths": LENGTHS}}.items())
    results = results_with(incremental={CHECK: expected * 1.1})
    wrong = replace(results, appending=capture(*{CALLS[0]: {"lengths": LENGTHS + 1}}.items()))
    assert not wrong.received.arguments
    assert compare(evidence, results).diagnosis.kind == "check"
    own = compare(evidence, wrong).diagnosis
    assert (own.kind, own.tap, own.argument) == ("between", CHECK, f"{CALLS[0]}(lengths)")
