"""For all tests, those of `portable/` included: selection, quick call stacks, rare collection of garbage."""

from tests.call_stacks import pytest_collection_finish, pytest_collectstart
from tests.garbage import pytest_collection, pytest_runtestloop
from tests.selection import pytest_collection_modifyitems

__all__ = [
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_collectstart",
    "pytest_runtestloop",
]
