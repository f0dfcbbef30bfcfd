"""The scheduler: threads by worker, and timing that has the machine to itself."""

import contextlib
import os
import threading
import time

import pytest
import torch

from parity.execution import scheduler
from parity.execution.scheduler import MAX_WORKERS, Scheduler


class _Lost(Exception):
    pass


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return Scheduler()


class _Visitor:
    """A thread inside one of the machine's context managers, until it is told to leave."""

    def __init__(self, place):
        self.entered, self._leave = threading.Event(), threading.Event()

        def visit():
            with place():
                self.entered.set()
                self._leave.wait(30)

        self._thread = threading.Thread(target=visit, daemon=True)
        self._thread.start()

    def is_inside(self, seconds):
        return self.entered.wait(seconds)

    def may_leave(self):
        self._leave.set()

    def leave(self):
        self.may_leave()
        self._thread.join(30)
        return not self._thread.is_alive()


AT_ONCE, SOON = 0.2, 30.0


def _one_inside(visitors):
    """One of the visitors that is inside, as soon as there is one; they enter in any order."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        for visitor in visitors:
            if visitor.is_inside(AT_ONCE / len(visitors)):
                return visitor
    raise AssertionError("no visitor is inside")


def test_threads_are_divided_among_workers(machine, monkeypatch):
    assert (machine.workers, machine.threads_shared, machine.threads_alone) == (MAX_WORKERS, 3, 6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    narrow = Scheduler()
    assert (narrow.workers, narrow.threads_shared, narrow.threads_alone) == (MAX_WORKERS, 1, 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    single = Scheduler()
    assert (single.workers, single.threads_shared, single.threads_alone) == (1, 1, 1)


@pytest.mark.parametrize(("cores", "workers"), [(2, MAX_WORKERS), (5, MAX_WORKERS), (6, 3), (64, 8)])
def test_a_gpu_gets_more_workers_where_cores_allow(cores, workers, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Scheduler().workers == workers


def test_beside_a_gpu_a_runner_has_a_core_and_timing_has_all(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    machine = Scheduler()
    assert (machine.workers, machine.threads_shared) == (6, 1)
    users = [_Visitor(machine.shared) for _ in range(12)]
    assert all(user.is_inside(SOON) for user in users)
    late = _Visitor(machine.alone)
    assert all(user.leave() for user in users[1:])
    assert not late.is_inside(AT_ONCE)
    assert users[0].leave()
    assert late.is_inside(SOON)
    assert late.leave()


def test_work_without_the_gpu_goes_on_beside_timings_of_a_gpu_only(machine, monkeypatch):
    timer = _Visitor(machine.alone)
    assert timer.is_inside(SOON)
    late = _Visitor(machine.without_gpu)
    assert not late.is_inside(AT_ONCE)
    assert timer.leave()
    assert late.leave()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    machine = Scheduler()
    timer = _Visitor(machine.alone)
    assert timer.is_inside(SOON)
    user = _Visitor(machine.without_gpu)
    assert user.is_inside(SOON)
    assert user.leave()
    assert timer.leave()


def test_half_of_the_workers_wait_for_all_before_none_else_begins_and_then_follow_one_another(
    machine, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(scheduler, "JOINING_SECONDS", 60.0)
    machine = Scheduler()
    first = _Visitor(machine.shared)
    assert first.is_inside(SOON)
    timers = [_Visitor(machine.alone) for _ in range(machine.workers // 2 - 1)]
    second = _Visitor(machine.shared)
    assert second.is_inside(SOON)
    timers.append(_Visitor(machine.alone))
    assert not any(timer.is_inside(AT_ONCE) for timer in timers)
    late = _Visitor(machine.shared)
    assert first.leave()
    assert second.leave()
    while timers:
        inside = [timer for timer in timers if timer.is_inside(AT_ONCE)]
        assert len(inside) == 1
        assert not late.is_inside(AT_ONCE)
        timers.remove(inside[0])
        assert inside[0].leave()
    assert late.is_inside(SOON)
    assert late.leave()


@pytest.mark.parametrize("place", ["without_gpu", "recording"])
def test_the_oracle_and_a_reference_that_others_wait_for_precede_other_users_of_a_part(machine, place):
    users = [_Visitor(machine.shared) for _ in range(machine.workers)]
    assert all(user.is_inside(SOON) for user in users)
    others = [_Visitor(machine.shared) for _ in range(3)]
    first = _Visitor(getattr(machine, place))
    assert not first.is_inside(AT_ONCE)
    assert users[0].leave()
    assert first.is_inside(SOON)
    assert not any(other.is_inside(AT_ONCE) for other in others)
    assert users[1].leave()
    # Nobody who is first waits: another begins beside it.
    while others:
        inside = _one_inside(others)
        others.remove(inside)
        assert inside.leave()
    assert first.leave()


def test_a_user_of_all_precedes_users_of_a_part_that_come_later(machine):
    user = _Visitor(machine.shared)
    assert user.is_inside(SOON)
    timer = _Visitor(machine.alone)
    assert not timer.is_inside(AT_ONCE)
    # A part is free, and the timer waits for the other one.
    late = _Visitor(machine.shared)
    assert not late.is_inside(AT_ONCE)
    assert user.leave()
    assert timer.is_inside(SOON)
    assert not late.is_inside(AT_ONCE)
    assert timer.leave()
    assert late.is_inside(SOON)
    assert late.leave()


def test_as_many_share_the_machine_as_it_has_workers(machine):
    users = [_Visitor(machine.shared) for _ in range(machine.workers)]
    assert all(user.is_inside(SOON) for user in users)
    late = _Visitor(machine.shared)
    assert not late.is_inside(AT_ONCE)
    assert users[0].leave()
    assert late.is_inside(SOON)
    assert users[1].leave()
    assert late.leave()


def test_alone_waits_for_shared_users_and_keeps_them_out(machine):
    user = _Visitor(machine.shared)
    assert user.is_inside(SOON)
    timer = _Visitor(machine.alone)
    assert not timer.is_inside(AT_ONCE)
    assert user.leave()
    assert timer.is_inside(SOON)
    late, second_timer = _Visitor(machine.shared), _Visitor(machine.alone)
    assert not late.is_inside(AT_ONCE)
    assert not second_timer.is_inside(AT_ONCE)
    assert timer.leave()
    # Either may be next, and both have their turn.
    late.may_leave()
    second_timer.may_leave()
    assert late.leave()
    assert second_timer.leave()
    assert late.is_inside(AT_ONCE)
    assert second_timer.is_inside(AT_ONCE)


def test_a_single_timing_waits_for_others_only_for_a_moment(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(scheduler, "JOINING_SECONDS", 0.0)
    machine = Scheduler()
    user = _Visitor(machine.shared)
    assert user.is_inside(SOON)
    timer = _Visitor(machine.alone)
    assert not timer.is_inside(AT_ONCE)
    late = _Visitor(machine.shared)
    assert not late.is_inside(AT_ONCE)
    assert user.leave()
    assert timer.is_inside(SOON)
    assert timer.leave()
    assert late.leave()


def test_an_error_while_alone_gives_the_machine_back(machine):
    with contextlib.suppress(_Lost), machine.alone():
        raise _Lost
    user = _Visitor(machine.shared)
    assert user.is_inside(SOON)
    assert user.leave()
