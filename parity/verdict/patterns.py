"""Why a tensor is wrong: the patterns that programming errors leave in it, in words, with the evidence.

A pattern is a change to the oracle, such as a factor, a shift or a swap of axes. It explains the port's
result when the oracle, so changed, is within the limit of the verdict that failed. Nothing is guessed: what
does not meet the limit is not said. Where no change explains the whole, it is said where it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from parity.verdict.distances import Distance, Oracle

LARGEST_DENOMINATOR = 1024
"""Of a factor that is shown as a fraction, such as 200/211: a ratio of sizes."""
LONGEST_SHIFT = 3
LONGEST_AXIS = 512
"""Of an axis that is searched for a permutation, which takes the cube of its length."""
COMPARED_COLUMNS = 4096
"""In that search; what it finds is then checked on all elements."""
LISTED = 4
COARSER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The coarsest first: most of its values are values of the other."""


@dataclass(frozen=True)
class Found:
    """What is known of a tensor that failed.

    Attributes:
        oracle: float64, any shape.
        port: float64, the same shape.
        keep: Which elements count, the same shape.
        limit: What the port's distance from the oracle may be.
        axes: A name for each axis.
        dtype: In which the port gave its result.
    """

    oracle: np.ndarray
    port: np.ndarray
    keep: np.ndarray
    limit: Distance
    axes: Sequence[str]
    dtype: torch.dtype

    def explained_by(self, changed: np.ndarray, keep: np.ndarray | None = None) -> bool:
        """Whether the port is within the limit of a changed oracle, where both count."""
        counts = self.keep if keep is None else self.keep & keep
        # Half of what counts has to be left, or anything would be explained.
        if 2 * counts.sum() < self.keep.sum() or not np.any(changed[counts]):
            return False
        return not Oracle(changed[counts]).distance(self.port[counts]).exceeds(self.limit)

    @property
    def wrong(self) -> np.ndarray:
        """Elements that are further off than the limit lets any be."""
        allowed = self.limit.largest * np.abs(self.oracle[self.keep]).max(initial=0.0)
        return self.keep & (np.abs(self.port - self.oracle) > allowed)


def explain(found: Found) -> list[str]:
    """What explains the port's result, most telling first; empty if nothing that is known here does."""
    counted = found.port[found.keep]
    if not counted.size or not np.isfinite(counted).all() or not np.isfinite(found.oracle[found.keep]).all():
        return []
    if _is_mask(found):
        return list(_mask(found))
    for pattern in (_factor, _transpose, _shift, _permutation, _factors, _offset, _offsets):
        explanation = next(pattern(found), None)
        if explanation:
            return [explanation]
    return [*_coarser(found), *_where(found)]


def _is_mask(found: Found) -> bool:
    """Whether both sides hold zeros and ones alone, the oracle both; integers may be anything else."""
    kept = found.dtype is torch.bool or found.dtype.is_floating_point
    o, p = np.unique(found.oracle[found.keep]), np.unique(found.port[found.keep])
    return kept and np.array_equal(o, [0.0, 1.0]) and bool(np.isin(p, o).all())


def _mask(found: Found) -> Iterator[str]:
    """What a mask lets through or hides otherwise than the oracle's.

    No other pattern is asked: of a triangle, a missing diagonal is a shift as well, and says less.
    """
    if found.explained_by(1.0 - found.oracle):
        yield "is the oracle's mask with zeros and ones exchanged"
        return
    for right, name, other in ((1.0, "ones", "zero"), (0.0, "zeros", "one")):
        of_these = found.keep & (found.oracle == right)
        wrong = of_these & (found.port != right)
        if wrong.any():
            places = _all_at(named_places(wrong, found.axes))
            yield f"{int(wrong.sum())} of the mask's {int(of_these.sum())} {name} are {other}{places}"


def _factor(found: Found) -> Iterator[str]:
    o, p = found.oracle[found.keep], found.port[found.keep]
    if not p.any():
        yield "is zero everywhere"
        return
    square = float(o @ o)
    factor = float(p @ o) / square if square else 0.0
    if factor and found.explained_by(found.oracle * factor):
        yield f"equals the oracle times {factor:.6g}{_as_fraction(factor, found.limit)}"


def _as_fraction(factor: float, limit: Distance) -> str:
    """The simplest ratio that a factor cannot be told from."""
    for denominator in range(2, LARGEST_DENOMINATOR + 1):
        simple = Fraction(round(factor * denominator), denominator)
        if simple and abs(float(simple) / factor - 1) <= limit.gain:
            return f", which is {simple} to round-off" if f"{factor:.6g}" != str(simple) else ""
    return ""


def _transpose(found: Found) -> Iterator[str]:
    shape = found.oracle.shape
    for first in range(len(shape)):
        for second in range(first + 1, len(shape)):
            if shape[first] == shape[second] > 1:
                swapped = (np.swapaxes(each, first, second) for each in (found.oracle, found.keep))
                if found.explained_by(*swapped):
                    yield f"equals the oracle after transposing {found.axes[first]} and {found.axes[second]}"


def _shift(found: Found) -> Iterator[str]:
    for axis, size in enumerate(found.oracle.shape):
        for distance in range(1, min(LONGEST_SHIFT, size - 1) + 1):
            for step in (distance, -distance):
                inside = np.zeros_like(found.keep)
                middle = slice(step, None) if step > 0 else slice(None, step)
                inside[(slice(None),) * axis + (middle,)] = True
                came_from = np.roll(found.keep, step, axis) & inside
                if found.explained_by(np.roll(found.oracle, step, axis), came_from):
                    yield f"equals the oracle shifted by {step:+d} along {found.axes[axis]}"


