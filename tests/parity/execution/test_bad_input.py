"""Bad input that only a runner's process meets: one message and exit code 2, as of any other bad input."""

import json
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
    "another parameter": (
        "return type('Mine', (Port,), {'forward': lambda self, ids: Port.forward(self, ids)})(dtype)\n",
        "has a port that does not take its inputs: Mine.forward(ids) (missing a required argument: 'ids')",
        "give it the parameters ids_B, or override call in the case",
    ),
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


def test_ids_of_another_type_have_the_name_of_the_input_and_the_fix(tmp_path):
    told = refused(tmp_path, ROWS_DRAWN, f"{ROWS_DRAWN}.astype(np.float32)")
    assert "error: inputs.ids_B: float32 is no type that the reference takes there (RuntimeError: " in told
    assert told.endswith("with int64 it runs (in mine fp32, torch); give ids_B as int64 in the case's inputs")


OTHERS_MISTAKES = {
    "a weight of the port": (f"{PORT}\n", MISTAKES["another weight"][0], "weights: third.", {"tripy"}),
    "an id": (ROWS_DRAWN, f"{ROWS_DRAWN} + ROWS", "inputs.ids_B[0]: ", {"torch", "oracle", "tripy"}),
}


@pytest.mark.parametrize("mistake", first_in_test(list(OTHERS_MISTAKES)))
def test_bad_input_of_one_case_leaves_the_others_their_verdicts(tmp_path, mistake):
    old, new, told, runners = OTHERS_MISTAKES[mistake]
    text = SOURCE.replace('name = "new_case"', 'name = "mine"')
    (tmp_path / "right.py").write_text(SOURCE)
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    options = ("--model", "mine:case,right:case", "--precision", "fp32", "--runners", "torch,tripy")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "run", *options, "--save", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended
    report = json.loads((tmp_path / "out/report.json").read_text())
    mine, right = (
        {runner["runner"]: runner for runner in case["precisions"][0]["runners"]} for case in report["cases"]
    )
    assert {name for name, runner in mine.items() if runner["status"] == "ERROR"} == runners
    assert told in mine["tripy"]["reason"]
    assert right["tripy"]["verdict"] == "PASS"
