"""Bad input that only a runner's process meets: one message and exit code 2, as of any other bad input."""

import subprocess
import sys

import pytest

from tests.locations import ROOT
from tests.selection import first_in_test

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
ROWS_DRAWN = "rng.integers(0, ROWS, self.batch_size)"


def refused(tmp_path, old, new):
    """The message of a run of the new case with other code in one place."""
    text = SOURCE.replace('name = "new_case"', 'name = "mine"')
    assert old in text
    text = text.replace(old, new)
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
    return told


@pytest.mark.parametrize("mistake", first_in_test(list(MISTAKES)))
def test_a_mistake_that_a_runner_meets_is_bad_input(tmp_path, mistake):
    line, problem, fix = MISTAKES[mistake]
    told = refused(tmp_path, f"{PORT}\n", line)
    assert problem in told
    assert fix in told


def test_an_id_beyond_its_table_has_the_name_of_the_input_and_the_case(tmp_path):
    told = refused(tmp_path, ROWS_DRAWN, f"{ROWS_DRAWN} + (np.arange(self.batch_size) == 2) * ROWS")
    assert "inputs.ids_B[2]: " in told
    assert (
        "is outside of what the reference looks up: embedding in table takes 0 to 10 (in mine fp32, torch)"
        in told
    )
    assert told.endswith("; give 0 to 10 in the case's inputs")
