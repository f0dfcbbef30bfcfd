"""The first call of the incremental forward with a wrong argument gives a failing output its place."""

from dataclasses import replace

import pytest
import torch

from parity.verdict.appends import in_appends
from parity.verdict.judgement import Diagnosis
from tests.parity.comparisons import evidence_with, results_with
from tests.parity.verdict.received_calls import capture, tensor

LENGTHS = torch.tensor([3, 1, 4])
STATE = tensor(3, 5)
FAILED = Diagnosis("check", "incremental.current", "incremental.current: relative L2 error 1 exceeds 0.1")
CALLS = ("append:block", "append:block@1")


def diagnosed(port, reference=None):
    """The diagnosis for the arguments of the port's and the reference's calls of the incremental forward."""
    right = {call: {"lengths": LENGTHS, "state": STATE, "flag": True} for call in CALLS}
    sides = [capture(*(values or right).items()) for values in (reference, port)]
    evidence, results = evidence_with(), results_with()
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


def test_rounding_is_no_wrong_argument():
    assert diagnosed(changed(state=STATE * (1 + 1e-5))) is FAILED


def test_right_arguments_leave_the_diagnosis():
    assert diagnosed(changed()) is FAILED


def test_calls_without_a_partner_are_left_out():
    port = changed(lengths=LENGTHS + 1) | {"append:block@2": {"lengths": LENGTHS}}
    assert diagnosed(port) is FAILED


def test_without_captures_the_diagnosis_stays():
    assert in_appends(evidence_with(), results_with(), FAILED) is FAILED
