"""The kernels compile for GPUs that are not here, and ask for no more shared memory than these have."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Bytes that a block may have: NVIDIA's CUDA programming guide, table of technical specifications.
SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("capability", SHARED)
def test_every_form_of_attention_compiles_and_fits(capability):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.hstu.compile_all", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    shared = json.loads(done.stdout)
    assert len(shared) == 12
    assert max(shared.values()) <= SHARED[capability], shared
