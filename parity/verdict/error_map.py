"""Where in a tensor the error sits: a small picture, which shows a wrong mask or a padding leak at once.

The tensor's two most telling axes stay, batch and position where it has them; over the others, and over the
elements that fall into one cell, the largest error counts. A cell is one character, so that a report stays
small and the picture can be read in `report.json` itself: the level of error over limit, see `LEVELS`, or
`OUTSIDE` where no element counts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch

LEVELS = (0.0, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0)
"""Level i holds error/limit up to LEVELS[i]: level 0 what equals the oracle, level 9 all the rest."""
WITHIN_LIMIT = LEVELS.index(1.0)
"""The highest level that is within the limit."""
OUTSIDE = "."
MAX_ROWS, MAX_COLUMNS = 32, 64


@dataclass(frozen=True)
class ErrorMap:
    """Levels of error over limit on two axes of a tensor.

    Attributes:
        axes: What the rows and the columns are: "batch", "position", or "axis n".
        shape: How many of them the tensor has; cells hold several where these are many.
        cells: A string for each row of cells, a character for each cell.
    """

    axes: tuple[str, str]
    shape: tuple[int, int]
    cells: tuple[str, ...]


def error_map(
    oracle: torch.Tensor,
    port: torch.Tensor,
    keep: np.ndarray,
    limit: float,
    batch_size: int,
    sequence_sizes: Collection[int],
) -> ErrorMap | None:
    """Picture the port's error; None for a tensor without two axes, or of which nothing counts.

    Args:
        oracle: The float64 result, or the exact integers.
        port: The port's result, of the same shape.
        keep: Boolean mask of the elements that count, of the same shape.
        limit: The largest error that an element may have, relative to the oracle's largest.
        batch_size: Size of a first axis that is the batch.
        sequence_sizes: Sizes of axes that are positions.
    """
    axes = _telling_axes(tuple(oracle.shape), batch_size, sequence_sizes)
    if axes is None or not keep.any():
        return None
    (row, row_name), (column, column_name) = axes
    # Slice by slice of the first axis: a difference in float64 may not fit into memory as a whole.
    others = tuple(axis - 1 for axis in range(1, oracle.ndim) if axis not in (row, column))
    slices = [
        _largest(oracle[i].double().numpy(), port[i].double().numpy(), keep[i], others)
        for i in range(oracle.shape[0])
    ]
    worst, scale = np.stack([worst for worst, _ in slices]), max(scale for _, scale in slices)
    if row > 0:
        worst = worst.max(axis=0)
    cells = _binned(worst, MAX_ROWS, MAX_COLUMNS)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(cells == 0.0, 0.0, cells / (scale * limit))
    levels = np.searchsorted(LEVELS, ratio)  # NaN sorts last: not a number is as bad as it gets
    text = np.where(np.isneginf(cells), OUTSIDE, levels.astype(str))
    return ErrorMap(
        axes=(row_name, column_name),
        shape=(oracle.shape[row], oracle.shape[column]),
        cells=tuple("".join(line) for line in text),
    )


def _telling_axes(
    shape: tuple[int, ...], batch_size: int, sequence_sizes: Collection[int]
) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """The batch, then positions, then any other axis longer than 1: the first two, in the tensor's order."""
    ranked = []
    for axis, size in enumerate(shape):
        if axis == 0 and size == batch_size:
            ranked.append((0, axis, "batch"))
        elif size in sequence_sizes:
            ranked.append((1, axis, "position"))
        elif size > 1:
            ranked.append((2, axis, f"axis {axis}"))
    chosen = sorted((axis, name) for _, axis, name in sorted(ranked)[:2])
    return (chosen[0], chosen[1]) if len(chosen) == 2 else None


def _largest(
    oracle: np.ndarray, port: np.ndarray, keep: np.ndarray, others: tuple[int, ...]
) -> tuple[np.ndarray, float]:
    """Largest error over the other axes, -inf where nothing counts, and the oracle's largest element."""
    with np.errstate(invalid="ignore"):
        difference = np.where(keep, np.abs(port - oracle), -np.inf)
    scale = np.abs(oracle, where=keep, out=np.zeros_like(oracle))
    # NaN wins every maximum.
    return difference.max(axis=others), float(np.max(scale, initial=0.0, where=np.isfinite(scale)))


def _binned(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """At most rows x columns cells of equal size, but for the last ones, each with its largest value."""
    for axis, most in ((0, rows), (1, columns)):
        size = -(-values.shape[axis] // most)
        values = np.maximum.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values
