"""Notes on modules that are right on a run's inputs alone."""

import math

import pytest

from parity.base.precision import PRECISIONS
from parity.execution.record import MagnitudeRecord
from parity.runners.magnitudes import UNCHANGED
from parity.verdict.magnitudes import beyond_inputs
from tests.parity.judgements import tap, verdict

LOST = math.sqrt(PRECISIONS["fp32"].unit_roundoff)
TAPS = [tap("block.norm"), tap("block"), tap("wrong", isolated=verdict(2.0))]


def trial(name="block", **changes):
    facts = {
        "tap": name,
        "kind": "half its inputs",
        "port": 0.0,
        "reference": 0.0,
        "broken": 0,
        "compared": 9,
    }
    return MagnitudeRecord(**(facts | changes))


def noted(*trials, unchanged=0.0):
    base = [trial(name, kind=UNCHANGED, port=unchanged) for name in {own.tap for own in trials}]
    return beyond_inputs(PRECISIONS["fp32"], [*base, *trials], TAPS)


@pytest.mark.parametrize(
    ("errors", "is_noted"),
    [
        ({"port": 1.01 * LOST}, True),
        ({"port": LOST}, False),
        ({"port": 8.01 * LOST, "reference": LOST}, True),
        ({"port": 7.99 * LOST, "reference": LOST}, False),
        ({"port": 100 * LOST, "reference": 1.01 * LOST}, False),
        ({"broken": 1, "reference": LOST}, True),
        ({"broken": 1, "reference": 1.01 * LOST}, False),
    ],
)
def test_half_of_the_digits_are_lost_that_the_reference_keeps(errors, is_noted):
    assert bool(noted(trial(**errors))) is is_noted


def test_the_words():
    (text,) = noted(trial(port=0.25, reference=1e-7))["block"]
    error = "its relative error is 0.25, and the reference's error is 1e-07"
    assert text == f"beyond the inputs: with half its inputs {error}"
    (text,) = noted(trial(broken=2))["block"]
    error = "2 of 9 elements are infinite or NaN, and the reference's error is 0"
    assert text == f"beyond the inputs: with half its inputs {error}"


def test_the_innermost_module_and_its_first_trial_are_named():
    inner, outer = trial("block.norm", port=1.0), trial(port=1.0)
    for trials in ((inner, outer), (outer, inner)):
        assert list(noted(*trials)) == ["block.norm"]
    first = noted(trial(port=0.5), trial(port=0.75))["block"]
    assert "0.5" in first[0]


def test_a_wrong_module_has_no_such_note():
    assert noted(trial("wrong", port=1.0)) == {}


def test_a_result_of_another_form_has_no_note():
    assert noted(trial(port=1.0), unchanged=LOST)
    assert noted(trial(port=1.0), unchanged=1.01 * LOST) == {}
    assert beyond_inputs(PRECISIONS["fp32"], [trial(port=1.0)], TAPS) == {}
