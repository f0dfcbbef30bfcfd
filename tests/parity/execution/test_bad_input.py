"""Bad input that only a runner's process meets: one message and exit code 2, as of any other bad input."""

import subprocess
import sys

import pytest

from tests.locations import ROOT

SOURCE = (ROOT / "parity/cli/new_case.py").read_text()
PORT = "return Port(dtype)"
MISTAKES = {
    "a class": ("return Port\n", "build_port returns the class Port", "call Port with its arguments"),
    "nothing": ("Port(dtype)\n", "build_port returns None", "return the nvtripy.Module at its end"),
    "a function": ("return print\n", "build_port returns the function print", "call it, and return"),
    "the reference": ("return Reference()\n", "build_port returns the PyTorch model Reference", "return the"),
    "a pair": ("return Port(dtype), 1\n", "build_port returns a tuple of 2", "nvtripy.Module alone"),
    "another weight": (
        "p = Port(dtype); p.third = tp.Linear(2, 2, dtype=dtype); return p\n",
        "weights: third.",
        "(in mine fp32, tripy)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "fix"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_that_a_runner_meets_is_bad_input(tmp_path, line, problem, fix):
    text = SOURCE.replace('name = "new_case"', 'name = "mine"').replace(f"{PORT}\n", line)
    assert line in text
    (tmp_path / "mine.py").write_text(text)
    options = ("--model", "mine:case", "--precision", "fp32", "--runners", "torch,tripy", "--batch", "4")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "run", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended
    told = " ".join(ended.stderr.split())
    assert told.count("error: ") == 1
    assert "Traceback" not in told
    assert "mine" in told
    for words in (problem, fix):
        assert words in told, told
