"""Modules that run inside the model alone, and errors of arguments that a case tolerates."""

from dataclasses import replace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.arguments import argument_views, judge_arguments, other_form
from parity.verdict.evidence import Evidence, Results
from parity.verdict.tolerance import Tolerated
from tests.parity.verdict.received_calls import capture, tensor

CALL = "block@1"
X, MASK = tensor(4, 3), torch.ones(4, 3, dtype=torch.bool)
MODULE = ModuleCall("block", CALL, "Block", [], {}, (f"{CALL}[0]", f"{CALL}[1]"))


def evidence_of(reference, **fields):
    return Evidence(PRECISIONS["fp32"], "forward", reference, {}, {}, {}, {}, {}, 4, **fields)


def form(theirs, ours, problems=(CALL,), taps=(f"{CALL}[1]",), facts=({}, {}), called=True):
    """The form of a call's arguments on both sides."""
    reference, port = (
        capture((CALL, values, fact)) for values, fact in zip((theirs, ours), facts, strict=True)
    )
    if not called:
        port.arguments.clear()
    results = Results(
        {},
        tapped=dict.fromkeys(taps, X),
        isolated_problems=dict.fromkeys(problems, "ValueError"),
        received=port,
    )
    return other_form(evidence_of(reference), results, MODULE)


# The reference's arguments, the port's, and the form.
FORMS = {
    "equal": ({"x": X, "mask": MASK}, {"x": X, "mask": MASK}, ""),
    # Values are no form, of integers and booleans either.
    "other values": ({"x": X, "mask": MASK}, {"x": 2 * X, "mask": ~MASK}, ""),
    "numbers for booleans": (
        {"x": X, "mask": MASK.float()},
        {"x": X, "mask": MASK},
        "mask: bool in place of float32",
    ),
    "another shape": (
        {"x": X, "mask": MASK},
        {"x": X, "mask": MASK[:2]},
        "mask: shape (2, 3) in place of (4, 3)",
    ),
    "the first of two": (
        {"x": X, "mask": MASK},
        {"x": X[:2], "mask": MASK[:2]},
        "x: shape (2, 3) in place of (4, 3)",
    ),
    "no such argument": ({"x": X, "mask": MASK}, {"x": X}, "mask: the port's module has no such argument"),
    "a further argument": (
        {"x": X},
        {"x": X, "scale": 2.0},
        "scale: the reference's module has no such argument",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_modules_arguments(name):
    theirs, ours, expected = FORMS[name]
    assert form(theirs, ours) == expected


def test_a_module_that_fails_alone_has_a_form_of_another_shape_alone():
    def of(ours):
        reference, port = capture((CALL, {"x": X, "mask": MASK})), capture((CALL, ours))
        results = Results({}, tapped={f"{CALL}[0]": X}, received=port)
        return [other_form(evidence_of(reference), results, MODULE, fails) for fails in (True, False)]

    assert of({"x": X[:2], "mask": MASK}) == ["x: shape (2, 3) in place of (4, 3)", ""]
    # It could run with these.
    assert of({"x": X, "mask": MASK.float()}) == ["", ""]
    assert of({"x": X}) == ["", ""]
    assert of({"x": 2 * X, "mask": ~MASK}) == ["", ""]
    # Behind another difference.
    assert of({"x": X.half(), "mask": MASK[:2]})[0] == "mask: shape (2, 3) in place of (4, 3)"


def test_a_module_that_runs_alone_with_another_shape_is_judged_alone():
    reference, port = capture((CALL, {"x": X})), capture((CALL, {"x": X[:2]}))
    results = Results({}, tapped={f"{CALL}[0]": X}, received=port)
    assert other_form(evidence_of(reference), results, MODULE) == ""


def test_another_name_of_an_argument_is_a_form():
    facts = ({"origins": {"x": "embedding"}}, {"origins": {"states": "embedding"}})
    assert form({"x": X}, {"states": X}, facts=facts) == "x has the name states"


def test_a_module_that_runs_alone_or_gives_no_result_has_no_form():
    sides = {"mask": MASK.float()}, {"mask": MASK}
    assert form(*sides) == "mask: bool in place of float32"
    # It runs alone; it has no result inside the model; the port never calls it.
    assert form(*sides, problems=("block",)) == ""
    assert form(*sides, taps=("block[0]",)) == ""
    assert form(*sides, called=False) == ""
    # One of several results is enough.
    assert form(*sides, taps=(f"{CALL}[0]", "other")) == "mask: bool in place of float32"


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({"x": X[None]}, "x: shape (1, 4, 3) in place of (4, 3)"),
        # Such a tensor is compared with merged axes, and may be no argument of the module.
        ({"x": X.reshape(2, 2, 3)}, "x: shape (2, 2, 3) in place of (4, 3)"),
        ({"x": 2.0}, "x: 2.0 in place of a tensor"),
        ({"x": X}, ""),
        ({"x": 2 * X}, ""),
        ({"x": X.half()}, "x: float16 in place of float32"),
    ],
)
def test_a_call_that_the_port_joins_with_another_one_has_the_form_of_the_joined_call(ours, expected):
    reference, port = capture((CALL, {"x": X})), capture(("head", {"x": X[:1]}), ("block", ours))
    tapped = {f"{call}[{place}]": X for call in ("block", "head") for place in (0, 1)}
    results = Results({}, tapped=tapped, isolated_problems={CALL: ""}, received=port)
    assert other_form(evidence_of(reference), results, MODULE) == expected
    # Without an error, the call itself is missing.
    assert other_form(evidence_of(reference), replace(results, isolated_problems={}), MODULE) == ""
    appending = replace(MODULE, tap=f"append:{CALL}", outputs=(f"append:{CALL}[0]",))
    problems = {appending.tap: ""}
    evidence = evidence_of(capture((appending.tap, {"x": X})))
    assert other_form(evidence, replace(results, isolated_problems=problems), appending) == ""


