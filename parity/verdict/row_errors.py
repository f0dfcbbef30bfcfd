"""The errors of port and reference by row: does a module round more than the reference's?

A module may stay within its limit and still round more: its limit allows four roundings of an operation and
the worst order of summation (`parity.verdict.rule`). Let a_i and b_i be the squared errors of port and
reference in row i, the last axis. Rows share no roundings. The factor is the ratio of the root mean squares,

    R = sqrt(A / B),    A = sum of a_i,    B = sum of b_i.

log R^2 is to first order a sum over rows of a_i / A - b_i / B, with the mean 0. Its variance is therefore

    s^2 = m / (m - 1) * sum of (a_i / A - b_i / B)^2,

and the interval is R * exp(+- t s / 2), with the quantile t of Student's distribution. Few rows may carry the
errors, hence m is the effective number of rows, the smaller of A^2 / sum of a_i^2 and B^2 / sum of b_i^2.

A module is noted if the whole interval is at or above `NOTED`: it rounds at least so much more, in all but
2.5 % of the modules at that very factor. The sums of several batches add up. A note is no failure.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np
from scipy.special import stdtrit

NOTED = 1.2
"""Smallest factor that is noted."""
CONFIDENCE = 0.95
"""Share of intervals that hold the true factor."""
FEWEST_ROWS = 8.0
"""Smallest effective number of rows with an interval: with fewer, the first-order variance is a guess."""


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Sums over rows of the squared errors of port and reference, a and b.

    Attributes:
        rows: Number of rows.
        port, reference: Sums of a, of b.
        port_squares, reference_squares, products: Sums of a^2, of b^2, of a * b.
    """

    rows: int
    port: float
    reference: float
    port_squares: float
    reference_squares: float
    products: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> RowErrors:
        """The sums of squared errors by row, (rows,) float64, of port and reference."""
        return cls(a.size, float(a.sum()), float(b.sum()), float(a @ a), float(b @ b), float(a @ b))

    def __add__(self, other: RowErrors) -> RowErrors:
        return RowErrors(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def factor(self) -> float:
        """The port's error over the reference's; 1 if both are exact, infinity if the reference alone is."""
        if self.reference == 0.0:
            return math.inf if self.port else 1.0
        return math.sqrt(self.port / self.reference)

    @property
    def effective_rows(self) -> float:
        """The effective number of rows that carry the errors; of the port alone if the reference is exact."""
        sums = ((self.port, self.port_squares), (self.reference, self.reference_squares))
        return min((total * total / squares for total, squares in sums if squares), default=0.0)

    def interval(self) -> tuple[float, float] | None:
        """The interval of the factor; None if too few rows carry the errors."""
        rows = self.effective_rows
        if rows < FEWEST_ROWS:
            return None
        if not (self.port and self.reference):
            return (self.factor, self.factor)
        a, b = self.port, self.reference
        spread = self.port_squares / a**2 - 2 * self.products / (a * b) + self.reference_squares / b**2
        deviation = math.sqrt(max(0.0, spread) * rows / (rows - 1))
        half = 0.5 * float(stdtrit(rows - 1, 0.5 + CONFIDENCE / 2)) * deviation
        return self.factor * math.exp(-half), self.factor * math.exp(half)

    @property
    def is_noted(self) -> bool:
        """Whether the port rounds more than the reference by `NOTED` or more, beyond chance."""
        interval = self.interval()
        return interval is not None and interval[0] >= NOTED

    def text(self) -> str:
        """The factor and its interval, in words."""
        if not self.port and not self.reference:
            return "rounds as little as the reference: both are exact"
        if self.reference == 0.0:
            return f"rounds where the reference is exact ({self.rows} rows)"
        interval = self.interval()
        if interval is None:
            return f"rounds {self.factor:.3g} times as much as the reference: too few rows to tell"
        low, high = interval
        return (
            f"rounds {self.factor:.3g} times as much as the reference "
            f"({low:.3g} to {high:.3g} at {CONFIDENCE:.0%}, {self.rows} rows)"
        )
