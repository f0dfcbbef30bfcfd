"""Which verdicts a tolerated error may change, and by which error."""

import dataclasses
import types

import pytest

from parity.verdict.tolerance import Allowance, Tolerated, tolerate
from tests.parity.judgements import tap, verdict

FAILED = verdict(2.0)
ERROR = FAILED.port.l2
TAPS = ("early", "block.first", "block.second", "block", "late")


def applied(errors, failed, taps=TAPS, places=TAPS):
    """The statuses by tap of failed verdicts with these tolerances, and the tolerated errors."""
    evidence = types.SimpleNamespace(
        reference=types.SimpleNamespace(tensors=dict.fromkeys(places)),
        tolerated=lambda name, path: errors.get(name, 0.0),
    )
    judged = [
        tap(name, kind=f"Kind of {name}", **dict.fromkeys(failed.get(name, ()), FAILED)) for name in taps
    ]
    after, tolerated = tolerate(evidence, judged)
    assert [(one.tap, one.path, one.kind) for one in after] == [
        (one.tap, one.path, one.kind) for one in judged
    ]
    failures = {
        one.tap: tuple(name for name, given in one.verdicts.items() if not given.passed)
        for one in after
        if not all(given.passed for given in one.verdicts.values())
    }
    return failures, tolerated, {one.tap: one for one in after}


@pytest.mark.parametrize(("error", "status"), [(0.0, "FAIL"), (ERROR / 2, "FAIL"), (ERROR, "PASS")])
def test_an_allowance_hides_an_error_of_its_size(error, status):
    after = Allowance(error).applied(FAILED)
    assert after.status == status
    if status == "PASS":
        assert (after.reason, after.min_detectable_error) == ("", error)
        assert after.tolerated == f"exceeds; the case tolerates {error:.2g}"


def test_an_error_of_zero_is_not_tolerated_by_default():
    exact = dataclasses.replace(FAILED, port=dataclasses.replace(FAILED.port, l2=0.0))
    assert Allowance(0.0).applied(exact) is exact


def test_a_carried_error_names_its_source():
    after = Allowance(ERROR, "early").applied(FAILED)
    assert after.tolerated == f"exceeds; the case tolerates {ERROR:.2g} at early, from where the error comes"


def test_what_needs_no_allowance_stays():
    passed = verdict(0.5)
    assert Allowance(1.0).applied(passed) is passed
    assert Allowance(1.0).applied(None) is None


def test_the_largest_of_the_errors_reaches_a_place():
    tolerated = Tolerated({"z": 0.1, "a": 0.3, "m": 0.2}, {"z": 0, "a": 1, "m": 2, "end": 3})
    assert tolerated.before(1) == Allowance(0.1, "z")
    assert tolerated.before(0) == Allowance()
    assert tolerated.behind("end") == tolerated.before(3) == Allowance(0.3, "a")
    assert tolerated.behind("a") == Allowance(0.1, "z")
    # An output is behind all modules.
    assert tolerated.behind("forward.output") == Allowance(0.3, "a")


def test_a_module_contains_the_errors_below_its_path():
    tolerated = Tolerated({"block.first": 0.1, "block.second": 0.2, "blocks.x": 0.9}, {})
    assert tolerated.inside("block") == Allowance(0.2, "block.second")
    assert tolerated.inside("block.first") == Allowance()


def test_an_error_travels_inside_the_model_and_into_what_contains_it():
    everywhere = dict.fromkeys(TAPS, ("isolated", "accumulated"))
    failures, tolerated, after = applied({"block.first": ERROR}, everywhere)
    assert failures == {
        "early": ("isolated", "accumulated"),
        "block.second": ("isolated",),
        "late": ("isolated",),
    }
    assert tolerated.errors == {"block.first": ERROR}
    assert after["block"].isolated.tolerated.endswith("at block.first, from where the error comes")
    assert after["late"].accumulated.tolerated.endswith("at block.first, from where the error comes")


def test_a_module_without_a_tolerance_is_no_source():
    failures, tolerated, _ = applied({"early": ERROR}, {"early": ("isolated",), "late": ("accumulated",)})
    assert failures == {}
    assert tolerated.errors == {"early": ERROR}


def test_a_tolerance_that_nothing_needs_does_not_travel():
    failures, tolerated, _ = applied({"early": ERROR}, {"late": ("accumulated",)})
    assert failures == {"late": ("accumulated",)}
    assert tolerated.errors == {}


def test_a_tap_that_the_reference_lacks_is_no_source():
    failures, tolerated, _ = applied({"extra": ERROR}, {"extra": ("accumulated",)}, ("extra", *TAPS))
    assert failures == {}
    assert tolerated.errors == {}
