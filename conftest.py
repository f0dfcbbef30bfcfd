"""For all tests, those of `portable/` included: selection, names, call stacks, rare collection of garbage."""

import os

from parity.base.onednn import without_tiles
from tests.call_stacks import pytest_collection_finish, pytest_collectstart
from tests.garbage import pytest_collection, pytest_runtestloop, pytest_unconfigure
from tests.identifiers import pytest_make_parametrize_id
from tests.selection import pytest_collection_modifyitems

__all__ = [
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_collectstart",
    "pytest_make_parametrize_id",
    "pytest_runtestloop",
    "pytest_unconfigure",
]

# Models that run in a test's own process multiply as those of runners do.
os.environ.update(without_tiles())
