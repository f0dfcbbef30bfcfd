"""The values of a sparse feature, their frequencies, and their rows in the feature's table.

Legend: V different values.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from datasets.criteo.rows import MISSING

#: The row of a gap, of a value that is not in the vocabulary, and of the vocabulary's first value.
GAP_ROW, UNKNOWN_ROW, FIRST_ROW = 0, 1, 2


def count_values(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Counts a column's values without gaps. Memory is a few times that of the different values.

    Blocks join the total when they are together as large as it: each value is sorted a logarithmic number of
    times.

    Args:
        blocks: int64.

    Returns:
        The values (V,), ascending, and their frequencies (V,), both int64.
    """
    total = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for block in blocks:
        waiting.append(np.unique(block[block != MISSING], return_counts=True))
        if sum(values.size for values, _ in waiting) >= total[0].size:
            total = _merge([total, *waiting])
            waiting = []
    return _merge([total, *waiting])


def _merge(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    values = np.concatenate([values for values, _ in parts])
    counts = np.concatenate([counts for _, counts in parts])
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    first = np.flatnonzero(np.diff(values, prepend=values[0] - 1)) if values.size else values
    return values[first], np.add.reduceat(counts, first) if values.size else counts


def encode(values: np.ndarray, vocabulary: np.ndarray) -> np.ndarray:
    """The rows of values in the table.

    Args:
        values: any shape, ``MISSING`` for gaps.
        vocabulary: (V,), ascending.

    Returns:
        int64 of the same shape: ``GAP_ROW``, ``UNKNOWN_ROW``, or ``FIRST_ROW`` plus the place in the
        vocabulary.
    """
    place = np.searchsorted(vocabulary, values)
    known = place < vocabulary.size
    known[known] = vocabulary[place[known]] == values[known]
    return np.where(values == MISSING, GAP_ROW, np.where(known, place + FIRST_ROW, UNKNOWN_ROW))
