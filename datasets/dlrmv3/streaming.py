"""Small generated requests: the benchmark's generator with the periods of Meta's smallest streaming data.

Source of the periods and of the two optimizers' parts: meta-recsys/generative-recommenders,
generative_recommenders/dlrm_v3, ``utils.py`` and ``train/gin/streaming_400m.gin``: ten periods, eight for
training. There are fewer users and items here.

Legend: R requests, H events of the longest history, T candidates at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from datasets.dlrmv3.generator import Settings, users
from datasets.dlrmv3.users import Request, User, request, training_request

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
TRAIN, EVALUATION, INFERENCE = "train", "evaluation", "inference"
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


def generate(
    settings: Settings, max_uih_len: int, max_candidates: int, parts: Sequence[str]
) -> dict[str, Requests]:
    """Requests of some parts of the data, in order of time and then of the users' numbers.

    Args:
        settings: the sizes of the data.
        max_uih_len, max_candidates: H and T.
        parts: of `TRAIN`, `EVALUATION` and `INFERENCE`.
    """
    everybody = list(users(settings, range(settings.users_per_file * settings.num_files)))
    first = settings.num_training
    times = {
        TRAIN: range(first),
        EVALUATION: range(first, first + 1),
        INFERENCE: range(first, settings.num_timestamps),
    }

    def of(part: str, user: User, time: int) -> Request | None:
        if user.periods[time + (2 if part == INFERENCE else 1)] is None:
            return None
        take = request if part == INFERENCE else training_request
        return take(user, time, first, max_uih_len, max_candidates)

    drawn = {part: [of(part, user, time) for time in times[part] for user in everybody] for part in parts}
    return {
        part: padded([one for one in requests if one is not None], max_uih_len, max_candidates)
        for part, requests in drawn.items()
    }
