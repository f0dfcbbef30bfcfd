"""A case whose code goes to another folder: paths of the command line begin where it was called."""

import subprocess
import sys

import pytest
from safetensors.torch import save_file

from parity.case import CaseReference, load_case
from parity.inputs.weights import case_weights
from tests.locations import ROOT

GOES = "import os, pathlib\n\nos.chdir(pathlib.Path(__file__).parent / 'elsewhere')\n"


@pytest.fixture
def called(tmp_path, monkeypatch):
    """The exit code and the last line of calls in a folder whose case goes to `elsewhere` in it."""
    source = (ROOT / "parity/cli/new_case.py").read_text()
    (tmp_path / "goes.py").write_text(source.replace("import numpy", f"{GOES}import numpy", 1))
    (tmp_path / "stays.py").write_text(source)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    weights, _ = case_weights(load_case(CaseReference(target="stays:case")))
    save_file(weights, tmp_path / "trained.safetensors")

    def call(*options):
        ended = subprocess.run(
            [sys.executable, str(ROOT / "run_parity.py"), *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return ended.returncode, (ended.stdout or ended.stderr).splitlines()[-1]

    return call


def test_files_are_where_the_command_was_called(called, tmp_path):
    of_case = ("--model", "goes:case", "--precision", "fp32", "--runners", "torch,tripy")
    files = ("--save", "out", "--weights", "trained.safetensors", "--profile", "traces")
    assert called("run", *of_case, *files) == (0, "report: out/report.json")
    assert len(list((tmp_path / "traces").glob("*.json"))) == 2
    (tmp_path / "out/manifest.json").unlink()
    assert called("resume", "out") == (0, "report: out/report.json")
    code, line = called("replay", "out")
    (report,) = (tmp_path / "parity_reports").glob("*/report.json")
    assert (code, line) == (0, f"report: {report}")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "code", "files"),
    [
        (("precision", "--save", "small"), 0, {"small/precision.json", "small/policy.yaml"}),
        (("self-test", "--save", "faults", "--share", "0", "--clean-runs", "1"), 0, {"faults/table.md"}),
    ],
)
def test_files_of_studies_are_where_the_command_was_called(called, tmp_path, verb, code, files):
    assert called(*verb, "--model", "goes:case")[0] == code
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*") if path.is_file()}
    assert files <= written
    assert list((tmp_path / "elsewhere").iterdir()) == []
