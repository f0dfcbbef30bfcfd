"""The kernels compile for GPUs that are not here: Triton's as they are launched, and the CUDA C++."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.kernels.compiling import FORMS, GENERATIONS, ROOT, assert_compiles_and_fits
from tests.kernels.marks import needs_triton
from tests.selection import first_in_test

NVCC = shutil.which("nvcc")


@needs_triton
@FORMS
def test_every_launch_compiles_and_fits(capability, only_last):
    kernels, last = (2, 2) if only_last else (22, 0)
    assert_compiles_and_fits("tests.kernels.dlrm.compile_all", capability, kernels, last)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("source", first_in_test(["pointwise.cu", "bags_interaction.cu"]))
@pytest.mark.parametrize("capability", GENERATIONS)
def test_the_cuda_sources_compile_without_warnings(capability, source, tmp_path):
    target = f"-gencode=arch=compute_{capability},code=sm_{capability}"
    command = [NVCC, "-std=c++17", "-O3", "-Werror", "all-warnings", target]
    path = ROOT / "kernels/dlrm" / source
    done = subprocess.run(
        [*command, "-c", str(path), "-o", str(tmp_path / "object")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
