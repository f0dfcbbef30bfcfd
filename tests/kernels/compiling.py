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


def assert_compiles_and_fits(module: str, capability: int, forms: int) -> None:
    """`module`, called with a compute capability, writes each form's shared memory; it must fit the GPU."""
    shared = printed_by(module, str(capability))
    assert len(shared) == forms
    assert max(shared.values()) <= SHARED[capability], shared
