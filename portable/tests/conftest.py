"""Shared set-up: single-threaded torch; the tests' helpers and the benchmark's model can be imported."""

import sys
from pathlib import Path

import pytest
import torch

# Run from the repository's root, pytest adds neither.
for directory in (Path(__file__).parent, Path(__file__).parents[1] / "benchmarks"):
    sys.path.insert(0, str(directory))

torch.set_num_threads(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`make test` shows each of a test's parameters once, `make test-full` has all other combinations."""
    item.add_marker("sampled")
