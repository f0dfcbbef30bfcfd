"""Generated requests of streaming data: periods of training, and the evaluation behind them.

Source of the periods and of the sizes of `STREAMING_400M`: meta-recsys/generative-recommenders,
generative_recommenders/dlrm_v3, ``utils.py`` and ``train/gin/streaming_400m.gin``. The mean number of an
item's events, which is not there, is the benchmark's. The other data have fewer users and items.

Legend: R requests, E events of all users, H events of the longest history, T candidates at most.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from datasets.dlrmv3.generator import Settings, every_user
from datasets.dlrmv3.users import Request, training_request
from datasets.errors import DataError

STREAMING_400M = Settings(
    num_users=150_000, num_items=1_500_000, num_files=3, num_timestamps=10, num_training=8
)
"""Means of 50 events a period, and histories of up to 650 events."""
SMALL = Settings(
    num_users=1200,
    num_items=4000,
    num_categories=16,
    num_files=3,
    num_timestamps=10,
    num_training=8,
    avg_samples_per_item=90,
    num_eval_candidates=24,
    num_inference_candidates=63,
)
"""Means of 30 events a period."""
TINY = Settings(
    num_users=48,
    num_items=320,
    num_categories=8,
    num_files=2,
    num_timestamps=10,
    num_training=2,
    avg_samples_per_item=5,
    num_eval_candidates=2,
    num_inference_candidates=4,
)
"""Three events a period, and histories of 3 to 30 events."""
SETTINGS = {"streaming_400m": STREAMING_400M, "small": SMALL, "tiny": TINY}
"""The data by the names of a case's `requests`."""
TRAIN, EVALUATION = "train", "evaluation"
MOMENT = 1
"""The second of every event and of every query, as in the benchmark's loader."""


@dataclass(frozen=True)
class Requests:
    """Requests with zeros in their padding.

    Attributes:
        users: (R,) int64.
        uih_lengths, num_candidates: (R,) int64.
        items, actions: (R, H) int64.
        candidates, labels: (R, T) int64; a label is 0 or 1.
    """

    users: np.ndarray
    uih_lengths: np.ndarray
    num_candidates: np.ndarray
    items: np.ndarray
    actions: np.ndarray
    candidates: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return self.users.size

    def rows(self, rows: slice | np.ndarray) -> Requests:
        """Some of the requests."""
        return Requests(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def is_candidate(self) -> np.ndarray:
        """(R, T) bool: whether a place holds a candidate."""
        return np.arange(self.candidates.shape[1]) < self.num_candidates[:, None]


def padded(requests: Sequence[Request], max_uih_len: int, max_candidates: int) -> Requests:
    """Requests of at most these lengths."""

    def rows(lists: Iterable[np.ndarray], width: int) -> np.ndarray:
        return np.stack([np.pad(values, (0, width - values.size)) for values in lists])

    return Requests(
        users=np.array([one.user for one in requests]),
        uih_lengths=np.array([one.items.size for one in requests]),
        num_candidates=np.array([one.candidates.size for one in requests]),
        items=rows((one.items for one in requests), max_uih_len),
        actions=rows((one.actions for one in requests), max_uih_len),
        candidates=rows((one.candidates for one in requests), max_candidates),
        labels=rows((one.labels for one in requests), max_candidates),
    )


@dataclass(frozen=True)
class Part:
    """Requests of one part of the data. Each history is the beginning of its user's events.

    Attributes:
        users: (R,) int64.
        starts, uih_lengths: (R,) int64, a history's place among all events, and its length.
        candidates: (R, T) int32.
        labels: (R, T) int8.
        items, actions: (E,) int32 and int8, of all users; the parts share them.
    """

    users: np.ndarray
    starts: np.ndarray
    uih_lengths: np.ndarray
    candidates: np.ndarray
    labels: np.ndarray
    items: np.ndarray
    actions: np.ndarray

    def __len__(self) -> int:
        return self.users.size

    def rows(self, rows: np.ndarray) -> Requests:
        """Some of the requests, padded to their longest history."""
        lengths = self.uih_lengths[rows]
        places_H = np.arange(lengths.max(initial=1))
        is_event = places_H < lengths[:, None]
        events = np.where(is_event, self.starts[rows][:, None] + places_H, 0)
        candidates = self.candidates[rows].astype(np.int64)
        return Requests(
            users=self.users[rows],
            uih_lengths=lengths,
            num_candidates=np.full(lengths.size, candidates.shape[1]),
            items=np.where(is_event, self.items[events], 0).astype(np.int64),
            actions=np.where(is_event, self.actions[events], 0).astype(np.int64),
            candidates=candidates,
            labels=self.labels[rows].astype(np.int64),
        )


def generate(
    settings: Settings, max_uih_len: int, max_candidates: int, num_users: int | None = None
) -> dict[str, Part]:
    """The requests of `TRAIN` and of `EVALUATION`, by user and then in order of time.

    Args:
        settings: the sizes of the data.
        max_uih_len: longest history. A longer one keeps its first events, as in the benchmark's loader.
        max_candidates: T is at most this.
        num_users: so many users, the first ones; None for all.

    Raises:
        DataError: there are fewer users, or they have no request of the training.
    """
    most = settings.generated_users
    if num_users is not None and not 0 < num_users <= most:
        raise DataError("--users", num_users, "is no number of the data's users", f"give 1 to {most}")
    items, actions, start = [], [], 0
    parts: dict[str, list[tuple]] = {TRAIN: [], EVALUATION: []}
    first = settings.num_training
    for user in islice(every_user(settings), num_users):
        there = [time for time in range(first + 1) if user.periods[time + 1] is not None]
        for time in there:
            one = training_request(user, time, first, sys.maxsize, max_candidates)
            length = min(one.items.size, max_uih_len)
            row = (user.number, start, length, one.candidates.astype(np.int32), one.labels.astype(np.int8))
            parts[EVALUATION if time == first else TRAIN].append(row)
        # The last one is the evaluation, where everybody is, and its history begins with the others'.
        items.append(one.items.astype(np.int32))
        actions.append(one.actions.astype(np.int8))
        start += one.items.size
    if not parts[TRAIN]:
        raise DataError("--users", num_users, "have no request of the training", "give more")
    events = (np.concatenate(items), np.concatenate(actions))
    return {
        name: Part(*(np.stack(column) for column in zip(*rows, strict=True)), *events)
        for name, rows in parts.items()
    }
