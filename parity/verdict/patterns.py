"""Patterns that programming errors leave in a tensor, in words, with the evidence.

A pattern is a change of the oracle: a factor, a shift, a swap of axes. It explains the port's result if the
changed oracle is within the limit of the failed verdict. A pattern beyond the limit is never reported.
Without a pattern for the whole tensor, the explanation names the places of the wrong elements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch

from parity.verdict.distances import Distance, Oracle
from parity.verdict.factor_names import names_of

SHIFTS = (1, -1, 2, -2, 3, -3)
"""Shifts that are tried, in elements."""
LONGEST_AXIS = 512
"""Largest axis that is searched for a permutation, in time cubic in its length."""
COMPARED_COLUMNS = 4096
"""Number of columns of that search. Its result is then checked on all elements."""
LISTED = 4
"""Number of indices or values that a text lists."""
_PLACE = re.compile(r"\d+ of \d+ wrong elements")
_MANY = 1e9
"""Number of possible results above which no search finds one by chance."""
_ROUNDINGS = 32
"""Largest relative distance that counts as a rounding on the way, in steps of the coarser type at 1."""
_FAR = Distance(math.inf, math.inf, math.inf)
COARSER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Coarser types, the coarsest first: most of its values are also values of the next."""


@dataclass(frozen=True, slots=True)
class FailedTensor:
    """A tensor beyond its limit.

    Attributes:
        oracle: float64, any shape.
        port: float64, the same shape.
        counted: Mask of the compared elements, the same shape.
        limit: Limits of the port's distance from the oracle.
        axes: Name of each axis.
        dtype: Type of the port's result.
    """

    oracle: np.ndarray
    port: np.ndarray
    counted: np.ndarray
    limit: Distance
    axes: Sequence[str]
    dtype: torch.dtype

    def is_explained_by(self, changed: np.ndarray, counted: np.ndarray | None = None) -> bool:
        """Whether the port is within the limit of a changed oracle, where both masks count."""
        counts = self.counted if counted is None else self.counted & counted
        # With half of the elements or fewer, any change explains the rest.
        if 2 * counts.sum() <= self.counted.sum() or not np.any(changed[counts]):
            return False
        return not self.distance_from(changed, counts).exceeds(self.limit)

    def distance_from(self, changed: np.ndarray, counts: np.ndarray | None = None) -> Distance:
        """The distance of the port from a changed oracle, without elements that are the same NaN or Inf.

        It is infinite where another element is NaN or Inf, or where no other element is left.
        """
        counts = self.counted if counts is None else counts
        values, port = changed[counts], self.port[counts]
        finite = np.isfinite(values) & np.isfinite(port)
        has_same = np.array_equal(values[~finite], port[~finite], equal_nan=True)
        if not has_same or (finite.size and not finite.any()):
            return _FAR
        return Oracle(values[finite]).distance(port[finite])

    def is_mostly_explained_by(self, changed: np.ndarray) -> bool:
        """Whether a change with numbers of its own explains the port, and most of the error with it.

        Numbers that are fitted to an error slightly beyond its limit bring it within, whatever it is.
        """
        distance = np.linalg.norm((self.port - changed)[self.counted])
        error = np.linalg.norm((self.port - self.oracle)[self.counted])
        return bool(2 * distance < error) and self.is_explained_by(changed)

    @property
    def wrong(self) -> np.ndarray:
        """Mask of the elements with an error above the limit of the largest error."""
        sizes = np.abs(self.oracle[self.counted])
        allowed = self.limit.largest * sizes.max(initial=0.0, where=np.isfinite(sizes))
        # The difference of an infinite element from itself is NaN.
        with np.errstate(invalid="ignore"):
            is_near = (np.abs(self.port - self.oracle) <= allowed) | (self.port == self.oracle)
        return self.counted & ~is_near

    @property
    def possible_results(self) -> float:
        """Number of results of the same values with as few wrong elements or fewer.

        It is infinite for numbers that are none of a mask.
        """
        if self.dtype.is_floating_point and not _is_mask(self):
            return math.inf
        counted, wrong = int(self.counted.sum()), int(self.wrong.sum())
        values = len(np.unique([self.oracle[self.counted], self.port[self.counted]]))
        number = 0
        for count in range(wrong + 1):
            number += math.comb(counted, count) * (values - 1) ** count
            if number > _MANY:
                return math.inf
        return float(number)


