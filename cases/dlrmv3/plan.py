"""Batches of requests beside the typical one: other widths, sizes and values.

Together they reach histories of nothing, of one and of all rows, no candidate, one and all, both sides of the
time buckets' edges, equal times, candidates at other moments, events after the query, and moments before 1970
and beyond 32 bits.

Legend: B users, H rows of a padded history.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cases.dlrmv3.inputs import Drawing, Requests
from configs import CaseConfig, DLRMv3Config
from parity.case import PlannedBatch

_NOW, _HOUR = 1_700_000_000, 3600
_BEFORE_AN_HOUR = _NOW - _NOW % _HOUR - 1
"""One second before an hour, which float32 rounds to a later second of that hour."""
_LONG = 4096
"""Rows of history and candidates from which a batch is a matter of minutes."""
_NARROWEST = 1024
"""Most rows of a narrow history."""
_LARGEST_EDGE = 180
"""Largest time bucket whose edge, in whole seconds, is far from its neighbours in float32."""


def plan(case: CaseConfig, forbidden_widths: set[int]) -> Iterator[PlannedBatch]:
    """The batches, each with its purpose.

    A model of long sequences has the narrow one alone: the small cases of the same parts have the others.

    Args:
        case: A case of DLRMv3.
        forbidden_widths: Sizes that no padded axis may have.
    """
    draw = Drawing(case, 0xD31)
    model = draw.model
    if model.merged_length <= _LONG:
        yield from _shapes_and_values(draw, case.input.batch_size)
    width = narrow_width(model, forbidden_widths, min(model.max_uih_len / 2, _NARROWEST))
    if width is not None:
        t, queries = model.max_num_candidates, (_NOW, _NOW - 30 * _HOUR, _NOW + _HOUR)
        yield PlannedBatch(
            "narrow",
            "histories padded to fewer rows than the model has, which divide the attention's weights",
            draw.batch(
                Requests((1, width, 0), (t, 1, t), queries, width), _decade_ages(draw.rng, (3, width))
            ),
        )


def _shapes_and_values(draw: Drawing, typical: int) -> Iterator[PlannedBatch]:
    """Batches of the model's own width; `typical` users in the typical batch."""
    model, rng = draw.model, draw.rng
    # Of its own, so that the moments of candidates move no length.
    moments = rng.spawn(1)[0]
    h, t = model.max_uih_len, model.max_num_candidates
    yield PlannedBatch(
        "one full row",
        "one user with the longest history and all candidates; one moment",
        draw.batch(Requests((h,), (t,), (_NOW,), h), np.zeros((1, h), dtype=np.int64)),
    )
    queries = (_NOW, _NOW + 7 * _HOUR)
    yield PlannedBatch(
        "bucket edges",
        "two users, the first one shorter; ages on both sides of the edges of the time buckets",
        draw.batch(
            Requests((h // 2, h), (1, t), queries, h), _edge_ages(rng, model.num_time_buckets, (2, h))
        ),
    )
    queries = (_NOW + 11 * _HOUR, _BEFORE_AN_HOUR, _NOW + 50 * _HOUR)
    yield PlannedBatch(
        "few rows",
        "three users: one event and one candidate, candidates alone at the end of an hour, few events and "
        "all candidates: one row more than a feature needs; events after the query",
        draw.batch(
            Requests((1, 0, _above_a_least_length(model)), (1, t, t), queries, h),
            rng.integers(-5000, 61, (3, h)),
            moments.integers(-5000, 61, (3, t)),
        ),
    )
    queries = tuple(np.resize((-500_000_001, 3_000_000_000, 5_000_000_000, 61, -1), typical).tolist())
    history_B = rng.integers(0, h + 1, typical)
    history_B[[0, typical // 2]] = max(1, h - 1), h
    candidates_B = rng.integers(1, t + 1, typical)
    # Beside others: a batch of this user alone would predict nothing.
    if typical > 1:
        candidates_B[typical // 2] = 0
    lengths = (tuple(rows.tolist()) for rows in (history_B, candidates_B))
    yield PlannedBatch(
        "decades",
        "queries before 1970 and beyond 32 bits, at other hours and days; ages of decades; a user without "
        "candidates",
        draw.batch(
            Requests(*lengths, queries, h),
            _decade_ages(rng, (typical, h)),
            _decade_ages(moments, (typical, t)),
        ),
    )


def _above_a_least_length(model: DLRMv3Config) -> int:
    """Rows of a history that with all candidates are one more than a contextual feature needs; else 1."""
    t = model.max_num_candidates
    rows = (least + 1 - t for least in model.contextual_min_seq_lengths if least)
    return next((history for history in rows if 1 <= history <= model.max_uih_len), 1)


def narrow_width(model: DLRMv3Config, forbidden_widths: set[int], wanted: float) -> int | None:
    """About `wanted` rows of a history, with sizes that no other axis has; None if there is none."""
    h, t, c = model.max_uih_len, model.max_num_candidates, model.contextual_seq_len
    for width in sorted(range(2, h), key=lambda width: abs(width - wanted)):
        sizes = {width, width + t, width + t + c}
        if not sizes & (forbidden_widths | {t}):
            return width
    return None


def _edge_ages(rng: np.random.Generator, num_time_buckets: int, shape: tuple[int, int]) -> np.ndarray:
    """The last whole second of a bucket and the first one behind its edge, bucket by bucket.

    The edge itself may round to either side.
    """
    last = min(num_time_buckets, _LARGEST_EDGE)
    edges = 60 * np.unique(np.geomspace(1, last, shape[1]).astype(np.int64)) ** 2
    return np.resize(rng.permutation(np.concatenate([edges - 1, edges + 1])), shape)


def _decade_ages(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Up to forty years; a bucket's edge is left out."""
    ages = rng.integers(0, 40 * 365 * 24 * _HOUR, shape)
    return ages + (ages % 60 == 0)
