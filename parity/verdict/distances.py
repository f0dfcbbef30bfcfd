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

    def largest_of(self, other: Distance) -> Distance:
        """The larger one of each measure of two distances without signs."""
        return Distance(
            max(self.l2, other.l2),
            max(self.largest, other.largest),
            max(self.scale_error, other.scale_error),
        )

    def exceeds(self, limit: Distance) -> bool:
        """Whether any measure exceeds its limit."""
        return self.l2 > limit.l2 or self.largest > limit.largest or abs(self.scale_error) > limit.scale_error


@dataclass(frozen=True, slots=True)
class Oracle:
    """The compared elements of the oracle, (n,) float64, and the scales of relative distances.

    Attributes:
        values: The elements.
        unit: The reference's elements, which give the scale of an oracle of zeros; None for no scale.
        largest: Largest absolute element; 0 for an oracle of zeros.
    """

    values: np.ndarray
    unit: np.ndarray | None = None
    largest: float = field(init=False)
    _scale: float = field(init=False, repr=False)
    _scaled: np.ndarray = field(init=False, repr=False)
    _square: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        largest = largest_absolute(self.values)
        measure = self.values if largest or self.unit is None else self.unit
        scale = largest_absolute(measure)
        # Squares of the scaled elements neither overflow nor underflow.
        scaled = measure / (scale or 1.0)
        object.__setattr__(self, "largest", largest)
        object.__setattr__(self, "_scale", scale)
        object.__setattr__(self, "_scaled", scaled)
        object.__setattr__(self, "_square", float(scaled @ scaled))

    def distance(self, result: np.ndarray) -> Distance:
        """The distance of a result, (n,) float64, from the oracle."""
        return self.size(self.scaled(result - self.values))

    def distances(self, results: np.ndarray) -> list[Distance]:
        """The distances of K results, (K, n) float64, from the oracle."""
        return self._sizes(self.scaled(results - self.values))

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Values, (n,) float64, relative to the largest element of the oracle or the unit, unless it is 0."""
        return values / (self._scale or 1.0)

    def size(self, error: np.ndarray) -> Distance:
        """The distance of a result from its scaled error, (n,) float64."""
        return self._sizes(error[None])[0]

    def _sizes(self, errors: np.ndarray) -> list[Distance]:
        """The distances of K results from their scaled errors, (K, n) float64."""
        if self._scale == 0.0:
            # An oracle of zeros has no scale: every difference from it is infinitely large.
            infinities = [math.inf if error.any() else 0.0 for error in errors]
            return [Distance(infinite, infinite, 0.0) for infinite in infinities]
        norm = math.sqrt(self._square)
        # The sum turns -0.0 into 0.0.
        largest = np.maximum(errors.max(axis=1), -errors.min(axis=1)) + 0.0
        return [
            Distance(
                l2=math.sqrt(float(error @ error)) / norm,
                largest=size,
                scale_error=float(error @ self._scaled) / self._square if self.largest else 0.0,
            )
            for error, size in zip(errors, largest.tolist(), strict=True)
        ]

    def crossings(self, error: np.ndarray, added: np.ndarray, limit: Distance) -> tuple[float, float]:
        """The smallest e >= 0 at which ``error + e * added`` meets a limit, and ``error - e * added``.

        Args:
            error: Scaled error of a result within all limits, (n,) float64.
            added: Scaled values, (n,) float64.
            limit: The limits of the distance.

        Returns:
            Both factors up to rounding; infinity if no factor meets a limit.
        """
        if self.largest == 0.0 or not added.any():
            return math.inf, math.inf
        # ||error +- e added||^2 = (limit.l2 ||oracle||)^2
        squares, mixed = float(added @ added), float(error @ added)
        room = limit.l2 * limit.l2 * self._square - float(error @ error)
        root = math.sqrt(max(0.0, mixed * mixed + squares * room))
        l2 = (root - mixed) / squares, (root + mixed) / squares
        added_scale, scale = float(added @ self._scaled), float(error @ self._scaled)
        room, toward = limit.scale_error * self._square, math.copysign(1.0, added_scale) * scale
        size = abs(added_scale)
        of_scale = ((room - toward) / size, (room + toward) / size) if size else (math.inf, math.inf)
        sums = min(l2[0], of_scale[0]), min(l2[1], of_scale[1])
        # No single element can meet its limit before this factor.
        least = (limit.largest - largest_absolute(error)) / largest_absolute(added)
        if max(sums) < 0.999 * least:
            return sums
        # |error +- e added| = limit.largest, element by element
        bounds = np.copysign(limit.largest, added)
        with np.errstate(divide="ignore", invalid="ignore"):
            plus, minus = (float(np.fmin.reduce(room / added)) for room in (bounds - error, bounds + error))
        return min(plus, sums[0]), min(minus, sums[1])


def largest_absolute(values: np.ndarray) -> float:
    """The largest absolute element, without an array of absolute elements."""
    # The sum turns -0.0 into 0.0.
    return max(float(values.max()), -float(values.min())) + 0.0


class CarryingRows(NamedTuple):
    """The rows that carry a tensor's norm.

    Attributes:
        count: Effective number of different rows.
        repeats: Effective number of equal rows for each of them, at least 1.
        numbers: Of each row with a compared element; equal rows have the same number.
    """

    count: float
    repeats: float
    numbers: np.ndarray


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
        compared, counted = values[has_counted], counted[has_counted]
        compared[~counted] = 0.0
    else:
        compared = values[counted]
    if not compared.size:
        return CarryingRows(0.0, 1.0, np.zeros(0, dtype=np.int64))
    # Fourth powers of the scaled elements neither overflow nor underflow.
    squares = compared / (largest_absolute(compared) or 1.0)
    squares *= squares
    rows = squares.sum(axis=-1) if squares.ndim > 1 else squares
    del squares
    numbers = np.unique(_keys(compared), return_inverse=True)[1].ravel()
    count = _effective(np.bincount(numbers, weights=rows))
    return CarryingRows(count, max(1.0, _effective(rows) / count) if count else 1.0, numbers)


def _effective(squares: np.ndarray) -> float:
    """The effective number of terms of a sum of squares."""
    fourth = float(squares @ squares)
    return float(squares.sum()) ** 2 / fourth if fourth else 0.0


def error_rows(
    squares: np.ndarray, counted: np.ndarray, numbers: np.ndarray | None = None
) -> tuple[float, float]:
    """The effective numbers of rows that carry the Euclidean norm of an error, and its largest element.

    Both are (sum of s)^2 / (sum of s^2) over rows: of the squared errors v for the norm, and of v^4 for the
    largest element, which behaves as the 8-norm. Of 256 equal numbers, the two differ by a factor of 2.
    Equal rows have equal roundings: together they are one row, with the sum of their v for the norm, and
    their mean v for the largest element.

    Args:
        squares: Expected squared errors of the compared elements, (n,) float64.
        counted: Mask of the n compared elements in the tensor.
        numbers: `CarryingRows.numbers` of the result; None if all rows differ.
    """
    rows = sums_by_row(squares, row_starts(counted))
    rows = rows / (float(rows.max()) or 1.0)
    if numbers is None:
        return _effective(rows), _effective(rows**4)
    sums = np.bincount(numbers, weights=rows)
    return _effective(sums), _effective((sums / np.bincount(numbers)) ** 4)


def row_starts(counted: np.ndarray) -> np.ndarray | None:
    """Places among the compared elements where a row with any begins; None if each element is a row.

    Args:
        counted: Mask of the compared elements. A row is the last axis; of a tensor with at most one axis, an
            element.
    """
    if counted.ndim < 2:
        return None
    counts = counted.sum(axis=-1).ravel()
    lengths = counts[counts > 0]
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])


def sums_by_row(values: np.ndarray, starts: np.ndarray | None) -> np.ndarray:
    """Sums over the compared elements of each row with any.

    Args:
        values: The compared elements, (n,).
        starts: `row_starts` of their mask.
    """
    return values if starts is None else np.add.reduceat(values, starts)


def _keys(values: np.ndarray) -> np.ndarray:
    """A number for each row, the same for equal rows and different numbers for others."""
    if values.ndim < 2:
        return values.ravel()
    # Sums in a fixed order: a product of matrices may add equal rows in another one.
    return (values * np.sqrt(np.arange(2.0, values.shape[-1] + 2.0))).sum(axis=-1).ravel()


def compared_rows(counted: np.ndarray) -> int:
    """Number of rows with a compared element, as in `carrying_rows`."""
    return int((counted.any(axis=-1) if counted.ndim > 1 else counted).sum())
