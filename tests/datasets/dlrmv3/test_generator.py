"""Users of MLPerf's DLRMv3 are the public program's, whichever are drawn.

The digests are of the lines that ``streaming_synthetic_data.py`` of mlcommons/inference,
recommendation/dlrm_v3, writes with these settings.
"""

import hashlib
import tracemalloc

import numpy as np
import pytest

from datasets.dlrmv3 import generator
from datasets.dlrmv3.generator import Settings, item_stars, users
from datasets.dlrmv3.users import ACTION_WEIGHTS, request, to_line
from datasets.errors import DataError
from tests.datasets.dlrmv3.small import SMALL

SEVEN = SMALL.__class__(**{**vars(SMALL), "categories_per_user": 7})
ALIKE = Settings(num_users=50_000, num_items=10_000_000)
"""The benchmark's settings with a hundredth of the items and users: as many events of a user."""
DIGESTS = [
    (SMALL, range(240), "616e65df13f7b5066b70e2507be24afbcca1046462ea77a52ebdb643154e7f42"),
    (SEVEN, range(240), "e9bb5e8a200474ff4019e8ac5a6424a7c719b945eb0b28eb7ad8ce1eb9f0e01d"),
    (
        ALIKE,
        [0, 1, 2, 49_500, 49_501, 49_502],
        "c3d2769bf3ec6823e0e1d780908c379cb2014079f7cd077c156a2bc4851db9fd",
    ),
]


def digest(lines):
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(("settings", "numbers", "expected"), DIGESTS, ids=["small", "seven", "alike"])
def test_users_are_those_of_the_public_program(settings, numbers, expected):
    assert digest(map(to_line, users(settings, numbers))) == expected


def test_a_subset_has_the_same_users():
    everyone = {user.number: to_line(user) for user in users(SMALL, range(240))}
    numbers = [200, 3, 81, 79, 239]
    some = [(user.number, to_line(user)) for user in users(SMALL, numbers)]
    assert some == [(number, everyone[number]) for number in sorted(numbers)]
    assert list(users(SMALL, [])) == []


def test_stars_of_items_are_those_of_one_large_choice(monkeypatch):
    monkeypatch.setattr(generator, "_PIECE", 1000)
    np.random.seed(1001)  # noqa: NPY002, the public program's own call
    shares = [0.2, 0.25, 0.25, 0.2, 0.1]
    every = np.random.choice([5.0, 4.0, 3.0, 2.0, 1.0], size=10_001, p=shares)  # noqa: NPY002
    assert np.array_equal(item_stars(10_001, np.arange(10_001)), every)
    some = np.array([0, 999, 1000, 1001, 5000, 10_000])
    assert np.array_equal(item_stars(10_001, some), every[some])


def test_memory_does_not_grow_with_the_items():
    tracemalloc.start()
    item_stars(1 << 25, np.array([0, (1 << 25) - 1]))
    _, largest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # One byte an item would be 32 MiB.
    assert largest < 20 << 20


@pytest.mark.parametrize("number", [-1, 240])
def test_an_unknown_user_is_refused(number):
    with pytest.raises(DataError, match=f"user: {number} is no user of the data; give 0 to 239"):
        list(users(SMALL, [number]))


def test_a_request_has_all_earlier_periods_but_the_evaluation():
    (user,) = users(SMALL, [1])
    time = SMALL.num_training
    assert user.periods[time + 2] is not None
    now, query = user.periods[time + 2], request(user, time, time, 16_351, 2048)
    past = [period for period in user.periods[: time + 1] if period is not None]
    assert query.items.tolist() == [item for period in past for item in period.events.tolist()]
    assert query.candidates.tolist() == now.candidates.tolist()
    assert query.labels.tolist() == [int(stars >= 3.5) for stars in now.candidate_ratings]
    stars = [int(stars) for period in past for stars in period.event_ratings]
    assert query.actions.tolist() == [ACTION_WEIGHTS[star - 1] for star in stars]
    cut = request(user, time, time, 10, 5)
    assert (cut.items.tolist(), cut.candidates.tolist()) == (
        query.items[:10].tolist(),
        query.candidates[:5].tolist(),
    )


def test_a_time_without_a_request_is_refused():
    (user,) = users(SMALL, [1])
    with pytest.raises(DataError, match="time: 3 is no time of the inference; give 9 to 9"):
        request(user, 3, SMALL.num_training, 10, 10)
    away = next(user for user in users(SMALL, range(40)) if user.periods[SMALL.num_training + 2] is None)
    with pytest.raises(DataError, match=f"has no request of user {away.number}"):
        request(away, SMALL.num_training, SMALL.num_training, 10, 10)
