"""Whether a call of both sides receives a result of the reference that the port has there, too."""

from dataclasses import replace

import pytest
import torch

from parity.verdict.arguments import is_received
from parity.verdict.calls import without_spare_calls
from parity.verdict.judgement import TapJudgement
from tests.parity.comparisons import evidence_with, results_with
from tests.parity.judgements import tap as made_tap
from tests.parity.judgements import verdict
from tests.parity.verdict.received_calls import capture, tensor

RESULT = "block@1"
X, OTHER = tensor(4, 6, 3), tensor(4, 6, 3, seed=5)
NOISE = tensor(4, 6, 3, seed=4)
ORACLE = X.double() + 1e-7 * NOISE
"""The reference's argument has an error of some units of round-off."""


def sides(theirs, ours, origins=None, oracle=None):
    """The evidence and the results of calls by name, each with the values of its arguments by name.

    Without origins, every `x` of the reference is the result.
    """
    origins = {"x": RESULT} if origins is None else origins
    reference = capture(*((call, values, {"origins": origins}) for call, values in theirs.items()))
    evidence = evidence_with(oracle_received=capture(*(oracle or {}).items()), valid={})
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    return evidence, results_with(received=capture(*ours.items()))


def received(theirs, ours, origins=None, oracle=None):
    return is_received(*sides(theirs, ours, origins, oracle), RESULT)


def test_the_elements_of_the_port_s_argument_decide():
    assert received({"later": {"x": X}}, {"later": {"x": X.clone()}})
    assert not received({"later": {"x": X}}, {"later": {"x": OTHER}})


def test_rounding_is_no_difference():
    """The oracle's argument of the same call tells how much is rounding."""
    oracle = {"later": {"x": ORACLE}}
    for noise, is_right in ((2e-7, True), (1e-3, False)):
        ours = {"later": {"x": X + noise * NOISE}}
        assert received({"later": {"x": X}}, ours, oracle=oracle) is is_right
        assert not received({"later": {"x": X}}, ours)


def test_one_call_of_several_is_enough():
    theirs = {call: {"x": X} for call in ("of the reference", "wrong", "right")}
    assert received(theirs, {"wrong": {"x": OTHER}, "right": {"x": X}})
    assert not received(theirs, {"wrong": {"x": OTHER}})
    assert not received(theirs, {"of the port": {"x": X}})
    assert not received({}, {"later": {"x": X}})


def test_only_an_argument_that_is_the_result_counts():
    values = {"x": X, "y": OTHER}
    for origins, is_right in (({"y": RESULT}, True), ({"x": RESULT}, False), ({"y": "block"}, False)):
        assert received({"later": values}, {"later": {"x": OTHER, "y": OTHER}}, origins) is is_right


@pytest.mark.parametrize("ours", [{}, {"x": None}, {"x": 2.0}, {"y": X, "x": object()}])
def test_a_port_without_the_tensor_does_not_receive_it(ours):
    assert not received({"later": {"x": X}}, {"later": ours})


def test_a_parameter_of_another_name_receives_it_too():
    assert received({"later": {"x": X}}, {"later": {"input": X}})
    assert not received({"later": {"x": X}}, {"later": {"input": OTHER}})
    # An argument of the port alone is none of the reference's.
    assert received({"later": {"x": X}}, {"later": {"more": OTHER, "x": X}})
    assert not received({"later": {"y": OTHER}}, {"later": {"y": OTHER, "x": X}})


@pytest.mark.parametrize(("ours", "is_gap"), [(X, True), (OTHER, False)])
def test_a_call_of_the_reference_alone_whose_result_the_port_has_causes_no_failure(ours, is_gap):
    """The port makes the result by other code, and passes it on."""
    evidence, results = sides({"later": {"x": X}}, {"later": {"x": ours}})
    evidence = replace(evidence, absence=lambda path, kind: "stated")
    evidence.reference.tensors[RESULT] = X
    missing = TapJudgement(RESULT, "block", "Block", verdict(2.0), None)
    gap = TapJudgement(RESULT, "block", "Block", None, None, "the reference alone makes this call")
    later = made_tap("later", accumulated=verdict(2.0))
    assert without_spare_calls(evidence, results, (missing, later)) == ((gap if is_gap else missing), later)


def test_what_a_call_of_the_port_alone_gives_is_asked_of_the_port():
    """No call of the reference receives its result, whatever has its name there."""
    evidence, results = sides({"later": {"x": X}}, {"later": {"x": X}})
    evidence = replace(evidence, absence=lambda path, kind: "stated")
    results.tapped[RESULT] = torch.zeros(2)
    extra = TapJudgement(RESULT, "block", "Block", verdict(2.0), None)
    later = made_tap("later", accumulated=verdict(2.0))
    assert without_spare_calls(evidence, results, (extra, later)) == (extra, later)
