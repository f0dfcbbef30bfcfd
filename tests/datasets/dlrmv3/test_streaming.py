"""Generated requests for training: their parts, their padding, and the history in front of each."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from datasets.dlrmv3 import streaming
from datasets.dlrmv3.generator import users
from datasets.dlrmv3.users import training_request
from datasets.errors import DataError
from tests.datasets.dlrmv3.small import SMALL

PARTS = (streaming.TRAIN, streaming.EVALUATION)
LONGEST, MOST_CANDIDATES = 30, 5
DIGEST = "9adcea51d0375fe38e1736cce4faefa6c0e7f9ae1fa9404fe5ab1a2e1db47ac5"
"""Digest of the requests of `streaming.SMALL` that train."""


def digest(parts: dict[str, streaming.Part]) -> str:
    sha = hashlib.sha256()
    for name in PARTS:
        for array in vars(parts[name]).values():
            sha.update(np.ascontiguousarray(array.astype(np.int64)))
    return sha.hexdigest()


@pytest.fixture(scope="module")
def parts():
    return streaming.generate(SMALL, LONGEST, MOST_CANDIDATES)


def test_requests_are_those_of_each_user_in_order_of_time(parts):
    drawn = {
        name: [
            training_request(user, time, SMALL.num_training, LONGEST, MOST_CANDIDATES)
            for user in users(SMALL, range(SMALL.num_users))
            for time in times
            if user.periods[time + 1] is not None
        ]
        for name, times in zip(
            PARTS, (range(SMALL.num_training), range(SMALL.num_training, SMALL.num_training + 1)), strict=True
        )
    }
    for name in PARTS:
        expected = streaming.padded(drawn[name], LONGEST, MOST_CANDIDATES)
        requests = parts[name].rows(np.arange(len(parts[name])))
        assert len(parts[name]) == len(requests) == len(expected)
        for field in expected.__dataclass_fields__:
            own, wanted = getattr(requests, field), getattr(expected, field)
            assert np.array_equal(own, wanted), (name, field)
    assert len(parts[streaming.EVALUATION]) == SMALL.num_users


def test_rows_are_padded_to_their_longest_history(parts):
    part = parts[streaming.TRAIN]
    shortest, longest = np.argsort(part.uih_lengths, kind="stable")[[0, -1]]
    alone = part.rows(np.array([shortest]))
    assert alone.items.shape == alone.actions.shape == (1, part.uih_lengths[shortest])
    both = part.rows(np.array([longest, shortest]))
    assert both.items.shape == both.actions.shape == (2, LONGEST)
    assert np.array_equal(both.items[1, : alone.items.size], alone.items[0])
    assert not both.items[1, alone.items.size :].any()
    assert not both.actions[1, alone.items.size :].any()
    assert both.is_candidate().all()


def test_the_history_of_training_is_all_that_came_before():
    first, user = 3, next(users(SMALL, [17]))
    assert user.periods[first + 1] is not None
    taken = training_request(user, first, SMALL.num_training, 10**6, 5)
    events = [period.events for period in user.periods[: first + 1] if period is not None]
    assert np.array_equal(taken.items, np.concatenate(events))
    assert np.array_equal(taken.candidates, user.periods[first + 1].candidates[:5])
    evaluation = training_request(user, SMALL.num_training, SMALL.num_training, 10**6, 5)
    assert np.array_equal(evaluation.candidates, user.periods[SMALL.num_training + 1].candidates[:5])


def test_a_time_without_a_request_is_refused():
    user = next(users(SMALL, [17]))
    away = next(time for time, period in enumerate(user.periods[1:9]) if period is None)
    with pytest.raises(DataError, match="has no request of user 17"):
        training_request(user, away, SMALL.num_training, 5, 5)
    for time in (-1, SMALL.num_training + 1):
        with pytest.raises(DataError, match="is no time of the training; give 0 to 9"):
            training_request(user, time, SMALL.num_training, 5, 5)


def test_some_users_are_the_first_ones(parts):
    few = streaming.generate(SMALL, LONGEST, MOST_CANDIDATES, num_users=90)
    for name in PARTS:
        rows = np.flatnonzero(parts[name].users < 90)
        own, expected = few[name].rows(np.arange(len(few[name]))), parts[name].rows(rows)
        for field in expected.__dataclass_fields__:
            assert np.array_equal(getattr(own, field), getattr(expected, field)), (name, field)


@pytest.mark.parametrize("number", [0, -1, 241])
def test_another_number_of_users_is_refused(number):
    with pytest.raises(DataError, match=f"--users: {number} is no number of the data's users; give 1 to 240"):
        streaming.generate(SMALL, 5, 5, number)


def test_users_without_training_are_refused():
    settings = replace(streaming.TINY, user_sampling_ratio=0.0)
    with pytest.raises(DataError, match="--users: 3 have no request of the training; give more"):
        streaming.generate(settings, 5, 5, 3)


@pytest.mark.full
def test_the_requests_of_training_stay_the_same():
    assert digest(streaming.generate(streaming.SMALL, 100, 63)) == DIGEST


def test_meta_s_sizes_are_the_public_ones():
    sizes = streaming.STREAMING_400M
    assert (sizes.num_users, sizes.num_items, sizes.num_categories) == (150_000, 1_500_000, 128)
    assert (sizes.num_files, sizes.num_timestamps, sizes.num_training) == (3, 10, 8)
    assert (sizes.num_eval_candidates, sizes.num_inference_candidates, sizes.mean_events) == (32, 2048, 50)
