"""One real run of the command, saved, that several tests look at; and how tests type commands."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import run_parity


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    error: BaseException | None


@pytest.fixture(scope="session")
def command():
    """`command("--case", "hstu_tiny", ...)` runs `run_parity.py` in this process."""

    def run(*arguments):
        result = CliRunner().invoke(run_parity.main, [str(argument) for argument in arguments])
        return Ended(result.exit_code, result.stdout, result.stderr, result.exception)

    return run


@dataclass(frozen=True)
class SavedRun:
    folder: Path
    ended: Ended


@pytest.fixture(scope="session")
def saved_run(tmp_path_factory, command):
    """hstu_tiny in fp32 on torch and torch_jagged, saved. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    ended = command(
        *("--case", "hstu_tiny", "--precision", "fp32", "--runners", "torch,torch_jagged", "--save", folder)
    )
    return SavedRun(folder, ended)


def _content(folder):
    """Every file below a folder with its bytes, every folder with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="session")
def content():
    return _content
