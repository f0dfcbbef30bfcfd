"""One port under two versions of nvtripy: `compare` lists them, and names the module that one moves."""

import os
import subprocess
import sys

import pytest
from tripy_portable.guard import SUPPORTED_NVTRIPY

from tests.locations import ROOT

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("two_versions")]

OLDEST, NEWEST = SUPPORTED_NVTRIPY[0], SUPPORTED_NVTRIPY[-1]
BIAS = "out = out + unsqueeze(self.bias, 0)"
"""Line of nvtripy's linear layer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has `oldest`, that version of nvtripy, and the runs `first` with it, `second` with the newest."""
    folder = tmp_path_factory.mktemp("versions")
    index = ("--retries", "0", "--timeout", "20", "--disable-pip-version-check")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "oldest"]
    if subprocess.run([*install, *index, f"nvtripy=={OLDEST}"], capture_output=True).returncode:
        pytest.skip(f"nvtripy {OLDEST} cannot be installed from here")
    run(folder, "first", folder / "oldest")
    run(folder, "second")
    return folder


def run(folder, name, nvtripy=None, code=0):
    path = {} if nvtripy is None else {"PYTHONPATH": str(nvtripy)}
    options = ("--case", "dlrm_tiny", "--precision", "fp32", "--runners", "torch,tripy")
    command = [sys.executable, ROOT / "run_parity.py", *options, "--save", folder / name]
    ended = subprocess.run(command, cwd=folder, env=os.environ | path, capture_output=True, text=True)
    assert ended.returncode == code, ended


def compared(folder, first, second):
    """The exit code of `compare`, and its words with single spaces."""
    command = [sys.executable, ROOT / "run_parity.py", "compare", folder / first, folder / second]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return ended.returncode, " ".join(ended.stdout.split())


def test_both_versions_give_the_same_bits(folder):
    code, words = compared(folder, "first", "second")
    assert code == 0, words
    assert f"nvtripy {OLDEST} {NEWEST}" in words
    assert "NOTHING MOVED" in words
    assert " 0 within rounding, 0 beyond it" in words


def test_a_version_that_changes_a_result_is_named_at_its_module(folder):
    """The older version's linear layer adds a larger bias, as a change of a kernel might."""
    layer = folder / "oldest" / "nvtripy" / "frontend" / "module" / "linear.py"
    text = layer.read_text()
    assert text.count(BIAS) == 1
    layer.write_text(text.replace(BIAS, f"{BIAS} * 1.01"))
    run(folder, "changed", folder / "oldest", code=1)
    code, words = compared(folder, "changed", "second")
    assert code == 1, words
    assert f"nvtripy {OLDEST} {NEWEST}" in words
    assert "first: bot_l.0 (Linear)" in words
