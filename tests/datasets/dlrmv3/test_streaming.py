"""Small generated requests: their parts, their padding, and the history in front of each."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from datasets.dlrmv3 import streaming
from datasets.dlrmv3.generator import users
from datasets.dlrmv3.users import ACTION_WEIGHTS, training_request
from datasets.errors import DataError
from tests.datasets.dlrmv3.small import SMALL

PARTS = (streaming.TRAIN, streaming.EVALUATION, streaming.INFERENCE)
DIGEST = "11d3d66d907387caf8af91286a00b00ad03654ea3752ba213d6c202c00629861"
"""Digest of the requests of `streaming.SMALL` that the training and the audit take."""


def digest(parts: dict[str, streaming.Requests]) -> str:
    sha = hashlib.sha256()
    for name in PARTS:
        for array in vars(parts[name]).values():
            sha.update(np.ascontiguousarray(array.astype(np.int64)))
    return sha.hexdigest()


@pytest.fixture(scope="module")
def parts():
    return streaming.generate(SMALL, 30, 100, PARTS)


def test_parts_are_padded_with_zeros(parts):
    for name, most in zip(PARTS, (8, 8, 100), strict=True):
        requests = parts[name]
        assert requests.items.shape == requests.actions.shape == (len(requests), 30)
        assert requests.candidates.shape == requests.labels.shape == (len(requests), 100)
        assert set(requests.num_candidates) == {most}
        assert not requests.candidates[~requests.is_candidate()].any()
        past = np.arange(30) >= requests.uih_lengths[:, None]
        assert not requests.items[past].any()
        assert not requests.actions[past].any()
        assert set(np.unique(requests.labels)) == {0, 1}
        assert set(np.unique(requests.actions)) <= {0, *ACTION_WEIGHTS}
    assert len(parts[streaming.EVALUATION]) == SMALL.num_users
    assert 0 < len(parts[streaming.INFERENCE]) < SMALL.num_users


def test_requests_come_in_order_of_time_and_of_users(parts):
    (drops,) = np.nonzero(np.diff(parts[streaming.TRAIN].users) <= 0)
    assert drops.size == SMALL.num_training - 1


def test_the_history_of_training_is_all_that_came_before(parts):
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


def test_some_rows_of_requests(parts):
    requests = parts[streaming.TRAIN].rows(np.array([4, 2]))
    assert len(requests) == 2
    assert np.array_equal(requests.items, parts[streaming.TRAIN].items[[4, 2]])


@pytest.mark.full
def test_the_requests_of_training_and_audit_stay_the_same():
    assert digest(streaming.generate(streaming.SMALL, 100, 63, PARTS)) == DIGEST