def explain(failed: FailedTensor) -> list[str]:
    """The patterns that explain the port's result, most telling first; empty without a known pattern."""
    # The same infinite element on both sides is right.
    is_right = ~np.isfinite(failed.oracle) & (failed.oracle == failed.port)
    failed = replace(failed, counted=failed.counted & ~is_right)
    port, oracle = failed.port[failed.counted], failed.oracle[failed.counted]
    if not port.size or not np.isfinite(oracle).all():
        return []
    if not np.isfinite(port).all():
        return list(_where(failed))
    if _is_mask(failed):
        return list(_mask(failed))
    # Elements that do not count may be infinite.
    with np.errstate(invalid="ignore"):
        for pattern in (_factor, _transpose, _shift, _permutation, _factors, _offset, _offsets):
            explanation = next(pattern(failed), None)
            if explanation:
                return [explanation]
    return [*_coarser(failed), *_where(failed)]


def is_place(text: str) -> bool:
    """Whether an explanation only tells where the wrong elements are."""
    return bool(_PLACE.match(text))


def _is_mask(failed: FailedTensor) -> bool:
    """Whether both sides hold zeros and ones only, the oracle both. Integers are no masks."""
    is_maskable = failed.dtype is torch.bool or failed.dtype.is_floating_point
    o, p = np.unique(failed.oracle[failed.counted]), np.unique(failed.port[failed.counted])
    return is_maskable and np.array_equal(o, [0.0, 1.0]) and bool(np.isin(p, o).all())


def _mask(failed: FailedTensor) -> Iterator[str]:
    """Elements on which a mask differs from the oracle's.

    Other patterns do not apply to a mask: a triangle without its diagonal is also a shift, which says less.
    """
    if failed.is_explained_by(1.0 - failed.oracle):
        yield "is the oracle's mask with zeros and ones exchanged"
        return
    for right, name, other in ((1.0, "ones", "zero"), (0.0, "zeros", "one")):
        elements = failed.counted & (failed.oracle == right)
        wrong = elements & (failed.port != right)
        if wrong.any():
            count, total = int(wrong.sum()), int(elements.sum())
            yield f"{count} of the mask's {total} {name} are {other}{all_at(wrong, failed.axes)}"


def _factor(failed: FailedTensor) -> Iterator[str]:
    o, p = failed.oracle[failed.counted], failed.port[failed.counted]
    if not p.any():
        yield "is zero everywhere"
        return
    square = float(o @ o)
    # Any number is a multiple of another one.
    if not square or o.size < 2:
        return
    factor = float(p @ o) / square
    # A factor as near to 1 as every limit allows is no error.
    is_error = abs(factor - 1) > min(failed.limit.l2, failed.limit.largest, failed.limit.scale_error)
    if is_error and failed.is_explained_by(failed.oracle * factor):
        yield f"equals the oracle times {_number(factor, 6)}{names_of(factor, failed.limit.scale_error)}"


def _number(factor: float, digits: int, none: float = 0.0) -> str:
    """A factor in words: with some digits, and near 1 with its distance from 1, unless that is none."""
    text = f"{factor:.{digits}g}"
    if text != "1" or abs(factor - 1) <= none:
        return text
    return f"(1 {'+' if factor > 1 else '-'} {abs(factor - 1):.2g})"


def _transpose(failed: FailedTensor) -> Iterator[str]:
    shape = failed.oracle.shape
    for first, second in combinations(range(len(shape)), 2):
        if shape[first] == shape[second]:
            oracle, counted = (np.swapaxes(a, first, second) for a in (failed.oracle, failed.counted))
            if failed.is_explained_by(oracle, counted):
                axes = f"{failed.axes[first]} and {failed.axes[second]}"
                yield f"equals the oracle after transposing {axes}"


def _shift(failed: FailedTensor) -> Iterator[str]:
    wrong = failed.wrong
    for axis, name in enumerate(failed.axes):
        for step in SHIFTS:
            inside = np.zeros_like(failed.counted)
            middle = slice(step, None) if step > 0 else slice(None, step)
            inside[(slice(None),) * axis + (middle,)] = True
            counted = np.roll(failed.counted, step, axis) & inside
            # As many wrong elements as leave the axis are gone by any shift, among equal ones.
            if wrong.any() and (wrong & counted).sum() <= failed.counted.sum() - counted.sum():
                continue
            if failed.is_explained_by(np.roll(failed.oracle, step, axis), counted):
                yield f"equals the oracle shifted by {step:+d} along {name}"


