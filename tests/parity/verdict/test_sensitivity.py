"""The smallest detected error, of an exact port and at the ends of the search."""

import math

import numpy as np
import pytest

from parity.verdict.distances import Distance, Oracle
from parity.verdict.sensitivity import LARGEST, SMALLEST, STEP, min_detectable_error, rows_can_help

INF = math.inf
VALUES = np.array([1.0, -2.0, 3.0])


def _detected(scale, port=VALUES, l2=INF):
    """The smallest error that a limit of the scale error detects, or of the norm."""
    return min_detectable_error(Oracle(VALUES), port, Distance(l2, INF, scale))


@pytest.mark.parametrize("scale", [1e-6, 3e-4, 0.01, 0.3, 0.9])
def test_of_an_exact_port_it_is_the_limit(scale):
    # Detected is the probe above the crossing: STEP ** 0.49 times the crossing.
    assert _detected(scale) == pytest.approx(scale * STEP**0.49, rel=1e-9)
    assert _detected(INF, l2=scale) == pytest.approx(scale * STEP**0.49, rel=1e-9)


@pytest.mark.parametrize("offset", [0.2, -0.2])
def test_the_sign_that_is_harder_to_detect_counts(offset):
    """A port that is 0.2 off is as far from one limit as 0.8 and from the other as 1.2, of its own size."""
    port = VALUES * (1 + offset * 0.01)
    assert _detected(0.01, port) == pytest.approx(0.012 / (1 + offset * 0.01) * STEP**0.49, rel=1e-6)


def test_the_ends_of_the_search():
    assert _detected(INF) == INF
    assert _detected(1.0 + 1e-9) == INF
    # Between the last probe and 1 the largest error itself is the probe.
    assert LARGEST / STEP < _detected(0.999) <= LARGEST
    # Below the smallest error the search ends at the first step above it.
    assert SMALLEST < _detected(1e-12) <= SMALLEST * STEP
    assert SMALLEST < _detected(SMALLEST) <= SMALLEST * STEP


def test_a_wrong_crossing_is_corrected_by_bisection(monkeypatch):
    for wrong in (1e-5, 0.05, 2.0, math.inf):
        monkeypatch.setattr(Oracle, "crossing", lambda *_, wrong=wrong: wrong)
        assert 0.01 <= _detected(0.01) <= 0.01 * STEP


def test_more_rows_help_up_to_half_of_the_threshold():
    assert [rows_can_help(lasting) for lasting in (0.0, 0.005, 0.00501)] == [True, True, False]
