"""Tests run with a collector of garbage that works, and rarely."""

from __future__ import annotations

import gc

from tests.garbage import NEW_OBJECTS


def test_the_collector_works_rarely() -> None:
    assert gc.isenabled()
    assert gc.get_threshold()[0] == NEW_OBJECTS
