"""Tests run with a collector of garbage that works, and that leaves modules and tests out."""

from __future__ import annotations

import gc

from tests.garbage import NEW_OBJECTS


def test_the_collector_works_on_objects_of_tests_alone() -> None:
    assert gc.isenabled()
    assert gc.get_threshold()[0] == NEW_OBJECTS
    assert gc.get_freeze_count() > 10_000
    objects = {id(thing) for thing in gc.get_objects()}
    assert id(globals()) not in objects
    cycle: list[object] = []
    cycle.append(cycle)
    assert id(cycle) in {id(thing) for thing in gc.get_objects()}