def _permutation(failed: FailedTensor) -> Iterator[str]:
    # SciPy takes long to import, and only a failure needs it.
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    for axis, size in enumerate(failed.oracle.shape):
        if size > LONGEST_AXIS:
            continue
        oracle, port, counted = (
            np.moveaxis(array, axis, 0).reshape(size, -1)
            for array in (failed.oracle, failed.port, failed.counted)
        )
        # A permutation moves masked elements too: only columns that count as a whole are compared.
        whole = counted.all(axis=0)
        if not whole.any():
            continue
        columns = np.flatnonzero(whole)[:: math.ceil(whole.sum() / COMPARED_COLUMNS)]
        _, order = linear_sum_assignment(cdist(port[:, columns], oracle[:, columns]))
        moved = np.flatnonzero(order != np.arange(size))
        same = np.broadcast_to(whole, (size, whole.size)).reshape(np.moveaxis(failed.counted, axis, 0).shape)
        changed = np.take(failed.oracle, order, axis)
        if moved.size and failed.is_explained_by(changed, np.moveaxis(same, 0, axis)):
            pairs = ", ".join(f"{order[at]} at {at}" for at in moved[:LISTED])
            more = f" and {moved.size - LISTED} more" if moved.size > LISTED else ""
            yield f"equals the oracle with {failed.axes[axis]} permuted: {pairs}{more}"


def _factors(failed: FailedTensor) -> Iterator[str]:
    """A factor for each index of one axis, such as from a wrong divisor of each row."""
    o, p = (np.where(failed.counted, values, 0.0) for values in (failed.oracle, failed.port))
    for axis, others in _one_axis(failed):
        squares = (o * o).sum(axis=others, keepdims=True)
        common = (o * p).sum(axis=others, keepdims=True)
        factors = np.divide(common, squares, where=squares > 0, out=np.ones_like(squares))
        if failed.is_mostly_explained_by(failed.oracle * factors):
            none = failed.limit.scale_error
            numbers = _some([_number(factor, 4, none) for factor in factors.ravel()[: LISTED + 1]])
            yield f"equals the oracle times a factor for each index of {failed.axes[axis]}: {numbers}"


def _offset(failed: FailedTensor) -> Iterator[str]:
    o, p = failed.oracle[failed.counted], failed.port[failed.counted]
    offset = float((p - o).mean())
    if o.size > 1 and failed.is_explained_by(failed.oracle + offset):
        yield f"equals the oracle plus {offset:.6g}"


def _offsets(failed: FailedTensor) -> Iterator[str]:
    """An offset for each index of one axis, such as from a missing or wrong bias."""
    difference = np.where(failed.counted, failed.port - failed.oracle, 0.0)
    for axis, others in _one_axis(failed):
        counts = failed.counted.sum(axis=others, keepdims=True)
        offsets = difference.sum(axis=others, keepdims=True) / np.maximum(counts, 1)
        if failed.is_mostly_explained_by(failed.oracle + offsets):
            numbers = _some([f"{offset:.4g}" for offset in offsets.ravel()[: LISTED + 1]])
            yield f"equals the oracle plus an offset for each index of {failed.axes[axis]}: {numbers}"


