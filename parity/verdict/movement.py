"""The movement of a result from one run to another, against the movement that rounding explains.

Both runs compute the same function of the same weights and inputs. Let p and q be the results of a module in
the two runs, o the oracle, and L and M the limits of the two verdicts (`parity.verdict.rule`), as absolute
numbers. Two right results differ by at most

    ||p - q|| <= ||p - o|| + ||q - o|| <= L + M

in either norm, and so do their scale errors. Rounding does not explain a larger difference.

The oracles of the two runs may differ with reason: modules alone may have received other tensors, and the
oracle follows the choices of a runner that rounding explains. The errors of both results are then compared,
each one against its own oracle. Elsewhere the results themselves are compared: a port that changed together
with its reference has moved.

Integers and booleans have the limit 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from parity.inputs.masks import same_where_valid
from parity.verdict.distances import Distance, Oracle, largest_absolute
from parity.verdict.elements import compared
from parity.verdict.rule import Verdict

NONE = Distance(0.0, 0.0, 0.0)
UNKNOWN = Distance(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Side:
    """A result in one run.

    Attributes:
        result: The result at the tested precision; None for a missing one.
        oracle: The oracle's result; None without one.
        counted: Mask of the elements that count, of the same shape.
        limit: Largest distance from the oracle that rounding explains; NaN if it is not known.
        error: Distance from the oracle; NaN if it is not known.
    """

    result: torch.Tensor | None
    oracle: torch.Tensor | None
    counted: np.ndarray
    limit: Distance
    error: Distance


@dataclass(frozen=True, slots=True)
class Movement:
    """The difference of a result in two runs, relative to the first run's oracle.

    Attributes:
        status: "equal": the same bits; "within": rounding explains the difference; "moved": it does not.
        distance: Size of the difference; NaN where it has none.
        limit: Largest difference that rounding explains; NaN where it is not known.
        old, new: Distances of both results from their oracle.
        reason: Reason of a movement without numbers, or empty.
    """

    status: Literal["equal", "within", "moved"]
    distance: Distance
    limit: Distance
    old: Distance
    new: Distance
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The largest ratio of the difference to its limit, over all measures; infinite without numbers."""
        if self.status == "moved" and self.reason:
            return math.inf
        pairs = (
            (self.distance.l2, self.limit.l2),
            (self.distance.largest, self.limit.largest),
            (abs(self.distance.scale_error), self.limit.scale_error),
        )
        return max(ratio_of(size, limit) for size, limit in pairs)

    @property
    def nearer(self) -> Literal["old", "new", ""]:
        """The run whose result is nearer to the oracle; empty if neither is."""
        old, new = (math.inf if math.isnan(side.l2) else side.l2 for side in (self.old, self.new))
        return "" if old == new else "old" if old < new else "new"


def ratio_of(size: float, limit: float) -> float:
    """The ratio of a size to its limit; 0 without a size or a bound, infinite where the limit is 0."""
    if size == 0.0 or math.isinf(limit):
        return 0.0
    return size / limit if limit else math.inf


def limit_of(verdict: Verdict) -> Distance:
    """The largest distance from the oracle that a verdict allows.

    A tolerance of the case is one of the Euclidean norm alone.
    """
    if verdict.tolerated:
        return Distance(verdict.min_detectable_error, math.inf, math.inf)
    return verdict.limit


def without_numbers(reason: str, old: Distance = UNKNOWN, new: Distance = UNKNOWN) -> Movement:
    """A movement that has no size, such as a result that is gone."""
    return Movement("moved", UNKNOWN, UNKNOWN, old, new, reason)


