"""Memory of a GPU that runners share: it is waited for, and given back; who has none gets a turn alone."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.slices import MemoryBudget
from parity.execution import collect, gpu_memory
from parity.execution.record import RunnerFailure, Status


@pytest.fixture
def gpu(monkeypatch):
    """A process that uses a GPU, with the numbers of its memory and how often freed memory went back."""
    state = SimpleNamespace(reserved=0, allocated=0, given_back=0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: state.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: state.allocated)

    def empty():
        state.given_back += 1

    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    monkeypatch.setattr(gpu_memory, "_PAUSE", 0.001)
    return state


class Work:
    """Work that raises an error so many times before it has a result."""

    def __init__(self, error, times):
        self.error, self.left, self.calls = error, times, 0

    def __call__(self):
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "result"


def test_work_without_room_is_done_again(gpu):
    work = Work(torch.OutOfMemoryError("CUDA out of memory"), 3)
    assert gpu_memory.with_room(work) == "result"
    assert (work.calls, gpu.given_back) == (4, 3)


def test_work_that_never_has_room_raises(gpu, monkeypatch):
    monkeypatch.setattr(gpu_memory, "PATIENCE", 0.02)
    work = Work(torch.OutOfMemoryError("CUDA out of memory"), 10**6)
    with pytest.raises(torch.OutOfMemoryError):
        gpu_memory.with_room(work)
    assert work.calls > 1


def test_another_error_is_raised_at_once(gpu):
    work = Work(ValueError("wrong"), 1)
    with pytest.raises(ValueError, match="wrong"):
        gpu_memory.with_room(work)
    assert work.calls == 1


def test_without_a_gpu_a_failed_allocation_is_raised_at_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    work = Work(torch.OutOfMemoryError("CUDA out of memory"), 1)
    with pytest.raises(torch.OutOfMemoryError):
        gpu_memory.with_room(work)
    assert work.calls == 1


@pytest.mark.parametrize(("freed", "times"), [(2**30, 0), (2**30 + 1, 1)])
def test_much_freed_memory_goes_back(gpu, freed, times):
    gpu.reserved, gpu.allocated = freed + 5, 5
    gpu_memory.give_back()
    assert gpu.given_back == times


def test_without_a_gpu_nothing_goes_back(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    gpu.reserved = 2**31
    gpu_memory.give_back()
    assert gpu.given_back == 0


class Process:
    """A runner's process whose requests fail so many times."""

    def __init__(self, status, times, alive=True):
        self.status, self.left, self.alive, self.calls = status, times, alive, 0

    def request(self, command, *arguments, **keywords):
        self.calls += 1
        if self.left:
            self.left -= 1
            raise RunnerFailure(self.status, "no room")
        return "result"


class Rooms:
    """A scheduler that notes which parts of the machine were used, and that they are left again."""

    def __init__(self):
        self.used, self.inside = [], 0

    @contextlib.contextmanager
    def _room(self, name):
        assert not self.inside, "a part of the machine inside another one"
        self.used.append(name)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def shared(self):
        return self._room("shared")

    def alone(self):
        return self._room("alone")


def collection(monkeypatch, process, has_gpu=True, budget=None):
    monkeypatch.setattr(collect._Collection, "_has_gpu", lambda _: has_gpu)
    own = collect._Collection.__new__(collect._Collection)
    own._pool = SimpleNamespace(get=lambda *_: process)
    own._batch = SimpleNamespace(precision=PRECISIONS["fp32"])
    own._scheduler, own._oracle_uses_gpu = Rooms(), True
    own._budget = budget or MemoryBudget()
    return own


def test_a_runner_without_memory_of_the_gpu_has_it_alone(monkeypatch):
    process = Process(Status.OUT_OF_MEMORY, 1)
    own = collection(monkeypatch, process)
    assert own._ask("tripy", collect.Commands.run) == "result"
    assert (process.calls, own._scheduler.used) == (2, ["shared", "alone"])


@pytest.mark.parametrize(
    ("process", "has_gpu", "calls"),
    [
        (Process(Status.OUT_OF_MEMORY, 9), True, 2),
        (Process(Status.OUT_OF_MEMORY, 9), False, 1),
        (Process(Status.OUT_OF_MEMORY, 9, alive=False), True, 1),
        (Process(Status.ERROR, 9), True, 1),
    ],
    ids=["alone, too", "of the host", "killed", "another failure"],
)
def test_other_failures_stand(monkeypatch, process, has_gpu, calls):
    own = collection(monkeypatch, process, has_gpu)
    with pytest.raises(RunnerFailure, match="no room"):
        own._ask("tripy", collect.Commands.run)
    assert process.calls == calls


@pytest.mark.parametrize(
    ("has_gpu", "memory", "room"),
    [(False, float("inf"), "alone"), (True, float("inf"), "shared"), (True, 1e12, "alone")],
)
def test_a_large_run_on_a_gpu_is_beside_others(monkeypatch, has_gpu, memory, room):
    budget = MemoryBudget(alone_bytes=10, memory=memory)
    own = collection(monkeypatch, Process(Status.OK, 0), has_gpu, budget)
    with own._room_for(11):
        pass
    with own._room_for(10):
        pass
    assert own._scheduler.used == [room, "shared"]
