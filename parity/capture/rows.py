"""Trials of rows: a batch's rows in other batches, and the same batch again.

A row's results must not depend on the other rows, and a run's results not on the time of the run. Each trial
runs the model with taps on rows of one batch, and compares the taps with those of the batch:

    ALONE        one row: the first, one in the middle, the last
    SMALL        two rows, the last one first
    PERMUTED     all rows in reversed order
    NEIGHBOURS   one row in its place, all others replaced by copies of another row
    AGAIN        the same batch once more

The axis of rows of a tap follows from the shape that it has for one row. A tap of one shape for any batch,
such as an embedding of shared candidates, is compared as a whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch

from parity.capture.captures import Capture, Through
from parity.case import Arrays, Case
from parity.inputs.masks import bits, valid_elements

MOST_ROWS = 16
"""Most rows that a trial compares."""


class Trial(str, Enum):
    """The kind of a trial; the value completes "a row ..."."""

    ALONE = "alone"
    SMALL = "in a small batch"
    PERMUTED = "in a permuted batch"
    NEIGHBOURS = "beside other rows"
    AGAIN = "in a second run"


@dataclass(frozen=True)
class RowTrial:
    """One trial.

    Attributes:
        kind: Its kind.
        rows: Rows of the batch, in the order of the trial.
        compared: Places in the trial whose rows are compared.
    """

    kind: Trial
    rows: tuple[int, ...]
    compared: tuple[int, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the compared rows in the batch."""
        return tuple(self.rows[place] for place in self.compared)

    def arrays(self, case: Case, arrays: Arrays) -> Arrays:
        """The inputs of the trial."""
        if self.kind is Trial.AGAIN:
            return arrays
        chosen = case.rows(arrays, np.array(self.rows))
        assert chosen is not None, "a case without separable rows has no such trial"
        return chosen


def row_trials(case: Case, arrays: Arrays) -> list[RowTrial]:
    """The trials of a batch. Without separable rows, and for one row, there is only the second run."""
    batch = case.batch_size_of(arrays)
    everyone = tuple(range(batch))
    spread = tuple(sorted({int(row) for row in np.linspace(0, batch - 1, min(batch, MOST_ROWS))}))
    again = RowTrial(Trial.AGAIN, everyone, spread)
    if not is_separable(case, arrays):
        return [again]
    middle = batch // 2
    alone = [RowTrial(Trial.ALONE, (row,), (0,)) for row in sorted({0, middle, batch - 1})]
    small = RowTrial(Trial.SMALL, (batch - 1, 0), (0, 1))
    permuted = RowTrial(Trial.PERMUTED, everyone[::-1], spread)
    neighbours = RowTrial(Trial.NEIGHBOURS, _beside_copies(case, arrays, middle), (middle,))
    return [*alone, small, permuted, neighbours, again]


def is_separable(case: Case, arrays: Arrays) -> bool:
    """Whether a batch has several rows, and its rows can run in other batches."""
    return case.batch_size_of(arrays) > 1 and case.rows(arrays, np.array([0])) is not None


def _beside_copies(case: Case, arrays: Arrays, row: int) -> tuple[int, ...]:
    """All rows but one replaced by another one, whose copies need no more room than the batch's rows.

    Engines have a largest size. Where every copy needs more, the other rows change places instead.
    """
    batch = case.batch_size_of(arrays)
    for other in (number for number in reversed(range(batch)) if number != row):
        rows = tuple(row if place == row else other for place in range(batch))
        chosen = case.rows(arrays, np.array(rows))
        if chosen is not None and all(chosen[name].size <= arrays[name].size for name in arrays):
            return rows
    others = [number for number in range(batch) if number != row]
    turned = iter(others[1:] + others[:1])
    return tuple(row if place == row else next(turned) for place in range(batch))


@dataclass(frozen=True)
class RowDifferences:
    """The differences of one trial from the batch.

    Attributes:
        kind: Value of the trial's `Trial`.
        rows: Numbers of the compared rows in the batch.
        taps: By tap whose bits differ, in the order of the taps: the largest absolute difference of each
            row's valid elements. A difference in NaN or infinity is the largest number.
    """

    kind: str
    rows: tuple[int, ...]
    taps: dict[str, list[float]]