def movement(old: Side, new: Side, other_oracle: bool) -> Movement:
    """The movement of a result.

    Args:
        old, new: The result in both runs.
        other_oracle: Whether the oracles differ with reason, so that the errors are compared.
    """
    first, second = old.result, new.result
    if first is None or second is None:
        missing = [label for label, result in (("old", first), ("new", second)) if result is None]
        return without_numbers(f"no such result in the {' and '.join(missing)} run", old.error, new.error)
    if first.shape != second.shape:
        reason = f"shape {tuple(second.shape)} in place of {tuple(first.shape)}"
        return without_numbers(reason, old.error, new.error)
    if first.dtype != second.dtype:
        return without_numbers(f"{second.dtype} in place of {first.dtype}", old.error, new.error)
    counted = old.counted & new.counted
    if same_where_valid(first, second, None) or (counted.any() and same_where_valid(first, second, counted)):
        return Movement("equal", NONE, NONE, old.error, new.error)
    if not counted.any():
        return without_numbers("no element counts in both runs", old.error, new.error)
    if any(side.oracle is None or side.oracle.shape != first.shape for side in (old, new)):
        return without_numbers("it differs, and has no oracle", old.error, new.error)
    if not first.dtype.is_floating_point:
        return _of_integers(old, new, counted, other_oracle)
    return _of_numbers(old, new, counted, other_oracle)


def _of_integers(old: Side, new: Side, counted: np.ndarray, other_oracle: bool) -> Movement:
    index = torch.from_numpy(counted)
    differs = old.result[index] != new.result[index]
    if other_oracle:
        # A choice that rounding explains is the oracle's, too.
        differs &= (old.result[index] != old.oracle[index]) | (new.result[index] != new.oracle[index])
    share = float(differs.double().mean())
    distance = Distance(share, share, 0.0)
    return Movement("moved" if share else "within", distance, NONE, old.error, new.error)


def _of_numbers(old: Side, new: Side, counted: np.ndarray, other_oracle: bool) -> Movement:
    p, q, o = (compared(tensor, counted) for tensor in (old.result, new.result, old.oracle))
    o_new = compared(new.oracle, counted) if other_oracle else o
    # Such as a logit that a mask sets to minus infinity.
    same = ~np.isfinite(p) & ((p == q) | (np.isnan(p) & np.isnan(q)))
    p, q, o, o_new = (values[~same] for values in (p, q, o, o_new))
    if not all(np.isfinite(values).all() for values in (p, q, o, o_new)):
        return without_numbers(_non_finite(p, q), old.error, new.error)
    if not p.size:
        # NaN with other bits.
        return Movement("within", NONE, NONE, old.error, new.error)
    if math.isnan(old.limit.l2) or math.isnan(new.limit.l2):
        return without_numbers("it differs, and has no limit", old.error, new.error)
    truth = Oracle(o)
    distance = truth.size(truth.scaled(q - p - (o_new - o) if other_oracle else q - p))
    if other_oracle:
        # A scale error is relative to its own oracle.
        scale = Oracle(o_new).distance(q).scale_error - truth.distance(p).scale_error
        distance = replace(distance, scale_error=scale)
    limit = _sum_of_limits(old, new, counted, truth)
    is_moved = distance.exceeds(limit)
    return Movement("moved" if is_moved else "within", distance, limit, old.error, new.error)


def _non_finite(p: np.ndarray, q: np.ndarray) -> str:
    counts = {name: int((~np.isfinite(side)).sum()) for name, side in (("old", p), ("new", q))}
    listed = " and ".join(f"{count} in the {name} run" for name, count in counts.items() if count)
    return f"NaN or Inf: {listed or 'in the oracle'}"


def _sum_of_limits(old: Side, new: Side, counted: np.ndarray, truth: Oracle) -> Distance:
    """The sum of both limits, relative to the compared elements of the first run's oracle.

    Each limit is relative to all elements that count in its run.
    """
    norm, largest = _sizes(old.oracle, counted)
    l2, most = 0.0, 0.0
    for side in (old, new):
        own_norm, own_largest = _sizes(side.oracle, side.counted)
        l2 += side.limit.l2 * (own_norm / norm if norm else 1.0)
        most += side.limit.largest * (own_largest / largest if largest else 1.0)
    # A part of the elements has another scale error than all of them.
    is_whole = all(np.array_equal(side.counted, counted) for side in (old, new))
    scale = old.limit.scale_error + new.limit.scale_error if is_whole and truth.largest else math.inf
    return Distance(l2, most, scale)


def _sizes(oracle: torch.Tensor, counted: np.ndarray) -> tuple[float, float]:
    """The Euclidean norm and the largest absolute element of the finite elements that count."""
    values = compared(oracle, counted)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 0.0
    largest = largest_absolute(values)
    return largest * float(np.linalg.norm(values / (largest or 1.0))), largest