class Turned:
    """Two axes in the other order."""

    def of(self, port, reference):
        return port.T


class Halved:
    """A factor of 2."""

    def of(self, port, reference):
        return port / 2


SQUARE = tensor(4, 4)


def views(theirs, ours, facts=({}, {})):
    """The names of the views in which the port's arguments are right; None is a side without the call."""
    calls = [
        [] if values is None else [(CALL, values, fact)]
        for values, fact in zip((theirs, ours), facts, strict=True)
    ]
    reference, port = (capture(*call) for call in calls)
    found = argument_views(evidence_of(reference), Results({}, received=port), CALL, [Turned(), Halved()])
    return [type(view).__name__ for view in found]


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ({"x": SQUARE}, {"x": SQUARE.T}, ["Turned"]),
        ({"x": SQUARE}, {"x": 2 * SQUARE}, ["Halved"]),
        # A right argument needs no view, and all wrong ones have the same.
        ({"x": SQUARE}, {"x": SQUARE}, []),
        ({"mask": MASK, "x": SQUARE}, {"mask": MASK, "x": SQUARE.T}, ["Turned"]),
        ({"x": SQUARE, "y": X}, {"x": SQUARE.T, "y": X.T}, ["Turned"]),
        ({"x": SQUARE, "y": X}, {"x": SQUARE.T, "y": 2 * X}, []),
        # Integers alone show no form of values.
        ({"mask": MASK}, {"mask": MASK.T}, []),
        ({"mask": MASK, "x": SQUARE}, {"mask": MASK.T, "x": SQUARE.T}, ["Turned"]),
        # A wrong constant or no tensor is wrong in each view; another signature is no value.
        ({"x": SQUARE, "size": 2}, {"x": SQUARE.T, "size": 3}, []),
        ({"x": SQUARE, "y": X}, {"x": SQUARE.T, "y": None}, []),
        ({"x": SQUARE, "y": X}, {"x": SQUARE.T}, ["Turned"]),
        ({"x": SQUARE}, {"x": SQUARE.T, "scale": 2.0}, ["Turned"]),
        ({"scale": 2.0, "x": SQUARE}, {"x": SQUARE.T}, ["Turned"]),
        ({"x": SQUARE}, None, []),
        (None, {"x": SQUARE}, []),
    ],
)
def test_the_views_in_which_a_call_receives_the_reference_s_arguments(theirs, ours, expected):
    assert views(theirs, ours) == expected


