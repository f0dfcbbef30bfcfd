"""Requests in the benchmark's order: the same from the generator and from files, some of each period."""

import numpy as np
import pytest

from datasets.dlrmv3 import in_order, streaming
from datasets.dlrmv3.generator import users
from datasets.dlrmv3.streaming import TINY
from datasets.dlrmv3.users import request
from datasets.errors import DataError
from tests.datasets.dlrmv3.small import write_folder

USERS = {user.number: user for user in users(TINY, range(48))}
LENGTHS = (21, 5)
ALL = streaming.padded(
    [
        request(user, time, TINY.num_training, *LENGTHS)
        for time in range(TINY.num_training, TINY.num_timestamps)
        for user in USERS.values()
        if user.periods[time + 2] is not None
    ],
    *LENGTHS,
)


def is_equal(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path, TINY, USERS)
    return tmp_path


def test_all_requests_come_in_order_of_time_and_user(folder):
    assert is_equal(in_order.generated(TINY, len(ALL), *LENGTHS), ALL)
    assert is_equal(in_order.recorded(folder, TINY, len(ALL), *LENGTHS), ALL)


@pytest.mark.parametrize("count", [1, 48, 100])
def test_fewer_requests_are_an_equal_share_of_each_period(folder, count):
    some = ALL.rows(np.arange(count) * len(ALL) // count)
    assert is_equal(in_order.recorded(folder, TINY, count, *LENGTHS), some)
    if count >= len(USERS):
        assert is_equal(in_order.generated(TINY, count, *LENGTHS), some)


def test_few_requests_are_those_of_the_first_users():
    own = ALL.rows(ALL.users < 12)
    assert is_equal(in_order.generated(TINY, 12, *LENGTHS), own.rows(np.arange(12) * len(own) // 12))


def test_more_requests_than_there_are_is_refused(folder):
    for draw in (in_order.generated, lambda *sizes: in_order.recorded(folder, *sizes)):
        with pytest.raises(DataError, match=f"--samples: 270 is more than the {len(ALL)} requests"):
            draw(TINY, 270, *LENGTHS)


def test_the_longest_history_is_the_benchmark_s(monkeypatch):
    monkeypatch.setattr(in_order, "MOST_EVENTS", 7)
    requests = in_order.generated(TINY, 60, *LENGTHS)
    assert requests.uih_lengths.max() == 7
    assert requests.items.shape == (60, 21)
    assert np.array_equal(requests.items[:, :7], ALL.rows(np.arange(60) * len(ALL) // 60).items[:, :7])


def test_files_whose_user_is_away_are_refused(folder):
    first = TINY.num_training
    # A number with as many digits as the last one, so that the places of the lines hold.
    away = next(n for n, user in USERS.items() if n >= 10 and user.periods[first + 2] is None)
    path = folder / "requests_per_ts.csv"
    lines = path.read_bytes().split(b"\r\n")
    lines[first] = lines[first][:-3] + f'{away}"'.encode()
    path.write_bytes(b"\r\n".join(lines))
    with pytest.raises(DataError, match=f"has no request of user {away}"):
        in_order.recorded(folder, TINY, len(ALL), *LENGTHS)