def run_row_trials(
    case: Case,
    arrays: Arrays,
    whole: Mapping[str, torch.Tensor],
    run: Callable[[Arrays, Capture], object],
) -> list[RowDifferences]:
    """Run the trials of a batch.

    Args:
        case: The case.
        arrays: The batch.
        whole: Taps of the batch.
        run: Runs the model on inputs and puts its taps into a capture.
    """
    comparison = _Comparison(whole, case.batch_size_of(arrays), case.valid_rows(arrays))
    results = []
    for trial in row_trials(case, arrays):
        taps: dict[str, list[float]] = {}

        def compare(
            name: str, tap: torch.Tensor, trial: RowTrial = trial, taps: dict[str, list[float]] = taps
        ) -> dict[str, torch.Tensor]:
            differences = comparison.differences(trial, name, tap)
            if differences is not None:
                taps[name] = differences
            return {}

        # No tap is held.
        run(trial.arrays(case, arrays), Capture(tensors=Through({}, compare)))
        results.append(RowDifferences(trial.kind.value, trial.numbers, taps))
    return results


@dataclass
class _Comparison:
    """Compares the taps of a batch's trials with the taps of the batch.

    Args:
        whole: Taps of the batch.
        batch_size: B.
        valid: For each size of a padded axis, the (B, size) mask of valid positions.
    """

    whole: Mapping[str, torch.Tensor]
    batch_size: int
    valid: Mapping[int, np.ndarray]
    _single: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def differences(self, trial: RowTrial, name: str, tensor: torch.Tensor) -> list[float] | None:
        """The largest absolute difference of each compared row's valid elements at a tap.

        None where all bits are equal, and where the tap has no axis of rows. A difference in NaN or
        infinity is the largest number. The trials of single rows come first.
        """
        before = self.whole.get(name)
        if before is None:
            return None
        if trial.kind is Trial.ALONE:
            self._single[name] = tuple(tensor.shape)
        keep = valid_elements(tuple(before.shape), self.valid, self.batch_size)
        axis = self._axis(tuple(before.shape), self._single.get(name, ()))
        if axis is None:
            if tensor.shape != before.shape:
                return None
            largest = _largest(before[None], tensor[None], None if keep is None else keep[None])
            return None if largest is None else largest * len(trial.compared)
        mask = None if keep is None else torch.from_numpy(np.broadcast_to(keep, tuple(before.shape)).copy())
        return _largest(
            _rows(before, axis, self.batch_size, trial.numbers),
            _rows(tensor, axis, len(trial.rows), trial.compared),
            None if mask is None else _rows(mask, axis, self.batch_size, trial.numbers).numpy(),
        )

    def _axis(self, whole: tuple[int, ...], single: tuple[int, ...]) -> int | None:
        """The axis of rows: the only one whose size differs for one row, by the number of rows."""
        if len(whole) != len(single):
            return None
        other = [axis for axis, sizes in enumerate(zip(whole, single, strict=True)) if len(set(sizes)) > 1]
        is_rows = len(other) == 1 and whole[other[0]] == single[other[0]] * self.batch_size
        return other[0] if is_rows else None


def _rows(tensor: torch.Tensor, axis: int, batch: int, rows: Sequence[int]) -> torch.Tensor:
    """Rows of a tensor, whose axis of rows may hold several elements for each, as the first axis."""
    shape = tensor.shape
    parts = tensor.reshape(*shape[:axis], batch, shape[axis] // batch, *shape[axis + 1 :])
    return parts.movedim(axis, 0)[list(rows)]


def _largest(one: torch.Tensor, other: torch.Tensor, keep: np.ndarray | None) -> list[float] | None:
    """The largest difference in each row; None for equal bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return [sys.float_info.max] * one.shape[0]
    changed = bits(one) != bits(other)
    if keep is not None:
        changed = changed & keep
    if not changed.any():
        return None
    distance = (one.double() - other.double()).abs().nan_to_num(nan=sys.float_info.max).numpy()
    return [float(row.max(initial=0.0)) for row in np.where(changed, distance, 0.0)]
