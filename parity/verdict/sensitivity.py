"""The smallest error that a check detects.

A limit states the allowed error; this module states the detected one. It multiplies the port's result by 1 +
e and by 1 - e, and finds the smallest e that fails the check by bisection. Among all errors of one size, a
common factor is the hardest to detect: its largest element is no larger than its Euclidean norm.

More rows
---------
The limit of the scale error falls with the number of rows, down to its lasting part
(`parity.verdict.bound.Bound.lasting`): roundings that all rows share. A correct port may have a scale error
anywhere within the lasting part, of either sign. An error e of the other sign then exceeds the limit only
from twice the lasting part on. So a check whose lasting part is above half of `INSENSITIVE_ABOVE` cannot
promise to detect it, with any number of rows and any correct port. It is insensitive by its nature. Every
other check becomes sensitive with enough rows.
"""

from __future__ import annotations

import math

import numpy as np

from parity.verdict.distances import Distance, Oracle

INSENSITIVE_ABOVE = 0.01
"""Relative error. A check that does not detect an error of this size is INSENSITIVE and is no PASS."""
MORE_ROWS = (4, 16, 64)
"""Rows of the further batches that a run draws for insensitive checks, in multiples of the typical batch."""
LARGEST = 1.0
SMALLEST = 2.0**-30
STEP = 1.01
"""Ratio of the result to the smallest detected error, at most."""
PROBE_STEP = STEP**0.49
"""Distance of a probe from the computed crossing, as a factor. Two probes are less than a `STEP` apart."""


def rows_can_help(lasting_limit: float) -> bool:
    """Whether a check with this lasting part of its limit detects `INSENSITIVE_ABOVE` with enough rows."""
    return 2.0 * lasting_limit <= INSENSITIVE_ABOVE


def min_detectable_error(oracle: Oracle, port: np.ndarray, limit: Distance) -> float:
    """The smallest relative error that is detected with either sign; infinity if none up to 1 is.

    Args:
        oracle: The compared elements of the oracle.
        port: The same elements of the port, (n,) float64, within the limit.
        limit: The limits of the distance.
    """
    return max(_detected_from(oracle, port, limit, sign) for sign in (1.0, -1.0))


def _detected_from(oracle: Oracle, port: np.ndarray, limit: Distance, sign: float) -> float:
    def is_detected(error: float) -> bool:
        return oracle.distance(port * (1.0 + sign * error)).exceeds(limit)

    missed, detected = SMALLEST, math.inf
    # The crossing of a limit is computed, then confirmed by measurement: two probes beside it replace nearly
    # all of the bisection.
    crossing = min(max(oracle.crossing(port, sign * port, limit), SMALLEST), LARGEST)
    for probe in (crossing / PROBE_STEP, crossing * PROBE_STEP, LARGEST):
        if missed < probe < detected and probe <= LARGEST:
            missed, detected = (missed, probe) if is_detected(probe) else (probe, detected)
    if detected > LARGEST:
        return math.inf
    while detected > STEP * missed:
        middle = math.sqrt(missed * detected)
        if is_detected(middle):
            detected = middle
        else:
            missed = middle
    return detected
