"""What luck may do to an error that was measured on few rows.

Squared errors of m rows, each an independent draw, have m degrees of freedom. If two programs' errors are
of the same size, their squares stand in a ratio that follows an F distribution: m degrees of freedom above,
and below it m for each draw that the size was measured on. The square root of its quantile at `FALSE_ALARM`
is the factor that luck alone exceeds in no more than that share of all checks. It tends to 1 where rows are
many, and is 6,366 where two single numbers are compared, hence the draws of `parity.runners.oracle.rounding`.
A factor common to all rows is one number: it has one degree of freedom.

Errors of one row may be correlated, since a wrong number that goes into a row reaches all of it, and a row
that is small adds little; m is therefore `parity.verdict.distances.carrying_rows`, which is never more than
the rows
that there are. The largest element's error is treated like the norm. With one row of one element they are
the same number; with many, the largest of many roundings, which are bounded, varies no more than their norm
does.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from parity.verdict.distances import Distance, Oracle

FALSE_ALARM = 1e-4
"""The share of right results that one measure may refuse, of a port as inexact as the verdict's k allows.

k is itself the worst case: every operation of the port in four roundings, in the worst order, where the
reference has one. A port whose roundings are as many as the reference's is k >= 2 times as far from the
limit. With normal errors and many draws its share is that of 2 * 3.9 standard deviations, 1e-14; at 1.4
times the reference's errors it is 4e-8. That is 0.004 false alarms in 1,000 runs of 100 measures each.
"""


@dataclass(frozen=True)
class Drawn:
    """Errors of draws: how many there are, and the roots of their mean squares."""

    count: int = 0
    l2: float = 0.0
    largest: float = 0.0
    gain: float = 0.0


class Draws:
    """What rounding alone gave the oracle at one tap (`parity.runners.oracle.rounding`).

    Args:
        results: (K, ...), for a tap of shape (...).
    """

    def __init__(self, results: torch.Tensor) -> None:
        self._results = results.numpy()
        self._known: dict[bytes, Drawn] = {}

    def errors(self, oracle: Oracle, keep: np.ndarray) -> Drawn:
        """Their distances from the oracle, over the elements in `keep`, which are the oracle's."""
        key = np.packbits(keep).tobytes()
        if key not in self._known:
            errors = [oracle.distance(result[keep]) for result in self._results]
            self._known[key] = Drawn(
                len(errors),
                _root_mean_square([error.l2 for error in errors]),
                _root_mean_square([error.largest for error in errors]),
                _root_mean_square([error.gain for error in errors]),
            )
        return self._known[key]


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


@functools.lru_cache(maxsize=4096)
def luck(above: float, below: float) -> float:
    """By what factor an error of `above` degrees of freedom may exceed one of `below` by luck."""
    # The F distribution's quantile: `scipy.stats` has it too, but takes half a second to import.
    return math.sqrt(float(special.fdtri(above, below, 1.0 - FALSE_ALARM)))


def expected(reference: Distance, rows: float, draws: Drawn) -> Distance:
    """What a program with errors like the reference's may have, from the reference's own and from draws.

    Args:
        reference: The reference's error.
        rows: How many rows carry the result.
        draws: More errors of the same kind, if there are any.

    With draws the reference's own counts as one of them. It is never taken for less than it is, since it
    may have sources that no draw knows.
    """
    below = rows * (draws.count + 1)

    def pooled(own: float, others: float) -> float:
        return math.sqrt((own * own + draws.count * others * others) / (draws.count + 1))

    l2, largest = pooled(reference.l2, draws.l2), pooled(reference.largest, draws.largest)
    factor = luck(rows, below)
    # By independent rows, and as it was measured: either holds, and which is the closer one depends.
    common = luck(1.0, below) * l2 / math.sqrt(rows)
    if draws.count:
        common = min(common, luck(1.0, draws.count + 1) * pooled(reference.gain, draws.gain))
    return Distance(
        l2=max(reference.l2, factor * l2),
        largest=max(reference.largest, factor * largest),
        gain=max(abs(reference.gain), common),
    )
