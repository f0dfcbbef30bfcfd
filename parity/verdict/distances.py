"""Distances of a result from the oracle: two norms and the scale error.

All distances are relative to the oracle and dimensionless. `parity.verdict.rule` defines their limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of a result from the oracle.

    Attributes:
        l2: Euclidean norm of the difference, relative to the norm of the oracle.
        largest: Largest absolute element of the difference, relative to the oracle's largest element.
        scale_error: Component of the difference along the oracle, <p - o, o> / <o, o>, with its sign. A
            result of (1 + e) times the oracle has the scale error e.
    """

    l2: float
    largest: float
    scale_error: float

    def exceeds(self, limit: Distance) -> bool:
        """Whether any measure exceeds its limit."""
        return self.l2 > limit.l2 or self.largest > limit.largest or abs(self.scale_error) > limit.scale_error


@dataclass(frozen=True, slots=True)
class Oracle:
    """The compared elements of the oracle, (n,) float64, and the scales of relative distances.

    Attributes:
        values: The elements.
        largest: Largest absolute element; 0 for an oracle of zeros.
    """

    values: np.ndarray
    largest: float = field(init=False)
    _scaled: np.ndarray = field(init=False, repr=False)
    _square: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        largest = largest_absolute(self.values)
        # Squares of the scaled elements neither overflow nor underflow.
        scaled = self.values / (largest or 1.0)
        object.__setattr__(self, "largest", largest)
        object.__setattr__(self, "_scaled", scaled)
        object.__setattr__(self, "_square", float(scaled @ scaled))

    def distance(self, result: np.ndarray) -> Distance:
        """The distance of a result, (n,) float64, from the oracle."""
        difference = result - self.values
        if self.largest == 0.0:
            # An oracle of zeros has no scale: every difference from it is infinitely large.
            error = math.inf if difference.any() else 0.0
            return Distance(error, error, 0.0)
        difference /= self.largest
        return Distance(
            l2=float(np.linalg.norm(difference)) / math.sqrt(self._square),
            largest=largest_absolute(difference),
            scale_error=float(difference @ self._scaled) / self._square,
        )

    def crossing(self, result: np.ndarray, added: np.ndarray, limit: Distance) -> float:
        """The smallest e >= 0 at which ``result + e * added`` meets a limit, up to rounding.

        Args:
            result: (n,) float64, within all limits.
            added: (n,) float64.
            limit: The limits of the distance.

        Returns:
            The factor e; infinity if no factor meets a limit.
        """
        if self.largest == 0.0 or not added.any():
            return math.inf
        off, added = result - self.values, added / self.largest
        off /= self.largest
        # |off + e added| = limit.largest, element by element
        largest = np.copysign(limit.largest, added)
        largest -= off
        with np.errstate(divide="ignore", invalid="ignore"):
            largest /= added
        # ||off + e added||^2 = (limit.l2 ||oracle||)^2
        squares, mixed = float(added @ added), float(off @ added)
        room = limit.l2 * limit.l2 * self._square - float(off @ off)
        l2 = (math.sqrt(max(0.0, mixed * mixed + squares * room)) - mixed) / squares
        added_scale, scale = float(added @ self._scaled), float(off @ self._scaled)
        scale_room = limit.scale_error * self._square - math.copysign(1.0, added_scale) * scale
        return min(
            float(np.fmin.reduce(largest)), l2, scale_room / abs(added_scale) if added_scale else math.inf
        )


def largest_absolute(values: np.ndarray) -> float:
    """The largest absolute element, without an array of absolute elements."""
    # The sum turns -0.0 into 0.0.
    return max(float(values.max()), -float(values.min())) + 0.0


class CarryingRows(NamedTuple):
    """The rows that carry a tensor's norm.

    Attributes:
        count: Effective number of different rows.
        repeats: Effective number of equal rows for each of them, at least 1.
    """

    count: float
    repeats: float


def carrying_rows(values: np.ndarray, counted: np.ndarray) -> CarryingRows:
    """The effective number of rows that carry a tensor's norm.

    It is (sum of s)^2 / (sum of s^2) for the squared norms s of different rows. It is 1 if one row holds the
    whole norm, the number of rows if all rows have the same norm, and 0 if all are 0. Equal rows have equal
    roundings, so together they are one row.

    Args:
        values: Any shape. A row is the last axis; of a tensor with at most one axis, an element.
        counted: Boolean mask of the compared elements, the same shape.
    """
    if values.ndim > 1:
        # Rows of padding add nothing; in long sequences they are the majority.
        has_counted = counted.any(axis=-1)
        values, counted = values[has_counted], counted[has_counted]
    compared = values if counted.all() else np.where(counted, values, 0.0)
    # Fourth powers of the scaled elements neither overflow nor underflow.
    squares = np.square(compared / (largest_absolute(compared) or 1.0))
    rows = squares.sum(axis=-1).ravel() if squares.ndim > 1 else squares.ravel()
    different = np.unique(_keys(compared), return_inverse=True)[1].ravel()
    count = _effective(np.bincount(different, weights=rows))
    return CarryingRows(count, max(1.0, _effective(rows) / count) if count else 1.0)


def _effective(squares: np.ndarray) -> float:
    """The effective number of terms of a sum of squares."""
    fourth = float(squares @ squares)
    return float(squares.sum()) ** 2 / fourth if fourth else 0.0


def error_rows(squares: np.ndarray, counted: np.ndarray) -> tuple[float, float]:
    """The effective numbers of rows that carry the Euclidean norm of an error, and its largest element.

    Both are (sum of s)^2 / (sum of s^2) over rows: of the squared errors v for the norm, and of v^4 for the
    largest element, which behaves as the 8-norm. Of 256 equal numbers, the two differ by a factor of 2.

    Args:
        squares: Expected squared errors of the compared elements, (n,) float64.
        counted: Mask of the n compared elements in the tensor.
    """
    rows = sums_by_row(squares, counted)
    rows = rows / (float(rows.max()) or 1.0)
    return _effective(rows), _effective(rows**4)


def sums_by_row(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Sums over the compared elements of each row with any.

    Args:
        values: The compared elements, (n,).
        counted: Their mask in the tensor. A row is the last axis; of a tensor with at most one axis, an
            element.
    """
    if counted.ndim < 2:
        return values
    counts = counted.sum(axis=-1).ravel()
    lengths = counts[counts > 0]
    return np.add.reduceat(values, np.concatenate([[0], np.cumsum(lengths)[:-1]]))


def _keys(values: np.ndarray) -> np.ndarray:
    """A number for each row, the same for equal rows and different numbers for others."""
    if values.ndim < 2:
        return values.ravel()
    # Sums in a fixed order: a product of matrices may add equal rows in another one.
    return (values * np.sqrt(np.arange(2.0, values.shape[-1] + 2.0))).sum(axis=-1).ravel()


def compared_rows(counted: np.ndarray) -> int:
    """Number of rows with a compared element, as in `carrying_rows`."""
    return int((counted.any(axis=-1) if counted.ndim > 1 else counted).sum())
