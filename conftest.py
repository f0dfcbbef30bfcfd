"""For the tests of the project and those of `portable/`: which ones are selected, and quick call stacks."""

from tests.call_stacks import pytest_collection_finish, pytest_collectstart
from tests.selection import pytest_collection_modifyitems

__all__ = ["pytest_collection_finish", "pytest_collection_modifyitems", "pytest_collectstart"]
