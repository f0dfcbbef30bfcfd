"""The bound of an error, as `parity.verdict.rule` derives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parity.base.precision import PRECISIONS, Precision
from parity.verdict.distances import Distance

ROUNDINGS_PER_OPERATION = 4
"""Largest number of roundings that either program spends on one mathematical operation."""


def half_of_digits(unit_roundoff: float) -> float:
    """The relative error that loses half of the digits: rounding is rarely the cause of a larger one.

    It selects words and places of a failure, and no verdict.
    """
    return math.sqrt(unit_roundoff)


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound `err_port^2 <= (k * err)^2 + floor^2` of an error.

    Attributes:
        k: Factor on the expected error.
        floor: Relative error that is allowed beside an exact reference.
        longest_sum: Terms of the longest sum; 0 if there is no arithmetic.
        unit_roundoff: Unit round-off of the tested precision.
    """

    k: float
    floor: float
    longest_sum: int
    unit_roundoff: float

    def limit(self, expected: Distance, rows: float) -> Distance:
        """The largest error that the port may have.

        Args:
            expected: `parity.verdict.sampling_error.expected_error` of the reference.
            rows: Number of rows that carry the result.
        """
        return Distance(
            l2=math.hypot(self.k * expected.l2, self.floor),
            largest=math.hypot(self.k * expected.largest, self.floor),
            scale_error=math.hypot(
                self.k * expected.scale_error, self.floor / math.sqrt(rows), self._constant
            ),
        )

    def lasting(self, shared: float, is_of_batch: bool = False) -> float:
        """The part of the scale error's limit that no number of rows lowers.

        Args:
            shared: `parity.verdict.sampling_error.shared_scale_error` of the reference.
            is_of_batch: Whether the result is one row of the whole batch: nothing averages its roundings.
        """
        return math.hypot(self.k * shared, self.floor if is_of_batch else self._constant)

    @property
    def _constant(self) -> float:
        """The share of the scale error's limit for roundings of constants, which are common to all rows."""
        return self.floor / math.sqrt(ROUNDINGS_PER_OPERATION)

    @property
    def error_in_float32(self) -> float:
        """Relative error of what a program computes in float32 in a run of a half type; infinite in others.

        A sum of n terms in float32 has at most about sqrt(n) times the error of one rounding.
        """
        share = PRECISIONS["fp32"].unit_roundoff / self.unit_roundoff
        return self.floor * share * math.sqrt(max(1, self.longest_sum)) if share < 1.0 else math.inf

    def explain(self) -> str:
        """The bound and its derivation, in one line."""
        if self.longest_sum == 0:
            return "no arithmetic in this module: the port must be equal bit for bit"
        return (
            f"k = {self.k:.3g}, floor = {self.floor:.3g} from unit round-off {self.unit_roundoff:.3g} "
            f"and the longest sum, {self.longest_sum} {'term' if self.longest_sum == 1 else 'terms'}"
        )


def bound_for(precision: Precision, longest_sum: int, modules: int = 1) -> Bound:
    """The bound of a module, or of all modules up to a tap.

    Args:
        precision: The tested precision.
        longest_sum: Terms of the longest sum; 0 if there is no arithmetic.
        modules: Number of modules with arithmetic on the way to the result, its own included.
    """
    if longest_sum == 0:
        return Bound(0.0, 0.0, 0, precision.unit_roundoff)
    stored = precision.unit_roundoff**2
    added = precision.accumulation_roundoff**2
    worst_order = stored + longest_sum * added
    best_order = stored + math.log2(longest_sum + 1) * added
    split = math.sqrt(ROUNDINGS_PER_OPERATION)
    return Bound(
        k=split * math.sqrt(worst_order / best_order),
        floor=split * precision.unit_roundoff * math.sqrt(modules),
        longest_sum=longest_sum,
        unit_roundoff=precision.unit_roundoff,
    )
