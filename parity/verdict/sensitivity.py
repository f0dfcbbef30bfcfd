"""The smallest error that a check would have noticed.

A limit says what is allowed, not what is seen. So the port's result is spoilt on purpose: all of it is
multiplied by 1 + e, in both directions, and the smallest e from which on the check fails is found by
bisection. Among errors of one size a common factor is the one that stands out least: its largest element
is no larger than its Euclidean norm.
"""

from __future__ import annotations

import math

import numpy as np

from parity.verdict.distances import Distance, Oracle

BLIND = 0.01
"""A check that does not notice an error of this size says nothing about its module."""
LARGEST = 1.0
SMALLEST = 2.0**-30
STEP = 1.01
"""The result is at most this factor above the smallest error that is noticed."""
BESIDE = STEP**0.49
"""By how much looks lie beside a place that was computed; between two of them is less than a step."""


def smallest_noticed(oracle: Oracle, port: np.ndarray, limit: Distance) -> float:
    """The smallest relative error that is noticed whichever way it points; infinite if none up to 1 is.

    Args:
        oracle: The oracle's elements that count.
        port: The port's, (n,) float64, within the limit.
        limit: What each measure of the distance may be.
    """
    return max(_noticed_from(oracle, port, limit, sign) for sign in (1.0, -1.0))


def _noticed_from(oracle: Oracle, port: np.ndarray, limit: Distance, sign: float) -> float:
    def noticed(error: float) -> bool:
        return oracle.distance(port * (1.0 + sign * error)).exceeds(limit)

    missed, seen = SMALLEST, math.inf
    # Where a limit is crossed can be computed, and that it is crossed there is measured: two looks beside it
    # are nearly always all of the bisection.
    crossing = min(max(oracle.crossing(port, sign * port, limit), SMALLEST), LARGEST)
    for look in (crossing / BESIDE, crossing * BESIDE, LARGEST):
        if missed < look < seen and look <= LARGEST:
            missed, seen = (missed, look) if noticed(look) else (look, seen)
    if seen > LARGEST:
        return math.inf
    while seen > STEP * missed:
        middle = math.sqrt(missed * seen)
        if noticed(middle):
            seen = middle
        else:
            missed = middle
    return seen
