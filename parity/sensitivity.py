"""The smallest error that a check would have noticed.

A limit says what is allowed, not what is seen. So the port's result is spoilt on purpose: all of it is
multiplied by 1 + e, in both directions, and the smallest e from which on the check fails is found by
bisection. Among errors of one size a common factor is the one that stands out least: its largest element
is no larger than its Euclidean norm.
"""

from __future__ import annotations

import math

import numpy as np

from parity.measures import Distance, Oracle

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
    crossing = min(max(_crossing(oracle, port, limit, sign), SMALLEST), LARGEST)
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


def _crossing(oracle: Oracle, port: np.ndarray, limit: Distance, sign: float) -> float:
    """The error at which the first measure meets its limit, but for rounding."""
    if oracle.largest == 0.0 or not port.any():
        return math.inf
    values = oracle.values / oracle.largest
    added, off = sign * port / oracle.largest, (port - oracle.values) / oracle.largest
    largest = np.full_like(off, math.inf)
    np.divide(limit.largest - off * np.sign(added), np.abs(added), out=largest, where=added != 0.0)
    # ||off + e added||^2 = (limit.l2 ||values||)^2
    squares, mixed, square = float(added @ added), float(off @ added), float(values @ values)
    room = limit.l2 * limit.l2 * square - float(off @ off)
    l2 = (math.sqrt(max(0.0, mixed * mixed + squares * room)) - mixed) / squares
    gained, gain = float(added @ values), float(off @ values)
    beyond = limit.gain * square - math.copysign(1.0, gained) * gain
    return min(float(largest.min()), l2, beyond / abs(gained) if gained else math.inf)
