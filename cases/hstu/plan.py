"""Batches of histories beside the typical one: other widths, sizes and values.

Together they reach the least and the largest value of each integer input, both sides of the time buckets'
edges, and rows that are trimmed to fewer positions than the model has.

Legend: B users, N items in a padded row, X candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cases.hstu.inputs import TIMELESS, TIMESTAMPS, HSTUInputs
from configs import CaseConfig, HSTUConfig
from parity.case import PlannedBatch

_LARGEST_EDGE = 20_000
"""Largest edge of a time bucket, in seconds, that a float32 logarithm tells from its neighbours."""
_LARGEST_SPAN = 2**62
"""Largest span of a history in seconds."""
_NOW = 1_700_000_000
_BEFORE_1970 = -2_000_000_000


def plan(case: CaseConfig, forbidden_widths: set[int]) -> Iterator[PlannedBatch]:
    """The batches, each with its purpose.

    Args:
        case: A case of research HSTU.
        forbidden_widths: Numbers of positions that no padded row may have.
    """
    model, typical = case.model, case.input.batch_size
    draw = _Drawing(case)
    longest = model.max_sequence_len
    yield PlannedBatch(
        "one full row",
        "one user with the longest history; ids 1 and the largest; ratings 0 and the largest; "
        "equal timestamps; a candidate twice",
        draw.batch([longest], model.padded_length, draw.equal_times, repeats=True),
    )
    yield PlannedBatch(
        "bucket edges",
        "two users, the first one shorter, the other without room for a query; pauses on both sides of the "
        "edges of the time buckets",
        draw.batch([max(1, longest // 2), model.padded_length], model.padded_length, draw.edge_times),
    )
    short = [min(length, longest) for length in (2, 3, 1)]
    yield PlannedBatch(
        "short rows",
        "three users with one to three items, seconds apart, in this decade",
        draw.batch(short, model.padded_length, draw.second_times),
    )
    yield PlannedBatch(
        "decades",
        "pauses of decades from before 1970 on, beyond 32 bits, up to beyond the last time bucket",
        draw.batch(draw.mixed_lengths(typical, longest), model.padded_length, draw.decade_times),
    )
    width = _narrow_width(model, forbidden_widths)
    if width is not None:
        # Without time, no position is left for the query.
        fullest = width if model.relative_attention_bias in TIMELESS else width - 1
        yield PlannedBatch(
            "narrow",
            "rows padded to fewer positions than the model has; candidates for each user, with padding",
            draw.batch([max(1, width // 2), fullest, 1], width, draw.mixed_times, per_user=True),
        )
    if model.relative_attention_bias in TIMELESS:
        timed = draw.batch([max(1, longest // 2), longest], model.padded_length, draw.equal_times)
        yield PlannedBatch(
            "without timestamps",
            "two users, the first one shorter; no timestamps, which the bias does not need",
            {name: array for name, array in timed.items() if name != TIMESTAMPS},
        )


def _narrow_width(model: HSTUConfig, forbidden: set[int]) -> int | None:
    """About half of the model's width, which no other axis has; None if there is none."""
    widths = sorted(range(4, model.padded_length), key=lambda width: abs(2 * width - model.padded_length))
    per_item = model.positions_per_item
    return next((width for width in widths if not {width, per_item * width} & forbidden), None)


class _Drawing:
    """Random histories of a case, of given lengths and pauses."""

    def __init__(self, case: CaseConfig) -> None:
        self._model = case.model
        self._candidates = case.input.num_candidates
        self._rng = np.random.default_rng([case.input.seed, 0x9A7])

    def mixed_lengths(self, rows: int, longest: int) -> list[int]:
        """Lengths between the ends, the longest not first."""
        lengths = self._rng.integers(1, longest + 1, rows)
        lengths[rows // 2] = longest
        lengths[0] = max(1, longest - 1)
        return lengths.tolist()

    def batch(
        self,
        lengths: list[int],
        width: int,
        times: Callable[[tuple[int, int]], np.ndarray],
        per_user: bool = False,
        repeats: bool = False,
    ) -> HSTUInputs:
        """Histories padded to `width`; ids and ratings at their ends in the first two places of each row."""
        model, rng = self._model, self._rng
        lengths_B = np.array(lengths, dtype=np.int64)
        shape = (lengths_B.size, width)
        valid_BN = np.arange(width) < lengths_B[:, None]
        ids_BN = rng.integers(1, model.num_items + 1, shape)
        ratings_BN = rng.integers(0, model.num_ratings, shape)
        for column, (item, rating) in enumerate([(model.num_items, 0), (1, model.num_ratings - 1)]):
            ids_BN[:, column], ratings_BN[:, column] = item, rating
        # The third item is the first one again.
        ids_BN[:, 2:3] = ids_BN[:, :1]
        seconds_BN = times(shape)
        query_BN = np.arange(width) <= lengths_B[:, None]
        return HSTUInputs(
            {
                "past_lengths": lengths_B,
                "past_ids": np.where(valid_BN, ids_BN, 0),
                "ratings": np.where(valid_BN, ratings_BN, 0),
                "timestamps": np.repeat(np.where(query_BN, seconds_BN, 0), model.positions_per_item, axis=1),
                "item_ids": self._item_ids(lengths_B.size if per_user else 1, repeats),
            }
        )

    def _item_ids(self, rows: int, repeats: bool) -> np.ndarray:
        ids_BX = self._rng.integers(1, self._model.num_items + 1, (rows, self._candidates))
        if repeats:
            ids_BX[:, : 2 * (self._candidates // 2)] = self._model.num_items
        ids_BX[-1, -1] = 1
        if rows > 1:
            # The first user's list is one shorter.
            ids_BX[0, -1] = 0
        return ids_BX

    def equal_times(self, shape: tuple[int, int]) -> np.ndarray:
        return np.full(shape, _NOW)

    def second_times(self, shape: tuple[int, int]) -> np.ndarray:
        return _NOW + np.cumsum(self._rng.integers(1, 4, shape), axis=1)

    def mixed_times(self, shape: tuple[int, int]) -> np.ndarray:
        gaps_BN = np.exp(self._rng.uniform(0.0, np.log(1e8), shape)).astype(np.int64)
        return _NOW // 2 + np.cumsum(gaps_BN, axis=1)

    def edge_times(self, shape: tuple[int, int]) -> np.ndarray:
        """Pauses of the last whole second of a bucket, and of the first one of the next, bucket by bucket."""
        model = self._model
        last = min(model.num_buckets, int(np.log(_LARGEST_EDGE) / model.bucket_divisor))
        edges = np.exp(np.arange(1, last + 1) * model.bucket_divisor)
        pauses = np.unique(np.concatenate([[0, 1], np.ceil(edges) - 1, np.ceil(edges)]).astype(np.int64))
        return _NOW + np.cumsum(np.resize(self._rng.permutation(pauses), shape), axis=1)

    def decade_times(self, shape: tuple[int, int]) -> np.ndarray:
        model = self._model
        gaps_BN = (1e9 * self._rng.uniform(0.1, 1.0, shape)).astype(np.int64)
        beyond = 2.0 * np.exp(model.bucket_divisor * model.num_buckets)
        if beyond < _LARGEST_SPAN:
            # In the longest row.
            gaps_BN[shape[0] // 2, 2] = int(beyond)
        return _BEFORE_1970 + np.cumsum(gaps_BN, axis=1)