def _permutation(found: Found) -> Iterator[str]:
    for axis, size in enumerate(found.oracle.shape):
        if not 1 < size <= LONGEST_AXIS:
            continue
        oracle, port, keep = (
            np.moveaxis(each, axis, 0).reshape(size, -1) for each in (found.oracle, found.port, found.keep)
        )
        # Where an index does not count, it does not count whatever stands there.
        whole = keep.all(axis=0)
        if not whole.any():
            continue
        columns = np.flatnonzero(whole)[:: 1 + int(whole.sum()) // COMPARED_COLUMNS]
        _, order = linear_sum_assignment(cdist(port[:, columns], oracle[:, columns]))
        moved = np.flatnonzero(order != np.arange(size))
        same = np.broadcast_to(whole, (size, whole.size)).reshape(np.moveaxis(found.keep, axis, 0).shape)
        changed = np.take(found.oracle, order, axis)
        if moved.size and found.explained_by(changed, np.moveaxis(same, 0, axis)):
            pairs = ", ".join(f"{order[at]} at {at}" for at in moved[:LISTED])
            more = f" and {moved.size - LISTED} more" if moved.size > LISTED else ""
            yield f"equals the oracle with {found.axes[axis]} permuted: {pairs}{more}"


def _factors(found: Found) -> Iterator[str]:
    """A factor for each index of one axis, as from another divisor a row."""
    o, p = (np.where(found.keep, each, 0.0) for each in (found.oracle, found.port))
    for axis, others in _one_axis(found):
        squares = (o * o).sum(axis=others, keepdims=True)
        common = (o * p).sum(axis=others, keepdims=True)
        factors = np.divide(common, squares, where=squares > 0, out=np.ones_like(squares))
        if found.explained_by(found.oracle * factors):
            yield f"equals the oracle times a factor for each index of {found.axes[axis]}: {_some(factors)}"


def _offset(found: Found) -> Iterator[str]:
    o, p = found.oracle[found.keep], found.port[found.keep]
    offset = float((p - o).mean())
    if offset and found.explained_by(found.oracle + offset):
        yield f"equals the oracle plus {offset:.6g}"


def _offsets(found: Found) -> Iterator[str]:
    """An offset for each index of one axis, as from a bias that is missing or another one."""
    difference = np.where(found.keep, found.port - found.oracle, 0.0)
    for axis, others in _one_axis(found):
        counts = found.keep.sum(axis=others, keepdims=True)
        offsets = difference.sum(axis=others, keepdims=True) / np.maximum(counts, 1)
        if found.explained_by(found.oracle + offsets):
            yield f"equals the oracle plus an offset for each index of {found.axes[axis]}: {_some(offsets)}"


def _one_axis(found: Found) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each axis with the others, where those hold enough elements to tell a pattern from a coincidence."""
    axes = range(found.oracle.ndim)
    for axis in reversed(axes):
        if 1 < found.oracle.shape[axis] and 4 * found.oracle.shape[axis] <= found.keep.sum():
            yield axis, tuple(other for other in axes if other != axis)


def _some(values: np.ndarray) -> str:
    flat = values.ravel()
    return ", ".join(f"{value:.4g}" for value in flat[:LISTED]) + (", ..." if flat.size > LISTED else "")


def _coarser(found: Found) -> Iterator[str]:
    """Whether every value is one of a coarser type, and not for the oracle's being so."""
    if not found.dtype.is_floating_point:
        return
    port, oracle = (torch.from_numpy(each[found.keep]) for each in (found.port, found.oracle))
    for name, coarser in COARSER.items():
        if torch.finfo(coarser).eps <= torch.finfo(found.dtype).eps:
            continue
        held, exact = (torch.equal(each.to(coarser).double(), each) for each in (port, oracle))
        if held and not exact:
            yield f"holds only {name} values: rounded to {name} on the way"
            return


def _where(found: Found) -> Iterator[str]:
    """Where the wrong elements are, if they are a part that can be named."""
    wrong = found.wrong
    count, total = int(wrong.sum()), int(found.keep.sum())
    if not count or count == total:
        return
    zero = (found.port[wrong] == 0).all()
    what = "wrong elements are zero" if zero else "wrong elements"
    yield f"{count} of {total} {what}{_all_at(named_places(wrong, found.axes))}"


def _all_at(places: Sequence[str]) -> str:
    return f", all {'; '.join(places)}" if places else ""


def named_places(wrong: np.ndarray, axes: Sequence[str]) -> list[str]:
    """What the places of elements have in common: a few indices of an axis, or where the diagonal is."""
    indices = np.argwhere(wrong)
    places = []
    for axis, name in enumerate(axes):
        hit = np.unique(indices[:, axis])
        if hit.size < wrong.shape[axis] and hit.size <= LISTED:
            places.append(f"at {name} {', '.join(map(str, hit))}")
    if wrong.ndim > 1:
        below = np.unique(indices[:, -2] - indices[:, -1])
        # One element is at one distance from the diagonal, whatever put it there.
        steps = f"{abs(below[0])} " if below.size == 1 and len(indices) > 1 else ""
        for fits, words in (
            ((below == 0).all(), "on the diagonal"),
            ((below < 0).all(), f"{steps}above the diagonal"),
            ((below > 0).all(), f"{steps}below the diagonal"),
        ):
            if fits and wrong.shape[-1] > 1:
                places.append(f"{words} of {axes[-2]} and {axes[-1]}")
    return places
