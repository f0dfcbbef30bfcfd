"""Requests of the inference in the benchmark's order: period by period, in each by the users' numbers.

A test serves some of them, an equal share of each period. Requests are generated, or read from files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from datasets.dlrmv3.files import Folder
from datasets.dlrmv3.generator import Settings, users
from datasets.dlrmv3.streaming import Requests, padded
from datasets.dlrmv3.users import User, request
from datasets.errors import DataError

MOST_EVENTS = 16_351
"""Events of the longest history that the benchmark's loader keeps."""


def generated(settings: Settings, count: int, max_uih_len: int, max_candidates: int) -> Requests:
    """Some requests of the first users, of at most as many users as requests.

    Args:
        settings: the sizes of the data.
        count: number of requests.
        max_uih_len, max_candidates: lengths of the padded requests.

    Raises:
        DataError: these users have fewer requests.
    """
    number = min(count, settings.generated_users)
    drawn = {user.number: user for user in users(settings, range(number))}
    there = [
        (time, user.number)
        for time in range(settings.num_training, settings.num_timestamps)
        for user in drawn.values()
        if user.periods[time + 2] is not None
    ]
    return _chosen(settings, there, count, drawn.__getitem__, (max_uih_len, max_candidates))


def recorded(path: Path, settings: Settings, count: int, max_uih_len: int, max_candidates: int) -> Requests:
    """Some requests of the benchmark's files, in the order of the files.

    Args:
        path: the folder.
        settings, count, max_uih_len, max_candidates: see `generated`.

    Raises:
        DataError: a file is missing or damaged, or there are fewer requests.
    """
    folder = Folder(path, settings)
    there = [
        (time, int(number))
        for time in range(settings.num_training, settings.num_timestamps)
        for number in folder.requests(time)
    ]
    return _chosen(settings, there, count, folder.user, (max_uih_len, max_candidates))


def _chosen(
    settings: Settings,
    there: Sequence[tuple[int, int]],
    count: int,
    user: Callable[[int], User],
    lengths: tuple[int, int],
) -> Requests:
    """Requests at equal distances among all, given by their time and user."""
    if count > len(there):
        raise DataError(
            "--samples", count, f"is more than the {len(there)} requests of the data", "give fewer"
        )
    chosen = [there[place * len(there) // count] for place in range(count)]
    longest, most_candidates = min(lengths[0], MOST_EVENTS), lengths[1]
    requests = [
        request(user(number), time, settings.num_training, longest, most_candidates)
        for time, number in chosen
    ]
    return padded(requests, *lengths)
