"""An error beyond rounding behind right modules is named at the argument whose small numbers differ."""

from dataclasses import replace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import half_of_digits
from parity.verdict.judgement import Diagnosis
from parity.verdict.small_numbers import among_small_numbers
from tests.parity.comparisons import FP32, evidence_with, results_with
from tests.parity.judgements import tap, verdict
from tests.parity.verdict.received_calls import capture

AMPLIFIED = Diagnosis("amplification", "block.inner", "an error grows")
LIMIT = half_of_digits(FP32.unit_roundoff)
LARGE, EDGE, ABOVE, SMALL = 0, 1, 2, 3
X = torch.tensor([-8.0, 8.0 * LIMIT, 16.0 * LIMIT, -(2.0**-20)])
"""A large number, the largest small one, a larger one, and one far below."""


def wrong(place=SMALL, numbers=X):
    """The numbers with another one at a place."""
    changed = numbers.clone()
    changed[place] *= 1.5
    return changed


def found(calls, error=1.0, unit=FP32.unit_roundoff, diagnosis=AMPLIFIED, parent="block", **changes):
    """The diagnosis of an error at "block.inner", behind calls by name with the `x` of both sides.

    `parent` is the module whose code makes the port's calls.
    """
    reference, port = (capture(*((call, {"x": x[side]}) for call, x in calls.items())) for side in (0, 1))
    port.arguments = {call: replace(own, parent=parent) for call, own in port.arguments.items()}
    evidence, results = evidence_with(), results_with(received=port)
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    failure = verdict(2.0)
    bound = replace(failure.bound, unit_roundoff=unit)
    failure = replace(failure, port=replace(failure.port, l2=error), bound=bound)
    taps = [tap("bias", "Module"), tap("block.inner", "Module", **{"accumulated": failure, **changes})]
    return among_small_numbers(evidence, results, taps, diagnosis)


def test_the_call_whose_small_numbers_differ_is_named():
    own = found({"block": (X, wrong())})
    assert (own.kind, own.tap, own.code, own.argument) == ("between", "block.inner", "block", "block(x)")
    assert own.text == (
        "block receives another x in its small numbers: 1 of 2 elements, all at the batch 3; "
        "every module passes on its own; the code of block makes the argument"
    )
    # The code of the entry is in no module.
    own = found({"block": (X, wrong())}, parent="")
    assert own.code == ""
    assert own.text.endswith("; the code of score makes the argument")


@pytest.mark.parametrize("scale", [1.0, 2.0**-30, 2.0**30])
def test_small_are_numbers_below_half_of_the_digits_of_the_largest(scale):
    x = scale * X
    assert found({"block": (x, wrong(SMALL, x))}).argument == "block(x)"
    assert found({"block": (x, wrong(EDGE, x))}).argument == "block(x)"
    assert found({"block": (x, wrong(ABOVE, x))}) is AMPLIFIED
    assert found({"block": (x, wrong(LARGE, x))}) is AMPLIFIED


def test_numbers_that_are_not_finite_are_neither_the_largest_nor_small():
    for value in (torch.inf, -torch.inf, torch.nan):
        x = torch.cat([X, torch.tensor([value])])
        assert found({"block": (x, wrong(SMALL, x))}).argument == "block(x)"
        assert found({"block": (x, wrong(ABOVE, x))}) is AMPLIFIED
    nothing = torch.full((4,), torch.inf)
    assert found({"block": (nothing, -nothing)}) is AMPLIFIED


def test_half_of_the_digits_are_those_of_the_tested_precision():
    x = X.bfloat16()
    unit = PRECISIONS["bf16"].unit_roundoff
    assert found({"block": (x, wrong(ABOVE, x))}, unit=unit).argument == "block(x)"
    assert found({"block": (x, wrong(LARGE, x))}, unit=unit) is AMPLIFIED


@pytest.mark.parametrize(("error", "told"), [(LIMIT, False), (1.001 * LIMIT, True)])
def test_rounding_may_be_the_cause_of_an_error_below_half_of_the_digits(error, told):
    assert (found({"block": (X, wrong())}, error) is not AMPLIFIED) is told


def test_other_diagnoses_stay():
    """A wrong module, or a wrong argument, is told; a result without a verdict has no error."""
    for diagnosis in (
        replace(AMPLIFIED, kind="module"),
        replace(AMPLIFIED, kind="between"),
        replace(AMPLIFIED, tap="elsewhere"),
    ):
        assert found({"block": (X, wrong())}, diagnosis=diagnosis) is diagnosis
    assert found({"block": (X, wrong())}, accumulated=None) is AMPLIFIED


def test_only_calls_around_the_failing_result_are_asked():
    assert found({"other": (X, wrong())}) is AMPLIFIED
    own = found({"other": (X, wrong()), "block": (X, X), "block.inner": (X, wrong())})
    assert own.argument == "block.inner(x)"
