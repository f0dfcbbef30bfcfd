"""A case whose code goes to another folder: paths of the command line begin where it was called."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from safetensors.torch import save_file

from parity import pipeline
from parity.case import CaseReference, load_case
from parity.cli.arguments import Arguments
from parity.execution import fork_server
from parity.inputs.weights import case_weights
from parity.studies.precision_search import command as search_command
from parity.studies.serving import command as serving_command
from parity.studies.streaming import command as stream_command
from tests.locations import ROOT
from tests.parity import made_reports

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


@pytest.fixture
def given(command, tmp_path, monkeypatch):
    """What a verb gives to its job, which is replaced, where its case goes to another folder."""
    named, elsewhere = Arguments.named_cases, tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(Arguments, "named_cases", lambda own: os.chdir(elsewhere) or named(own))
    monkeypatch.setattr(fork_server, "start", lambda *_: None)

    def call(module, name, result, verb, *options):
        calls = []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(module, name, lambda *values: calls.append(values) or result)
        ended = command(verb, "--case", "hstu_tiny", *options)
        assert (ended.code, ended.err) == (0, ""), ended
        return calls[0]

    return call


def test_a_request_has_the_paths_where_the_command_was_called(given, tmp_path):
    """An absent one stays absent."""

    def request(*options):
        return given(pipeline, "run", made_reports.passing(), "run", *options)[0]

    own = request("--data", "data.csv", "--save", "out", "--profile", "traces")
    assert (own.data, own.save, own.profile) == tuple(
        tmp_path / name for name in ("data.csv", "out", "traces")
    )
    assert own.checkpoint is None
    own = request("--weights", "w.pt")
    assert (own.data, own.checkpoint, own.save) == (None, tmp_path / "w.pt", None)


def test_studies_have_the_paths_where_the_command_was_called(given, monkeypatch, tmp_path):
    result = SimpleNamespace(exit_code=0, lines=lambda: [])
    for options, weights in ((("--weights", "w.pt"), tmp_path / "w.pt"), ((), None)):
        assert given(stream_command, "judge_streams", (), "stream", *options)[2] == weights
    monkeypatch.setattr(search_command, "write", lambda *_: None)
    monkeypatch.setattr(search_command, "render", lambda *_: "")
    for options, policy in ((("--policy", "p.yaml"), tmp_path / "p.yaml"), ((), None)):
        assert given(search_command, "run", result, "precision", *options)[2] == policy
    names = ("data", "tables", "checkpoint")
    for options, paths in (
        ((), [None] * 3),
        (("--data", "d", "--tables", "t", "--weights", "w.pt"), "d t w.pt"),
    ):
        order, folder, _ = given(
            serving_command, "serve", result, "serve", "--save", f"out{len(options)}", *options
        )
        expected = [tmp_path / path for path in paths.split()] if options else paths
        assert [getattr(order, name) for name in names] == expected
        assert folder.parent == tmp_path
