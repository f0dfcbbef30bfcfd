"""How far one result lies from another: two norms and the factor common to all elements.

All are relative to the oracle and dimensionless. `parity.verdict.rule` says what they may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Distance:
    """A result's distance from the oracle.

    Attributes:
        l2: Euclidean norm of the difference over that of the oracle.
        largest: Largest absolute element of the difference over that of the oracle.
        gain: The part of the difference that is proportional to the oracle, with its sign.
    """

    l2: float
    largest: float
    gain: float

    def exceeds(self, limit: Distance) -> bool:
        """Whether any measure is beyond its limit."""
        return self.l2 > limit.l2 or self.largest > limit.largest or abs(self.gain) > limit.gain


@dataclass(frozen=True)
class Oracle:
    """The oracle's elements that count, (n,) float64, and what distances from it are relative to."""

    values: np.ndarray

    def __post_init__(self) -> None:
        largest = float(np.abs(self.values).max())
        # Scaled, so that squares neither overflow nor vanish.
        scaled = self.values / (largest or 1.0)
        square = float(scaled @ scaled)
        object.__setattr__(self, "largest", largest)
        object.__setattr__(self, "_scaled", scaled)
        object.__setattr__(self, "_square", square)

    def distance(self, result: np.ndarray) -> Distance:
        """How far a result, (n,) float64, lies from the oracle."""
        difference = result - self.values
        if self.largest == 0.0:
            # An all-zero oracle has no scale: any difference from it is infinitely wrong.
            wrong = math.inf if difference.any() else 0.0
            return Distance(wrong, wrong, 0.0)
        difference /= self.largest
        return Distance(
            l2=float(np.linalg.norm(difference)) / math.sqrt(self._square),
            largest=float(np.abs(difference).max()),
            gain=float(difference @ self._scaled) / self._square,
        )

    def crossing(self, result: np.ndarray, added: np.ndarray, limit: Distance) -> float:
        """The factor e at which ``result + e added``, (n,) each, first meets a limit, but for rounding.

        ``result`` is within all of them. Infinite where no e does.
        """
        if self.largest == 0.0 or not added.any():
            return math.inf
        off, added = (result - self.values) / self.largest, added / self.largest
        largest = np.full_like(off, math.inf)
        np.divide(limit.largest - off * np.sign(added), np.abs(added), out=largest, where=added != 0.0)
        # ||off + e added||^2 = (limit.l2 ||oracle||)^2
        squares, mixed = float(added @ added), float(off @ added)
        room = limit.l2 * limit.l2 * self._square - float(off @ off)
        l2 = (math.sqrt(max(0.0, mixed * mixed + squares * room)) - mixed) / squares
        gained, gain = float(added @ self._scaled), float(off @ self._scaled)
        beyond = limit.gain * self._square - math.copysign(1.0, gained) * gain
        return min(float(largest.min()), l2, beyond / abs(gained) if gained else math.inf)


def carrying_rows(values: np.ndarray, keep: np.ndarray) -> float:
    """How many rows carry a tensor's norm: 1 if a single one does, all if they are alike.

    A row is the last axis; in a tensor of one axis or none, an element. Only elements in `keep` count.
    """
    if values.ndim > 1:
        # Rows that are all padding add nothing; in long sequences they are most of them.
        some = keep.any(axis=-1)
        values, keep = values[some], keep[some]
    counted = np.where(keep, values, 0.0)
    # Scaled, so that fourth powers neither overflow nor vanish.
    squares = np.square(counted / (np.abs(counted).max() or 1.0))
    rows = squares.sum(axis=-1).ravel() if squares.ndim > 1 else squares.ravel()
    fourth = float(rows @ rows)
    return float(rows.sum()) ** 2 / fourth if fourth else 1.0
