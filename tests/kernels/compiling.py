"""Compiles kernels for GPUs that need not be there, in a process of its own: where Triton's interpreter was
chosen, as it is for the tests, nothing can be compiled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Bytes that a block may have: NVIDIA's CUDA programming guide, table of technical specifications.
SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def assert_compiles_and_fits(module: str, capability: int, forms: int) -> None:
    """`module`, called with a compute capability, writes each form's shared memory; it must fit the GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    shared = json.loads(done.stdout)
    assert len(shared) == forms
    assert max(shared.values()) <= SHARED[capability], shared
