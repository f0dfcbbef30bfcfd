"""A wrong result of a call with axes in another order; `test_api_channels_last` has whole models."""

from dataclasses import replace

import pytest

from parity.verdict.forms_of_values import in_another_order
from parity.verdict.judgement import Diagnosis
from parity.verdict.standards import Standards
from tests.parity.verdict.formed import BIAS, X, judgements, sides, turned

FOUND = Diagnosis("module", "bias", "bias diverges on its own")
OFF = BIAS + 0.5


def told(x, bias, diagnosis=FOUND, wrong=("bias",), alone=("bias",), **changes):
    """What the diagnosis tells in addition; None if it stays."""
    evidence, results = sides(x, bias, valid={})
    found = in_another_order(evidence, replace(results, **changes), judgements(wrong, alone), diagnosis)
    if found is diagnosis:
        return None
    assert found == replace(diagnosis, text=found.text)
    assert found.text.startswith(f"{diagnosis.text}; ")
    return found.text.removeprefix(f"{diagnosis.text}; ")


def test_the_error_is_that_in_the_order_of_the_call():
    evidence, _ = sides(X, BIAS, valid={})
    reference = evidence.reference.tensors["bias"]
    verdict = Standards(evidence).judge("bias", evidence.oracle["bias"], reference, OFF, None)
    assert verdict.reason.startswith("relative L2 error ")
    words = (
        f"its arguments have their axes in another order inside the model; there, it has: {verdict.reason}"
    )
    assert told(turned(X), turned(OFF)) == words


@pytest.mark.parametrize("kind", ["between", "amplification", "check"])
def test_other_diagnoses_stay(kind):
    assert told(turned(X), turned(OFF), replace(FOUND, kind=kind)) is None


def test_the_diagnosis_of_another_tap_stays():
    for tap in ("block", "none"):
        assert told(turned(X), turned(OFF), replace(FOUND, tap=tap)) is None


def test_a_module_that_is_right_alone_or_inside_the_model_stays():
    assert told(turned(X), turned(OFF), alone=()) is None
    assert told(turned(X), turned(OFF), wrong=()) is None


def test_arguments_in_the_references_order_tell_nothing():
    assert told(X, turned(OFF)) is None
    assert told(X + 1, turned(OFF)) is None


def test_a_result_that_is_right_in_the_order_stays():
    assert told(turned(X), turned(BIAS)) is None


def test_a_call_in_a_form_or_without_a_result_stays():
    assert told(turned(X), turned(OFF), in_forms={"bias": "turned"}) is None
    assert told(turned(X), turned(OFF), tapped={}) is None
