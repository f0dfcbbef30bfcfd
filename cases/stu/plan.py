"""Batches of requests beside the typical one: other widths, sizes and values.

Together they reach histories of nothing, of one and of all rows, no targets and all, both sides of the time
buckets' edges, targets at other moments, events after the query, and moments before 1970 and beyond 32 bits.

Legend: B users, N rows of a padded sequence, C contextual rows, T targets at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cases.stu.inputs import SCALE, usual_factor
from configs import CaseConfig, STUConfig
from parity.case import PlannedBatch
from parity.inputs.arrays import CaseInputs

_LARGEST_EDGE = 180
"""Largest time bucket whose edge, in whole seconds, is far from its neighbours in float32."""
_NOW = 1_700_000_000
_HOUR = 3600
_BEFORE_AN_HOUR = _NOW - _NOW % _HOUR - 1
"""One second before an hour, which float32 rounds to a later second of that hour."""


def plan(case: CaseConfig, forbidden_widths: set[int]) -> Iterator[PlannedBatch]:
    """The batches, each with its purpose.

    Args:
        case: A case of the production STU.
        forbidden_widths: Numbers of rows that no padded sequence may have.
    """
    model, typical = case.model, case.input.batch_size
    history, targets = model.max_uih_len, model.max_num_targets
    draw = _Drawing(case)
    yield PlannedBatch(
        "one full row",
        "one user with the longest history and all targets; ids 1 and the largest; one moment",
        draw.batch(_Requests((history,), (targets,), (_NOW,)), draw.no_ages),
    )
    yield PlannedBatch(
        "bucket edges",
        "two users, the first one shorter; ages on both sides of the edges of the time buckets",
        draw.batch(
            _Requests((history // 2, history), (1, targets), (_NOW, _NOW + 7 * _HOUR)), draw.edge_ages
        ),
    )
    yield PlannedBatch(
        "few rows",
        "three users: one event and one target, targets alone at the end of an hour, one event alone; events "
        "after the query",
        draw.batch(
            _Requests((1, 0, 1), (1, targets, 0), (_NOW + 11 * _HOUR, _BEFORE_AN_HOUR, _NOW + 50 * _HOUR)),
            draw.negative_ages,
        ),
    )
    queries = (-500_000_001, 3_000_000_000, 5_000_000_000, 61, -1)
    yield PlannedBatch(
        "decades",
        "queries before 1970 and beyond 32 bits, at other hours and days; ages of decades",
        draw.batch(draw.mixed(typical, queries), draw.decade_ages),
    )
    width = _narrow_width(model, forbidden_widths)
    if width is not None:
        rows = width - model.contextual_seq_len
        few = min(targets, rows - 1)
        yield PlannedBatch(
            "narrow",
            "sequences padded to fewer rows than the model has, which divide the attention's weights; "
            "one with a single target in the last row, so that an append of all targets' rows would not fit",
            draw.batch(
                _Requests((0, rows - few, rows - 1), (1, few, 1), (_NOW + _HOUR, _NOW - 30 * _HOUR, _NOW)),
                draw.decade_ages,
                width,
            ),
        )


def _narrow_width(model: STUConfig, forbidden: set[int]) -> int | None:
    """About half of the model's width, which no other axis has; None if there is none."""
    longest, least = model.padded_length, model.contextual_seq_len + 4
    widths = sorted(range(least, longest), key=lambda width: abs(2 * width - longest))
    return next((width for width in widths if width not in forbidden), None)


@dataclass(frozen=True)
class _Requests:
    """Rows of history, targets, and the query's second of each user."""

    history: tuple[int, ...]
    targets: tuple[int, ...]
    queries: tuple[int, ...]


class _Drawing:
    """Random requests of a case, of given lengths and ages."""

    def __init__(self, case: CaseConfig) -> None:
        self._model, self._has_scale = case.model, case.input.attn_scale
        self._rng = np.random.default_rng([case.input.seed, 0x57A])

    def mixed(self, rows: int, queries: tuple[int, ...]) -> _Requests:
        """Lengths between the ends, the longest not first."""
        model, rng = self._model, self._rng
        history = rng.integers(1, model.max_uih_len + 1, rows)
        history[rows // 2] = model.max_uih_len
        history[0] = max(1, model.max_uih_len - 1)
        targets = rng.integers(0, model.max_num_targets + 1, rows)
        seconds = [queries[row % len(queries)] for row in range(rows)]
        return _Requests(tuple(history.tolist()), tuple(targets.tolist()), tuple(seconds))

    def batch(
        self,
        requests: _Requests,
        ages: Callable[[tuple[int, int]], np.ndarray],
        width: int | None = None,
    ) -> CaseInputs:
        """Requests padded to `width`; the first and the last event's ids are the ends of the table."""
        model, rng = self._model, self._rng
        c, width = model.contextual_seq_len, width or model.padded_length
        targets_B = np.array(requests.targets, dtype=np.int64)
        lengths_B = c + np.array(requests.history, dtype=np.int64) + targets_B
        shape = (targets_B.size, width)
        row_N = np.arange(width)
        valid_BN = row_N < lengths_B[:, None]
        ids_BN = rng.integers(1, model.num_items + 1, shape)
        ids_BN[:, c], ids_BN[:, c + 1 : c + 2] = model.num_items, 1
        query_B1 = np.array(requests.queries, dtype=np.int64)[:, None]
        # The last row is the query. Targets in front of it have moments of their own.
        is_earlier_BN = (row_N >= c) & (row_N < lengths_B[:, None] - 1)
        seconds_BN = np.where(is_earlier_BN, query_B1 - ages(shape), query_B1)
        arrays = {
            "seq_lengths": lengths_B,
            "seq_ids": np.where(valid_BN, ids_BN, 0),
            "seq_timestamps": np.where(valid_BN & (row_N >= c), seconds_BN, 0),
            "num_targets": targets_B,
        }
        if self._has_scale:
            # Among them zero and negative factors.
            factor_BN = rng.uniform(-1.0, 2.0, shape) * usual_factor(model, width)
            factor_BN[:, c] = 0.0
            arrays[SCALE] = np.where(valid_BN, factor_BN, 0.0).astype(np.float32)
        return CaseInputs(arrays)

    def no_ages(self, shape: tuple[int, int]) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)

    def negative_ages(self, shape: tuple[int, int]) -> np.ndarray:
        return self._rng.integers(-5000, 61, shape)

    def edge_ages(self, shape: tuple[int, int]) -> np.ndarray:
        """The last whole second of a bucket and the first one behind its edge, bucket by bucket.

        The edge itself may round to either side.
        """
        last = min(self._model.num_time_buckets, _LARGEST_EDGE)
        edges = 60 * np.unique(np.geomspace(1, last, shape[1]).astype(np.int64)) ** 2
        ages = self._rng.permutation(np.concatenate([edges - 1, edges + 1]))
        return np.resize(ages, shape)

    def decade_ages(self, shape: tuple[int, int]) -> np.ndarray:
        """Up to forty years; a bucket's edge is left out."""
        ages = self._rng.integers(0, 40 * 365 * 24 * _HOUR, shape)
        return ages + (ages % 60 == 0)
