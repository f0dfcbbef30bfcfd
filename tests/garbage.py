"""Python's garbage collection, which takes up to 40 % of a test process as Python sets it.

The collector walks through all modules and tests over and over, though these live as long as the process:
783,000 objects, which took 8 % of a process's time even with rare collections.
"""

from __future__ import annotations

import gc

import pytest

NEW_OBJECTS = 10_000
"""New objects, less those that went, after which the collector looks at the young ones. Python's own: 700."""


def pytest_collection() -> None:
    """Collect tests without collections of garbage: there is hardly any."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Let the tests run with rare collections, which leave all modules and tests out."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def pytest_unconfigure() -> None:
    """Let Python free all at its end: Triton's extension reports what is left as leaks."""
    gc.unfreeze()
