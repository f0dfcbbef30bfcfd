"""Where another form of values ends; `test_api_turned` and `test_api_factors` have whole models."""

from types import SimpleNamespace

import pytest

from parity.base.precision import PRECISIONS
from parity.capture.arguments import Received
from parity.verdict.bound import bound_for
from parity.verdict.forms_of_values import _Surroundings
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement
from parity.verdict.rule import failure

WRONG = failure("wrong", bound_for(PRECISIONS["fp32"], 1))
RIGHT = SimpleNamespace(passed=True, min_detectable_error=1e-3)
INSIDE = {"block": "", "block.list.0": "block", "block.list.0.mix": "block.list.0"}
"""The caller of each module."""


def surroundings(wrong, right=(), callers=INSIDE):
    """The modules around calls, with taps that fail and taps that pass."""
    arguments = {call: Received(parent, 0, 0, ()) for call, parent in callers.items()}
    evidence = SimpleNamespace(reference=SimpleNamespace(arguments=arguments))
    taps = [
        TapJudgement(tap, tap, MODEL_OUTPUT if tap == "forward.output" else "Module", verdict, None)
        for verdict, names in ((WRONG, wrong), (RIGHT, right))
        for tap in names
    ]
    return _Surroundings(evidence, taps)


def contained(wrong, calls, right=(), callers=INSIDE):
    """Those calls whose form ends inside their caller."""
    return surroundings(wrong, right, callers).contained(calls)


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        # The caller is right, or no result of it is known and the one around it is right.
        (["block.list.0.mix"], ["block.list.0", "block", "forward.output"], True),
        (["block.list.0.mix"], ["block", "forward.output"], True),
        (["block.list.0.mix"], ["forward.output"], True),
        # The caller is wrong, and not in another order itself.
        (["block.list.0.mix", "block.list.0"], ["block", "forward.output"], False),
        (["block.list.0.mix", "block"], ["forward.output"], False),
        (["block.list.0.mix", "forward.output"], [], False),
        # An output behind a right caller is another matter.
        (["block.list.0.mix", "forward.output"], ["block.list.0"], True),
    ],
)
def test_a_form_ends_inside_the_caller(wrong, right, expected):
    assert contained(wrong, ["block.list.0.mix"], right) == ["block.list.0.mix"] * expected


def test_a_caller_in_another_form_hands_it_to_its_own_caller():
    both = ["block.list.0", "block.list.0.mix"]
    assert contained(both, both, ["block", "forward.output"]) == both
    assert contained([*both, "block"], both, ["forward.output"]) == []
    assert contained(both, ["block.list.0.mix"], ["block"]) == []


def test_a_call_that_only_one_side_records_is_left_out():
    assert contained(["other"], ["other"]) == []


def test_modules_inside_of_each_other_end_the_search():
    callers = {"a": "b", "b": "a"}
    assert contained([], ["a"], callers=callers) == ["a"]
    assert contained(["forward.output"], ["a"], callers=callers) == []


@pytest.mark.parametrize(
    ("factor", "detected"), [(4.0, True), (0.25, True), (-1.0, True), (1.0005, False), (0.9995, False)]
)
def test_a_factor_is_detected_by_the_first_right_result_around_it(factor, detected):
    both = ["block.list.0", "block.list.0.mix"]
    around = surroundings(both, ["block", "forward.output"])
    assert [around.detects(tap, factor) for tap in both] == [detected] * 2
    # Nothing that is judged lies around.
    assert not surroundings(both).detects("block.list.0.mix", factor)
