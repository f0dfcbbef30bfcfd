"""Users of the benchmark with their periods, and the request of a user in one period.

Legend: P periods of a user, H events, T candidates.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from datasets.errors import DataError

FIELDS_OF_A_PERIOD = 4
"""Lists of a period in the benchmark's files: candidates, their ratings, events, their ratings."""
ACTION_WEIGHTS = (1, 2, 4, 8, 16)
"""By whole stars of a rating, from one star on."""
LIKED = 3.5
"""The least rating of a candidate whose label is 1."""


@dataclass(frozen=True)
class Period:
    """What a user sees and does in one period.

    Attributes:
        candidates: (T,) int64 items.
        candidate_ratings: (T,) float64 stars.
        events: (H,) int64 items.
        event_ratings: (H,) float64 stars.
    """

    candidates: np.ndarray
    candidate_ratings: np.ndarray
    events: np.ndarray
    event_ratings: np.ndarray


@dataclass(frozen=True)
class User:
    """A user's periods: the base, those of training, the evaluation, those of inference.

    Attributes:
        number: the user's number among all users.
        periods: P periods; None for one in which the user is away.
    """

    number: int
    periods: Sequence[Period | None]


@dataclass(frozen=True)
class Request:
    """One query of the benchmark.

    Attributes:
        user: the user's number.
        items: (H,) int64, the history in order of time.
        actions: (H,) int64, one of `ACTION_WEIGHTS` for each event.
        candidates: (T,) int64.
        labels: (T,) int64, 1 for a candidate that the user likes.
    """

    user: int
    items: np.ndarray
    actions: np.ndarray
    candidates: np.ndarray
    labels: np.ndarray


def request(user: User, time: int, num_training: int, max_uih_len: int, max_candidates: int) -> Request:
    """The request of a user at one time of the inference.

    The history has all earlier periods but the evaluation, and is cut behind its first `max_uih_len` events,
    as in the benchmark's loader.

    Args:
        user: the user.
        time: the period's number, from `num_training` on.
        num_training: periods of training.
        max_uih_len: the longest history.
        max_candidates: the most candidates.

    Raises:
        DataError: the user has no request at that time.
    """
    last = len(user.periods) - 3
    if not num_training <= time <= last:
        raise DataError("time", time, "is no time of the inference", f"give {num_training} to {last}")
    now = user.periods[time + 2]
    if now is None:
        raise DataError(
            "time", time, f"has no request of user {user.number}", "take a time of the user's own"
        )
    evaluation = num_training + 1
    past = [period for place, period in enumerate(user.periods[: time + 2]) if place != evaluation]
    return _request(user.number, past, now, max_uih_len, max_candidates)


def training_request(
    user: User, time: int, num_training: int, max_uih_len: int, max_candidates: int
) -> Request:
    """The request of a user at one time of the training, or of the evaluation behind it.

    The history has all earlier periods, cut as in `request`.

    Args:
        user: the user.
        time: the period's number, up to `num_training`, the evaluation.
        num_training: periods of training.
        max_uih_len: the longest history.
        max_candidates: the most candidates.

    Raises:
        DataError: the user has no request at that time.
    """
    if not 0 <= time <= num_training:
        raise DataError("time", time, "is no time of the training", f"give 0 to {num_training}")
    now = user.periods[time + 1]
    if now is None:
        raise DataError(
            "time", time, f"has no request of user {user.number}", "take a time of the user's own"
        )
    return _request(user.number, user.periods[: time + 1], now, max_uih_len, max_candidates)


def _request(
    number: int, past: Sequence[Period | None], now: Period, max_uih_len: int, max_candidates: int
) -> Request:
    there = [period for period in past if period is not None]
    items = np.concatenate([np.zeros(0, np.int64), *(period.events for period in there)])[:max_uih_len]
    stars = np.concatenate([np.zeros(0), *(period.event_ratings for period in there)])[:max_uih_len]
    return Request(
        user=number,
        items=items,
        actions=np.array(ACTION_WEIGHTS)[stars.astype(np.int64) - 1],
        candidates=now.candidates[:max_candidates],
        labels=(now.candidate_ratings[:max_candidates] >= LIKED).astype(np.int64),
    )


def to_line(user: User) -> str:
    """A user as a line of the benchmark's files, with its end."""
    row: list[str] = []
    for period in user.periods:
        lists = (
            [()] * FIELDS_OF_A_PERIOD if period is None else [getattr(period, f.name) for f in fields(Period)]
        )
        row += [",".join(map(str, np.asarray(values).tolist())) for values in lists]
    text = io.StringIO()
    csv.writer(text).writerow(row)
    return text.getvalue()
