"""Compiles kernels for GPUs that need not be there.

A process of its own compiles them. The tests run Triton's interpreter, which excludes compilation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.locations import ROOT

# Bytes that a block may have: NVIDIA's CUDA programming guide, table of technical specifications.
SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
# One generation of GPUs in `make test`, the others in `make test-full`.
GENERATIONS = [pytest.param(number, marks=() if number == 90 else pytest.mark.full) for number in SHARED]
# The plugins have one kernel for the newest generation, and several for the others.
PLUGIN_GENERATIONS = [
    pytest.param(number, marks=() if number == 100 else pytest.mark.full) for number in SHARED
]
# And of the forms of kernels only the last: a fresh machine compiles them all in a minute.
FORMS = pytest.mark.parametrize(
    ("capability", "only_last"),
    [
        pytest.param(90, True, id="90-last"),
        *(pytest.param(number, False, marks=pytest.mark.full, id=f"{number}-all") for number in SHARED),
    ],
)


def printed_by(module: str, *arguments: str, **variables: str) -> Any:
    """The JSON that a program writes; `variables` are added to its environment."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def assert_compiles_and_fits(module: str, capability: int, kernels: int, last: int = 0) -> None:
    """`module` compiles kernels in all forms, or in the last ones, and writes the shared memory of each.

    That memory must fit the GPU.
    """
    shared = printed_by(module, str(capability), str(last))
    assert len(shared) == kernels
    assert max(shared.values()) <= SHARED[capability], shared
