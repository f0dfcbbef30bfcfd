"""Batches of recorded data overlap: two at a time, yielded in order, and one process answers both."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from parity.base.precision import PRECISIONS
from parity.execution.batches import OVERLAPPING, BatchCollection
from parity.execution.commands import Commands
from parity.execution.scheduler import RunnerPool


class _Batches(BatchCollection):
    """Batches of which each waits until `OVERLAPPING` of them run, unless one is to fail."""

    def __init__(self, failing=None):
        self.inside = threading.Barrier(OVERLAPPING)
        self.running, self.most = 0, 0
        self._count, self._failing = threading.Lock(), failing

    def _done(self, number):
        with self._count:
            self.running += 1
            self.most = max(self.most, self.running)
        # A batch that begins beside the failing one has no partner.
        if self._failing is None:
            self.inside.wait(60)
        with self._count:
            self.running -= 1
        if number == self._failing:
            raise OSError("the disk is full")
        return number


def test_two_batches_run_at_a_time_and_come_in_order():
    batches = _Batches()
    assert list(batches._overlapping(0, range(1, 7))) == [0, 1, 2, 3, 4, 5, 6]
    assert batches.most == OVERLAPPING == 2


@pytest.mark.parametrize("judged", range(5))
def test_one_batch_runs_while_another_is_judged(judged):
    begun = {number: threading.Event() for number in range(1, 7)}
    batches = _Batches()
    batches._done = lambda number: begun[number].set() or number
    for number in batches._overlapping(0, range(1, 7)):
        if number == judged:
            assert begun[number + 1].wait(60)
            # Captures take space until they are judged.
            assert not begun[number + 2].wait(0.05)
            break


def test_a_batch_that_fails_ends_the_run():
    with pytest.raises(OSError, match="the disk is full"):
        list(_Batches(failing=2)._overlapping(0, range(1, 5)))


def test_one_process_answers_two_batches(tmp_path):
    pool = RunnerPool(tmp_path, timeout=60.0)
    process = pool.get("torch", PRECISIONS["fp32"])
    try:
        with ThreadPoolExecutor(max_workers=4) as threads:
            answers = threads.map(lambda n: process.request(Commands.call, "operator:neg", n), range(200))
            assert list(answers) == [-n for n in range(200)]
    finally:
        pool.stop()


def test_a_runner_takes_all_captures_of_a_batch_before_those_of_the_next(tmp_path):
    pool = RunnerPool(tmp_path, timeout=60.0)
    steps = []

    def captures(batch):
        with pool.turn("torch"):
            steps.extend([batch] * 100)

    with ThreadPoolExecutor(max_workers=4) as threads:
        list(threads.map(captures, range(4)))
    assert sum(one != other for one, other in pairwise(steps)) == 3
    assert pool.turn("torch") is not pool.turn("tripy")
