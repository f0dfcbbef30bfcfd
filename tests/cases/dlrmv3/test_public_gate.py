"""MLPerf's gate for DLRMv3: three numbers with lower limits, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from cases.dlrmv3.public_gate import FRACTION, REFERENCE, missed, numbers
from parity.verdict.task_metrics.candidates import ACCURACY, AUC, NORMALIZED_ENTROPY

LIMITS = {NORMALIZED_ENTROPY: 0.86687 * 0.999, ACCURACY: 0.69651 * 0.999, AUC: 0.78663 * 0.999}
"""The limits that the public checker computes."""


def test_the_limits_are_the_public_ones():
    assert {name: FRACTION * number for name, number in REFERENCE.items()} == LIMITS
    assert missed(LIMITS) == ()


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_below_its_limit_fails(name):
    for less in (np.nextafter(LIMITS[name], 0), float("nan")):
        assert missed({**LIMITS, name: less}) == (name,)


def test_no_entropy_is_too_large():
    assert missed({**LIMITS, NORMALIZED_ENTROPY: 1e9}) == ()


def test_limits_follow_the_reference_of_the_run():
    own = {NORMALIZED_ENTROPY: 0.5, ACCURACY: 0.9, AUC: 0.95}
    assert missed(own, own) == ()
    assert missed(REFERENCE, own) == (ACCURACY, AUC)


def test_logits_in_place_of_probabilities_have_numbers():
    truth = np.array([1, 0, 3, 2])
    p = np.array([0.9, 0.2, 0.7, 0.6])
    logits = np.log(p / (1 - p))
    assert numbers(logits, truth)[AUC] == numbers(p, truth)[AUC] == 1.0
    assert np.isfinite(list(numbers(logits, truth).values())).all()
    assert numbers(3 * logits, truth)[NORMALIZED_ENTROPY] > numbers(p, truth)[NORMALIZED_ENTROPY]
