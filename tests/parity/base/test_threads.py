"""The threads that a program may still start are counted before it needs them."""

import os
import resource
import threading

import pytest

from parity.base import threads
from parity.base.errors import UserError


@pytest.fixture
def system_of(monkeypatch):
    """The system gives this number of threads at a time."""

    def gives(most):
        starts = threading.Thread.start
        begun = []

        def start(thread):
            if len(begun) == most:
                raise RuntimeError("can't start new thread")
            begun.append(thread)
            starts(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
        return begun

    return gives


@pytest.mark.parametrize(
    ("cores", "asked", "least"),
    [(2, "", 40), (2, "1", 37), (16, "1", 79), (16, "64", 124), (16, "4,2", 124), (16, "0", 79)],
)
def test_the_least_number_follows_from_cores_and_threads(monkeypatch, cores, asked, least):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads.least() == least


def test_enough_threads_are_given_back(system_of):
    before = threading.active_count(), threading.stack_size()
    begun = system_of(10_000)
    threads.require_threads()
    assert len(begun) == threads.least()
    assert (threading.active_count(), threading.stack_size()) == before


@pytest.mark.parametrize("asked", ["", "1"])
def test_too_few_threads_are_refused_with_the_numbers_and_the_fix(monkeypatch, system_of, asked):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    before = threading.active_count()
    system_of(5)
    needed = threads.least()
    with pytest.raises(UserError) as refused:
        threads.require_threads()
    assert f"may start 5 more threads and processes, and takes up to {needed}; " in str(refused.value)
    assert f"by {needed - 5} (ulimit -u, or --pids-limit of a container)" in str(refused.value)
    assert ("OMP_NUM_THREADS=1" in str(refused.value)) == (asked != "1")
    assert threading.active_count() == before


def test_a_limited_address_space_has_no_trial(monkeypatch, system_of):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**30, 2**30))
    begun = system_of(5)
    threads.require_threads()
    assert begun == []
