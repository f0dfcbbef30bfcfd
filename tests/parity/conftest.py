"""One real run of the command, saved, that several tests look at; and how tests type commands."""

import fcntl
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import run_parity
from cases.shipped import load_case
from parity import pipeline
from parity.inputs.weights import case_weights
from parity.report.files import read_report
from parity.runners.tripy.lean_traces import lean_traces
from tests.parity.saved_runs import seal


@dataclass(frozen=True)
class Ended:
    """The end of a command; `err` is stderr without the steps of its progress."""

    code: int
    out: str
    err: str
    error: BaseException | None

    @property
    def words(self) -> str:
        """`out` without its line breaks."""
        return " ".join(self.out.split())


PROGRESS = re.compile(r"^ *\d+\.\d s  .*\n", re.MULTILINE)
"""A step's line on stderr."""


@pytest.fixture(scope="session")
def command():
    """`command("--case", "hstu_tiny", ...)` runs `run_parity.py` in this process."""

    def run(*arguments):
        result = CliRunner().invoke(run_parity.main, [str(argument) for argument in arguments])
        return Ended(result.exit_code, result.stdout, PROGRESS.sub("", result.stderr), result.exception)

    return run


@pytest.fixture
def beside_another_report(monkeypatch):
    """A replay may give other results than the run's own report: the test changes the run's records."""
    monkeypatch.setattr(pipeline, "check_replayed", lambda *_, **__: None)


@dataclass(frozen=True)
class SavedRun:
    folder: Path
    ended: Ended


@pytest.fixture(scope="session")
def saved_run(tmp_path_factory, command):
    """hstu_tiny in fp32 on torch and torch_jagged, saved. Not to be changed: copy it.

    The first test process that asks makes it for all of them.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, end = shared / "saved" / "run", shared / "saved" / "end.json"
    with (shared / "saved.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not end.exists():
            runners = ("--runners", "torch,torch_jagged", "-v")
            ended = command("--case", "hstu_tiny", "--precision", "fp32", *runners, "--save", folder)
            assert ended.code == 0, ended
            end.write_text(json.dumps([ended.code, ended.out, ended.err]))
    return SavedRun(folder, Ended(*json.loads(end.read_text()), error=None))


def _content(folder):
    """Every file below a folder with its bytes, every folder with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="session")
def content():
    return _content


@pytest.fixture
def refused(command, content, tmp_path, monkeypatch):
    """Runs a command in an empty folder of its own and returns the message that it was refused with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "parity.execution.scheduler.RunnerPool", None
    )  # bad input is refused before a runner starts
    # A server that starts in an empty folder imports nothing, for all tests of this process.
    monkeypatch.setattr("parity.execution.fork_server.start", lambda cases="", one_thread=False: None)

    def run(*arguments):
        before = content(tmp_path)
        ended = command(*arguments)
        assert isinstance(ended.error, SystemExit), ended.error
        assert ended.code == 2
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert ended.err.startswith("error: ")
        assert ended.err.count("error: ") == 1
        assert content(tmp_path) == before
        return ended.err.removeprefix("error: ").strip()

    return run


@pytest.fixture
def short_folder():
    """A new folder whose path is short enough for sockets below it."""
    with tempfile.TemporaryDirectory(prefix="t") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def report(saved_run):
    return read_report(saved_run.folder / "report.json")


@pytest.fixture(scope="session")
def runners_of():
    """`runners_of(report)`: the runners of a report of one case in one precision, by name."""

    def runners(report):
        (case,) = report.cases
        (precision,) = case.precisions
        return {runner.runner: runner for runner in precision.runners}

    return runners


@pytest.fixture(scope="session")
def tiny():
    """The case hstu_tiny, its reference model and its initial weights."""
    case = load_case("hstu_tiny")
    model = case.build_reference()
    return case, model, case_weights(case)[0]


@pytest.fixture(scope="module")
def without_call_stacks():
    """Ports are traced without nvtripy's call stacks, which a bench has no use for."""
    with lean_traces():
        yield


@pytest.fixture
def replayed(command, tmp_path, monkeypatch):
    """Replays a folder as it is now; returns the exit code, the report and the output."""

    def replay(folder):
        seal(folder)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(tmp_path / "parity_reports", ignore_errors=True)
        ended = command("replay", folder, "-v")
        (path,) = (tmp_path / "parity_reports").glob("*/report.json")
        return ended.code, read_report(path), ended.out

    return replay
