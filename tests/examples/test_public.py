"""The scripts for public code. They run where the variable PUBLIC_CODE names a folder of checkouts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.locations import ROOT

FOLDER = ROOT / "examples" / "public"
SCRIPTS = {
    "nvidia_hstu.py": (
        "incubator-dlrmv3",
        ["are 16 of 43 tensors of the port", "fp32 PASS: 23 modules"],
    ),
    "nvidia_nanogpt.py": ("incubator-main", ["FAIL at transformer.h.0.mlp", "GELU by erf in place of tanh"]),
}
"""Name of the checkout's folder, and words of the output, by script."""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / script, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_each_script_has_a_test():
    shared = {"checkout.py"}
    assert {path.name for path in FOLDER.glob("*.py")} - shared == set(SCRIPTS)


def test_a_missing_checkout_ends_with_2_and_the_command_that_brings_it(tmp_path):
    script = next(iter(SCRIPTS))
    for arguments, problem in (((), "no --checkout DIR"), (("--checkout", tmp_path), f"in {tmp_path}")):
        result = run(script, *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert problem in result.stderr
        assert "git clone" in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_output_on_public_code(script):
    if "PUBLIC_CODE" not in os.environ:
        pytest.skip("PUBLIC_CODE names no folder of checkouts of public code")
    folder, words = SCRIPTS[script]
    result = run(script, "--checkout", Path(os.environ["PUBLIC_CODE"]) / folder)
    assert result.returncode == 0, result.stderr
    assert [word for word in words if word not in result.stdout] == []
