"""The outcome of a commit: the exit code of the user's command in the commit's files, and its report."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError
from parity.base.interruption import stay_if_ending, undone
from parity.report.files import read_report
from parity.report.schema import Report
from parity.studies.bisect.repository import Checkout, environment
from parity.studies.bisect.search import Outcome

REPORT = "{report}"
"""The word, or part of a word, of the command that stands for a new folder for its report."""
_OUTCOMES = {0: Outcome.PASSES, 1: Outcome.FAILS}
"""Outcomes by exit code; a commit with another one cannot be judged."""
_NO_PROGRAM = 127
"""A shell's exit code for a program that is missing or cannot start."""
_TAIL = 4096
"""Bytes at the end of the command's output that its last line is looked for in."""


@dataclass(frozen=True)
class Judgement:
    """What the command says of a commit.

    Attributes:
        outcome: The outcome by its exit code.
        end: Its exit code, and the last line of its output.
        places: Where runners diverge first, by the report that it wrote; None without a report.
    """

    outcome: Outcome
    end: str
    places: tuple[str, ...] | None


def check(command: Sequence[str]) -> None:
    """Check the command.

    Raises:
        UserError: It is empty, or its program is not found. A program in a commit is not looked for.
    """
    if not command:
        fix = "give it behind --, as in: bisect GOOD BAD -- python check.py"
        raise UserError("COMMAND", "''", "is empty", fix)
    program = command[0]
    is_of_commit = os.sep in program and not os.path.isabs(program)
    if any("\0" in word for word in command) or not (is_of_commit or shutil.which(program)):
        raise UserError("COMMAND", program, "is no program on PATH", "give its name, or its full path")


def judge(command: Sequence[str], checkout: Checkout, scratch: Path) -> Judgement:
    """Run the command in the commit's files.

    Args:
        command: Its words.
        checkout: The commit's files.
        scratch: A new folder's path, for the command's report and output. It is removed behind the call.
    """
    scratch.mkdir()
    report = scratch / "report"
    words = [word.replace(REPORT, str(report)) for word in command]
    try:
        code, said = _run(words, checkout.inner, scratch / "output")
        stay_if_ending()
        end = f"exit code {code}" + (f": {said}" if said else "")
        return Judgement(_OUTCOMES.get(code, Outcome.UNKNOWN), end, _places(report))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(words: Sequence[str], folder: Path, output: Path) -> tuple[int, str]:
    """Exit code and last line of output; 127 where the program or the folder is not in this commit."""
    if not folder.is_dir():
        return _NO_PROGRAM, "this commit lacks the present folder"
    with output.open("w+b") as stream:
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return _NO_PROGRAM, f"{words[0]} does not start ({error.strerror})"
        with undone(lambda: _kill(process)):
            code = process.wait()
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
        lines = stream.read().decode(errors="replace").split("\n")
    return code, next((line.strip() for line in reversed(lines) if line.strip()), "")


def _environment() -> dict[str, str]:
    # Python would take code of another commit from this cache: it compares times and sizes of files alone.
    return {name: value for name, value in environment().items() if name != "PYTHONPYCACHEPREFIX"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command, if it runs, with the processes of its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _places(folder: Path) -> tuple[str, ...] | None:
    if not (folder / "report.json").exists():
        return None
    try:
        return divergences(read_report(folder / "report.json"))
    except UserError as error:
        return (str(error),)


def divergences(report: Report) -> tuple[str, ...]:
    """Where each runner of a report diverges first; one may fail without a place."""
    places = []
    for case in report.cases:
        for precision in case.precisions:
            for runner in precision.runners:
                where = f"{case.case.name}, {precision.precision}, {runner.runner}"
                diagnosis = runner.diagnosis
                if diagnosis is not None and diagnosis.kind != "none":
                    # Most texts begin with the module.
                    names = diagnosis.text.startswith(diagnosis.tap)
                    module = "" if names else f"{diagnosis.tap}: "
                    places.append(f"{where}: {module}{diagnosis.text}")
                elif runner.verdict == "FAIL":
                    places.append(f"{where}: fails")
    return tuple(places)
