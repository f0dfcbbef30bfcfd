"""Batches of clicks beside the typical one: other sizes, bags and values.

Together they reach empty bags, bags of one index and of the most, tables without an index, both ends of each
table, both sides of a composed table's quotients, and counts from the least to beyond 32 bits.

Legend: B rows of the batch, C dense features, T tables, L total number of indices of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cases.dlrm.inputs import make_inputs
from configs import CaseConfig
from parity.case import PlannedBatch
from parity.inputs.arrays import CaseInputs

_COUNTS = (0, -1, 1, 2, -(2**31), 2**31 - 1, 2**31, 2**40, -(2**40))
"""Dense features at their ends: a missing value, negative values, and values of more than 32 bits."""
_WEIGHTS = (0.0, -1.5, 1.0, 0.5, 2.0)


def plan(case: CaseConfig) -> Iterator[PlannedBatch]:
    """The batches, each with its purpose."""
    longest = case.input.longest_bag
    batch = case.input.batch_size
    draw = _Drawing(case)
    yield PlannedBatch(
        "one row",
        "one row; a bag with one index twice in a row; the largest index",
        draw.batch([[min(2, longest)]], order="largest"),
    )
    yield PlannedBatch(
        "empty bags",
        "two rows without an index in any table",
        draw.batch([[0, 0]], order="largest"),
    )
    yield PlannedBatch(
        "one index",
        "three rows of one index each; index 0",
        draw.batch([[1, 1, 1]], order="smallest"),
    )
    ends = [0, longest, 1, 0, longest][: max(1, min(5, batch - 1))]
    yield PlannedBatch(
        "longest bags",
        "bags of no index, of one and of the most, first and last; indices at the edges of quotients",
        draw.batch([ends, ends[::-1], [1] * len(ends)], order="edges"),
    )
    yield PlannedBatch(
        "other values",
        "as many rows as the typical batch, other bags and values",
        draw.batch([draw.mixed(batch, longest) for _ in case.model.table_rows], order="random"),
    )
    if case.input.per_sample_weights and case.model.weighted_pooling == "learned":
        yield PlannedBatch(
            "without weights",
            "three rows without weights of their own; the learned weights of each table stand alone",
            draw.batch([[2, 1, 0], [1, 1, 1]], order="random", is_weighted=False),
        )


class _Drawing:
    """Random rows of a case, with bags of given lengths."""

    def __init__(self, case: CaseConfig) -> None:
        self._case = case
        self._rng = np.random.default_rng([case.input.seed, 0xD1A])

    def mixed(self, rows: int, longest: int) -> list[int]:
        """Lengths of bags between the ends; the first one is neither."""
        lengths = self._rng.integers(0, longest + 1, rows)
        lengths[0] = (longest + 1) // 2
        return lengths.tolist()

    def batch(
        self, lengths: Sequence[Sequence[int]], order: str, is_weighted: bool | None = None
    ) -> CaseInputs:
        """Rows whose bags have lengths (B,), which the tables take in turn.

        Args:
            lengths: Lengths of the bags.
            order: Choice of the indices: "smallest", "largest", "edges" or "random".
            is_weighted: Whether each index has a weight; as in the case's input if None.
        """
        model, wanted, rng = self._case.model, self._case.input, self._rng
        rows = len(lengths[0])
        counts_BC = np.resize(rng.permutation(_COUNTS), (rows, model.bottom_widths[0])).astype(np.int64)
        offsets, indices, weights = [], [], []
        for table, size in enumerate(model.table_rows):
            lengths_B = np.array(lengths[table % len(lengths)], dtype=np.int64)
            offsets.append(np.cumsum(lengths_B) - lengths_B)
            total = int(lengths_B.sum())
            indices.append(self._indices(order, size, total))
            weights.append(np.resize(np.array(_WEIGHTS, dtype=np.float32), total))
        weighted = wanted.per_sample_weights if is_weighted is None else is_weighted
        return make_inputs(counts_BC, np.stack(offsets), indices, weights if weighted else None)

    def _indices(self, order: str, size: int, total: int) -> np.ndarray:
        if order == "smallest":
            return np.zeros(total, dtype=np.int64)
        if order == "largest":
            return np.full(total, size - 1, dtype=np.int64)
        if order == "random":
            return self._rng.integers(0, size, total)
        collisions = self._case.model.qr_collisions
        # The batch takes the first edges alone, however long the table is.
        multiples = np.arange(0, min(size, collisions * (total + 1)), collisions)
        edges = np.unique(np.concatenate([multiples, multiples - 1, multiples + 1, [0, size - 1]]))
        return self._rng.permutation(np.resize(edges[(edges >= 0) & (edges < size)], total)).astype(np.int64)
