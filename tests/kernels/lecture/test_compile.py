"""The kernels compile for GPUs that are not here: Triton's as they are launched, and the CUDA C++."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Bytes that a block may have: NVIDIA's CUDA programming guide, table of technical specifications.
SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
NVCC = shutil.which("nvcc")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("capability", SHARED)
def test_every_launch_compiles_and_fits(capability):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.lecture.compile_all", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    shared = json.loads(done.stdout)
    assert len(shared) == 18
    assert max(shared.values()) <= SHARED[capability], shared


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("source", ["pointwise.cu", "bags_interaction.cu"])
def test_the_cuda_sources_compile_without_warnings(source, tmp_path):
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in SHARED]
    command = [NVCC, "-std=c++17", "-O3", "-Werror", "all-warnings", "--threads", "2", *targets]
    path = ROOT / "kernels/lecture" / source
    done = subprocess.run(
        [*command, "-c", str(path), "-o", str(tmp_path / "object")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
