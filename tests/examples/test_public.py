"""The scripts for public code. They run where the variable PUBLIC_CODE names a folder of checkouts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.locations import ROOT

FOLDER = ROOT / "examples" / "public"
SCRIPTS = {
    "nvidia_hstu.py": ("incubator-dlrmv3", ["are 16 of 43 tensors of the port", "fp32 PASS: 23 modules"]),
    "nvidia_hstu_check.py": ("incubator-dlrmv3", ["Copied 27 parameters", "run 2", "Outputs match within"]),
    "nvidia_nanogpt.py": (
        "incubator",
        ["FAIL at transformer.h.0.mlp", "GELU by erf in place of tanh", "PASS: 24"],
    ),
    "meta_stu_times.py": (
        "generative-recommenders",
        ["101 x   8: [7, 7, 7, 7, 7, 0]", "[50, 48, 45, 40, 30, 0]"],
    ),
    "meta_triton_strides.py": (
        "generative-recommenders",
        [
            "slices: rows of q begin every 2048 numbers, in the descriptor 512; 511 of 512 rows are others",
            "contiguous: rows of q begin every 512 numbers, in the descriptor 512; 0 of 512 rows are others",
        ],
    ),
    "meta_dlrmv3.py": (
        "inference",
        [
            "200 users, 3 contextual rows",
            "within 1e-6\non times beyond",
            "difference 0.27\n70",
            "difference 0.21\n",
        ],
    ),
    "nvidia_stu_times.py": ("recsys-examples", ["rows of a table of 21: [50, 48, 45, 40, 30, 0]"]),
    "meta_dlrm.py": ("dlrm", ["16777216: 25% are", "row 4194305", "four ids: 40;", "mean 0.507"]),
    "lecture_dlrm.py": (
        "cuda-mode-lecture",
        ["186624 products; pairs: 351", "hashes: 0.0", "[0, 5, 0]", "()"],
    ),
}
"""Name of the checkout's folder, and words of the output, by script."""
ALONE = {
    "nvtripy_compile.py",
    "inductor_tail.py",
    "onnxruntime_functions.py",
    "onnx_optimizer.py",
    "onednn_rows.py",
}
"""Scripts that need no checkout."""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / script, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_each_script_has_a_test():
    scripts = {path.name for path in FOLDER.glob("*.py")} - {"checkout.py", "stu_times.py"}
    assert scripts == {*SCRIPTS, *ALONE}
    findings = (ROOT / "docs" / "findings.md").read_text()
    assert {script for script in scripts if f"python examples/public/{script}" not in findings} == set()


@pytest.mark.full
def test_call_stacks_and_the_replaced_stderr():
    result = run("nvtripy_compile.py")
    assert result.returncode == 0, result.stderr
    assert "the same file: False" in result.stdout
    assert re.findall(r"in [\d.]+ s (\w+) call stacks", result.stdout) == ["with", "without"]


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's compiler needs g++ on a CPU")
def test_rows_that_pytorchs_compiler_leaves_out():
    result = run("inductor_tail.py")
    assert result.returncode == 0, result.stderr
    # A PyTorch that writes all rows has none.
    assert re.search(
        r"(22 of 54 rows are wrong: \[32, .*, 53\]|0 of 54 rows are wrong: \[\])$", result.stdout.strip()
    )


@pytest.mark.full
def test_functions_of_a_number_in_exported_graphs():
    pytest.importorskip("onnxruntime", reason="the script needs onnxruntime: pip install onnxruntime")
    result = run("onnxruntime_functions.py")
    assert result.returncode == 0, result.stderr
    names = re.findall(r"^(.+): error", result.stdout, re.MULTILINE)
    # A later version of either library may be right.
    known = "sigmoid silu elu celu selu erfc expm1 log1p logsigmoid".split()
    assert set(names) <= {*known, "logaddexp(x, 0)"}


@pytest.mark.full
def test_constants_that_an_optimizer_drops():
    pytest.importorskip("onnxscript", reason="the script needs onnxscript: pip install onnxscript")
    result = run("onnx_optimizer.py")
    assert result.returncode == 0, result.stderr
    # A later optimizer may keep them.
    assert "without the optimizer: Add, Reciprocal" in result.stdout
    assert re.search(r"\nwith the optimizer: (Reciprocal, Identity|Add, Reciprocal.*)\n", result.stdout)


def test_rows_that_reach_the_row_in_front():
    """The instructions of these tests have no tiles; a CPU with tiles and other ones has rows 3 and 4."""
    result = run("onednn_rows.py")
    assert result.returncode == 0, result.stderr
    assert re.findall("rows (.+) change", result.stdout) == ["4"] * 7


def test_a_missing_checkout_or_package_ends_with_2_and_the_command_that_brings_it(tmp_path):
    (tmp_path / "part").mkdir()
    for arguments, problem in (
        ((), "no --checkout DIR; get the public code with: git clone URL DIR"),
        (("--checkout", tmp_path / "other"), f"no part in {tmp_path / 'other'}; get the public code with"),
        (("--checkout", tmp_path), "no absent_package: pip install absent_package"),
    ):
        program = "from checkout import public_module; public_module('name', 'URL', 'part', 'absent_package')"
        command = [sys.executable, "-c", program, *map(str, arguments)]
        result = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout) == (2, "")
        assert problem in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_output_on_public_code(script):
    if "PUBLIC_CODE" not in os.environ:
        pytest.skip("PUBLIC_CODE names no folder of checkouts of public code")
    folder, words = SCRIPTS[script]
    result = run(script, "--checkout", Path(os.environ["PUBLIC_CODE"]) / folder)
    assert result.returncode == 0, result.stderr
    assert [word for word in words if word not in result.stdout] == []
