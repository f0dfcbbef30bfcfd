"""Faults by hand in the suite itself, each against the tests of the folder that mirrors its module's.

    python benchmarks/suite_faults.py OUTPUT [--faults NAME,NAME] [--tests FOLDER,FOLDER]

Copies the project into a temporary folder, puts one fault after the other into the copy, and runs the tests
of `make test` until the first fails. Files that name the fault's module come first. Appends a line of JSON
for each fault to the file OUTPUT: its name, the outcome, and the first test that fails. A fault that ends the
collection of tests is detected too.

The same tests run without a fault first, and have to pass. A run with a fault may take five times as long.
One that takes longer is detected if the test that was running, alone, does not end either and passes without
the fault. Else its outcome is "not ended".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from parity.base.strict_yaml import parse_yaml  # noqa: E402, the path comes first

CATALOGUE = ROOT / "cases" / "faults" / "independent_harness.yaml"
_LEFT_OUT = (".git", ".venv", "__pycache__", "parity_reports", "shared")
_FACTOR = 5.0
"""Time of a run with a fault, in multiples of the time without."""
_LEAST_LIMIT = 60.0
"""Seconds that every run may take."""
_LONGEST = 1800.0
"""Seconds of the longest run without a fault."""
_FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\](?= - |$))?)", re.MULTILINE)
_STARTED = re.compile(r"^(\S+::\S.*?) *(?:PASSED|FAILED|SKIPPED|$)", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """A run of tests: whether it passes, its output, and its time; `passes` is None if it does not end."""

    passes: bool | None
    output: str
    seconds: float


def main() -> None:
    """Try the faults, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--faults", default="", help="names; all by default")
    parser.add_argument("--tests", default="", help="folders or files; those beside the module's by default")
    arguments = parser.parse_args()
    named = set(filter(None, arguments.faults.split(",")))
    tests = tuple(filter(None, arguments.tests.split(",")))
    entries = parse_yaml(CATALOGUE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="suite-faults-") as name, arguments.output.open("a") as output:
        copy = Copy(Path(name) / "project")
        for entry in entries:
            if not named or entry["name"] in named:
                finding = {"fault": entry["name"], **copy.outcome(entry, tests)}
                output.write(json.dumps(finding) + "\n")
                output.flush()
                print(finding["outcome"], finding["fault"], finding["proof"], flush=True)


class Copy:
    """A copy of the project, which is right between two faults."""

    def __init__(self, root: Path) -> None:
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        self._root = root
        self._seconds: dict[frozenset[str], float] = {}

    def outcome(self, entry: dict[str, str], tests: tuple[str, ...]) -> dict[str, str]:
        """The outcome of one fault and its proof."""
        path = self._root / f"{entry['module'].replace('.', '/')}.py"
        source = path.read_text(encoding="utf-8")
        if source.count(entry["old"]) != 1:
            return {"outcome": "broken", "proof": "its text is not in the module once"}
        tests = tests or self._mirrors(entry["module"])
        limit = max(_LEAST_LIMIT, _FACTOR * self._seconds_without(tests))
        path.write_text(source.replace(entry["old"], entry["new"]), encoding="utf-8")
        try:
            run = self._run(tests, limit)
            hanging = _last_started(run.output) if run.passes is None else ""
            hangs = bool(hanging) and self._run((hanging,), limit).passes is None
        finally:
            path.write_text(source, encoding="utf-8")
        if run.passes is None:
            hangs = hangs and bool(self._run((hanging,), limit).passes)
            return {"outcome": "detected" if hangs else "not ended", "proof": f"does not end: {hanging}"}
        first = _FIRST.search(run.output)
        proof = "" if run.passes else (first[1] if first else "the tests do not start")
        return {"outcome": "undetected" if run.passes else "detected", "proof": proof}

    def _mirrors(self, module: str) -> tuple[str, ...]:
        """Test files of the mirroring folder; files that name the module come first."""
        folder = self._root.joinpath("tests", *module.split(".")[:-1])
        while not folder.exists():
            folder = folder.parent
        files = sorted(folder.rglob("test_*.py"))
        files.sort(key=lambda path: module not in path.read_text(encoding="utf-8"))
        return tuple(str(path.relative_to(self._root)) for path in files)

    def _seconds_without(self, tests: tuple[str, ...]) -> float:
        """Time of the tests without a fault, in any order."""
        files = frozenset(tests)
        if files not in self._seconds:
            run = self._run(tests, _LONGEST)
            if not run.passes:
                raise SystemExit(f"the tests fail without a fault: {_FIRST.findall(run.output)}")
            self._seconds[files] = run.seconds
        return self._seconds[files]

    def _run(self, tests: tuple[str, ...], limit: float) -> Ended:
        """The tests up to the first that fails, in processes of their own, which end within the limit."""
        command = [sys.executable, "-m", "pytest", "-vx", "-m", "not full", "-p", "no:cacheprovider", *tests]
        begin = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, cwd=self._root, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                passes = process.wait(limit) == 0
            except subprocess.TimeoutExpired:
                passes = None
            finally:
                _end(process)
            output.seek(0)
            return Ended(passes, output.read(), time.monotonic() - begin)


def _end(process: subprocess.Popen) -> None:
    """End a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _last_started(output: str) -> str:
    """The test that began last."""
    started = _STARTED.findall(output)
    return started[-1] if started else ""


if __name__ == "__main__":
    main()