def _one_axis(failed: FailedTensor) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each axis with the other axes, if these hold enough elements to exclude a coincidence."""
    axes = range(failed.oracle.ndim)
    for axis in reversed(axes):
        if 4 * failed.oracle.shape[axis] <= failed.counted.sum():
            yield axis, tuple(other for other in axes if other != axis)


def _some(values: Sequence[str]) -> str:
    return ", ".join(values[:LISTED]) + (", ..." if len(values) > LISTED else "")


def _coarser(failed: FailedTensor) -> Iterator[str]:
    """Whether every value of the port, and not of the oracle, is a value of a coarser type."""
    if not failed.dtype.is_floating_point:
        return
    port, oracle = (torch.from_numpy(values[failed.counted]) for values in (failed.port, failed.oracle))
    for name, coarser in COARSER.items():
        # Whole numbers are values of every type.
        if _is_whole(port) and not _is_whole(oracle.to(coarser)):
            # Rounding to an integer, of any kind, moves a number by less than 1.
            if len(port.unique()) > 1 and float((port - oracle).abs().max()) < 1.0:
                yield "holds only whole numbers: rounded or divided as integers on the way"
            return
        is_coarser = torch.finfo(coarser).eps > torch.finfo(failed.dtype).eps
        port_is_coarse, oracle_is_coarse = (
            torch.equal(values.to(coarser).double(), values) for values in (port, oracle)
        )
        # Constants such as 0 and -10 are values of every type.
        distance, scale = float((port - oracle).norm()), float(oracle.norm())
        is_near = distance <= _ROUNDINGS * torch.finfo(coarser).eps * scale
        if is_coarser and is_near and port_is_coarse and not oracle_is_coarse:
            yield f"holds only {name} values: rounded to {name} on the way"
            return


def _is_whole(values: torch.Tensor) -> bool:
    return torch.equal(values.round(), values)


def _where(failed: FailedTensor) -> Iterator[str]:
    """The places of the wrong elements, if only a part of all is wrong."""
    wrong = failed.wrong
    count, total = int(wrong.sum()), int(failed.counted.sum())
    if not count or count == total:
        return
    ours = failed.port[wrong]
    kinds = {"are zero": ours == 0.0, "are NaN": np.isnan(ours), "are infinite": np.isinf(ours)}
    what = next((f" {words}" for words, mask in kinds.items() if mask.all()), "")
    yield f"{count} of {total} wrong elements{what}{all_at(wrong, failed.axes)}"


def all_at(wrong: np.ndarray, axes: Sequence[str]) -> str:
    """The common places of wrong elements: few indices of an axis, or a side of the diagonal.

    Args:
        wrong: Mask of the wrong elements.
        axes: Name of each axis.

    Returns:
        The places in words, behind a comma; empty without a common place.
    """
    indices = np.argwhere(wrong)
    if not len(indices):
        return ""
    by_axis = [
        (name, np.unique(own), size) for name, own, size in zip(axes, indices.T, wrong.shape, strict=True)
    ]
    places = [
        f"at {name} {', '.join(map(str, values))}"
        for name, values, size in by_axis
        if values.size < size and values.size <= LISTED
    ]
    if wrong.ndim > 1 and min(wrong.shape[-2:]) > 1 and not _is_beyond(indices, wrong.shape):
        below = np.unique(indices[:, -2] - indices[:, -1])
        # A single element always has one distance from the diagonal, which explains nothing.
        steps = f"{abs(below[0])} " if below.size == 1 and len(indices) > 1 else ""
        by = f" by {abs(below[0])}" if steps else ""
        row, column = axes[-2:]
        for fits, words in (
            ((below == 0).all(), f"on the diagonal (equal indices of {row} and {column})"),
            ((below < 0).all(), f"{steps}above the diagonal (indices of {column} larger{by} than of {row})"),
            ((below > 0).all(), f"{steps}below the diagonal (indices of {row} larger{by} than of {column})"),
        ):
            if fits:
                places.append(words)
    # Neighbours that are too many to list.
    places = places or [
        f"at {name} {values[0]} to {values[-1]}"
        for name, values, size in by_axis
        if values.size == values[-1] - values[0] + 1 < size
    ]
    return f", all {'; '.join(places)}" if places else ""


def _is_beyond(indices: np.ndarray, shape: Sequence[int]) -> bool:
    """Whether wrong elements are in rows or columns that lie on one side of the diagonal as a whole."""
    first = indices[:, -2:].min(axis=0)
    return bool((first >= np.flip(shape[-2:])).any())


def named_axes(shape: tuple[int, ...], batch_size: int, sequence_sizes: Container[int]) -> tuple[str, ...]:
    """Names of a tensor's axes: the batch and the sequence by name, others by number."""
    names = [f"axis {axis}" for axis in range(len(shape))]
    if shape and shape[0] == batch_size:
        names[0] = "the batch"
        for axis, size in enumerate(shape[1:], start=1):
            if size in sequence_sizes:
                names[axis] = f"the sequence (axis {axis})"
    return tuple(names)