def test_an_argument_of_the_reference_s_origin_may_have_another_form():
    facts = ({"origins": {"x": "before"}},) * 2
    assert views({"x": SQUARE}, {"x": SQUARE.T}, facts=facts) == ["Turned"]


def test_a_view_is_right_within_the_limit_of_an_argument():
    reference, port = capture((CALL, {"x": SQUARE})), capture((CALL, {"x": SQUARE.T * (1 + 1e-7)}))
    exact = capture((CALL, {"x": SQUARE.double() * (1 - 1e-7)}))
    evidence = evidence_of(reference, oracle_received=exact)
    assert list(argument_views(evidence, Results({}, received=port), CALL, [Turned()]))
    # An argument within it needs no view.
    sides = [{"x": SQUARE, "y": X}, {"x": SQUARE.T, "y": X * (1 + 1e-7)}]
    reference, port = (capture((CALL, values)) for values in sides)
    exact = capture((CALL, {"x": SQUARE.double(), "y": X.double() * (1 - 1e-7)}))
    evidence = evidence_of(reference, oracle_received=exact)
    assert list(argument_views(evidence, Results({}, received=port), CALL, [Turned()]))


def test_a_call_that_the_reference_never_makes_has_no_form():
    results = Results({}, {f"{CALL}[0]": X}, isolated_problems={CALL: ""}, received=capture((CALL, {"x": X})))
    assert other_form(evidence_of(Capture()), results, MODULE) == ""


ORACLE = X.double()
"""The reference's argument is exact."""


def is_told(error, errors, finished=2, own=0.0):
    """Whether a relative error of an argument is told, behind taps whose errors are tolerated."""
    reference = capture((CALL, {"x": X}, {"finished": finished}), tensors=("first", "second", "third"))
    port = capture((CALL, {"x": X * (1 + error)}))
    asked = []

    def tolerated(tap, path):
        asked.append((tap, path))
        return own

    evidence = evidence_of(reference, oracle_received=capture((CALL, {"x": ORACLE})), tolerated=tolerated)
    places = {"first": 0, "second": 1, "third": 2}
    calls = judge_arguments(
        evidence, Results({}, received=port), 9, True, lambda _: None, Tolerated(errors, places)
    )
    assert set(asked) <= {(CALL, "block")}
    return bool(calls)


def test_an_error_up_to_a_tolerated_one_before_the_call_is_not_told():
    assert is_told(0.01, {})
    assert not is_told(0.01, {"first": 0.02})
    assert not is_told(1.0, {"first": 1.0})
    assert is_told(0.03, {"first": 0.02})
    assert not is_told(0.03, {"first": 0.02, "second": 0.04})
    # A module that finishes behind the call brings no error into it.
    assert is_told(0.03, {"first": 0.02, "third": 0.04})
    assert is_told(0.01, {"third": 0.04})


def test_the_tolerance_of_the_call_itself_counts_behind_one_that_carries():
    assert not is_told(0.03, {"first": 0.02}, own=0.04)
    # Without an error before the call, its own tolerance is for its results.
    assert is_told(0.03, {}, own=0.04)
    assert is_told(0.05, {"first": 0.02}, own=0.04)


def test_the_tap_whose_tolerated_error_may_reach_a_wrong_argument_is_told():
    sides = [
        capture((CALL, {"mask": mask}, {"finished": 2}), tensors=("first", "second", "third"))
        for mask in (MASK, ~MASK)
    ]
    evidence, results = evidence_of(sides[0]), Results({}, received=sides[1])
    places = {"first": 0, "second": 1, "third": 2}
    for errors, expected in (({"first": 0.02, "third": 0.5}, "first"), ({"third": 0.5}, ""), ({}, "")):
        tolerated = Tolerated(errors, places)
        (call,) = judge_arguments(evidence, results, 9, True, lambda _: None, tolerated)
        assert call.behind == expected
