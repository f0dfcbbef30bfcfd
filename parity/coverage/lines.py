"""Lines and branches of the port that run, measured by coverage.py.

Statements outside functions are left out: an import runs them all. So are `raise` and `assert`: they run for
bad input only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import coverage as library
from nvtripy.utils.function_registry import FunctionRegistry

from parity.coverage.questions import Coverage, Kind, Question
from parity.coverage.source import path_of

RUNS = "runs"
_TRIPY_OPERATIONS = ("nvtripy.frontend.ops", "nvtripy.frontend.tensor")
"""Modules of the functions that call no user's code, and those inside them."""
_Arcs = frozenset[tuple[int, int]]
_LEFT_OUT = [r"^\s*raise\b", r"^\s*assert\b", r"^\s*@(abc\.)?abstractmethod\b"]

# A report follows from the file and the lines that have run, in whatever case.
reports: dict[tuple[str, _Arcs], dict[str, Any]] = {}
# The library's parsed files by path: parsing takes most of the time of a report.
parsed: dict[str, Any] = {}


class _Library(library.Coverage):
    """coverage.py, which parses a file once a process. All objects have the same exclusions."""

    def _get_file_reporter(self, morf: Any) -> Any:
        reporter = super()._get_file_reporter(morf)
        # Private names: where they differ in another version, every report parses its files.
        if getattr(reporter, "_parser", self) is None:
            parser = parsed.get(reporter.filename)
            if parser is None:
                parser = parsed[reporter.filename] = reporter.parser  # type: ignore[attr-defined]
            reporter._parser = parser  # type: ignore[attr-defined]
        return reporter


@contextlib.contextmanager
def _pauses_in_tripy(recorder: Any) -> Iterator[None]:
    """Inside, nothing is recorded while an operation of Tripy runs, which calls no code of the port.

    Python runs at half its speed while lines are recorded, whatever the file.

    Args:
        recorder: The library's trace function. Without a `start`, as on a Python that can record some files
            alone, it never pauses.
    """
    resume = getattr(recorder, "start", None)
    if resume is None:
        yield
        return
    find = FunctionRegistry.find_overload

    def find_pausing(self: FunctionRegistry, key: str, args: Any, kwargs: Any) -> Any:
        overload = find(self, key, args, kwargs)
        if sys.gettrace() is not recorder or not overload.func.__module__.startswith(_TRIPY_OPERATIONS):
            return overload

        def run(*args: Any, **kwargs: Any) -> Any:
            sys.settrace(None)
            try:
                return overload(*args, **kwargs)
            finally:
                resume()

        return run

    with mock.patch.object(FunctionRegistry, "find_overload", find_pausing):
        yield


class Lines:
    """Records the lines of modules that run inside `on`.

    Args:
        sources: Import paths of the modules.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = {path_of(module): module for module in sources}
        self._library = _Library(
            data_file=None, config_file=False, branch=True, include=list(self._sources), messages=False
        )
        for pattern in _LEFT_OUT:
            self._library.exclude(pattern)
        self._reported: dict[str, _Arcs] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Record inside. A debugger's trace function stays as it is."""
        before = sys.gettrace()
        self._library.start()
        try:
            with _pauses_in_tripy(sys.gettrace()):
                yield
        finally:
            self._library.stop()
            if sys.gettrace() is not before:
                sys.settrace(before)

    def answer(self, coverage: Coverage) -> None:
        """Add all lines and branches; the answers are the ones that have run so far."""
        data = self._library.get_data()
        arcs = {path: frozenset(data.arcs(path) or ()) for path in self._sources}
        # Files where nothing else has run have all their answers.
        changed = {path: ran for path, ran in arcs.items() if ran != self._reported.get(path)}
        self._reported = arcs
        unknown = [path for path, ran in changed.items() if (path, ran) not in reports]
        for path, facts in self._report(unknown).items():
            reports[path, arcs[path]] = facts
        for path, ran in changed.items():
            text = Path(path).read_text().splitlines()
            for function, part in reports[path, ran]["functions"].items():
                if function:
                    _add(coverage, self._sources[path], function, part, text)

    def _report(self, paths: Sequence[str]) -> dict[str, Any]:
        """coverage.py's report on files, by path."""
        if not paths:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "coverage.json"
            # Without this file the library has no data to report on where nothing has run.
            self._library.get_data().add_arcs({path: [] for path in paths})
            self._library.json_report(morfs=paths, outfile=str(path))
            files = json.loads(path.read_text())["files"]
        return {str(Path(name).absolute()): facts for name, facts in files.items()}


def _add(coverage: Coverage, module: str, function: str, part: dict[str, Any], text: list[str]) -> None:
    for lines, answers in ((part["executed_lines"], (RUNS,)), (part["missing_lines"], ())):
        for line in lines:
            question = Question(
                kind=Kind.LINE,
                module=module,
                place=function,
                line=line,
                text=text[line - 1].strip(),
                answers=(RUNS,),
            )
            coverage.add(question, answers)
    branches: dict[int, dict[int, bool]] = {}
    for taken, key in ((True, "executed_branches"), (False, "missing_branches")):
        for start, end in part[key]:
            if end not in part["excluded_lines"]:
                branches.setdefault(start, {})[end] = taken
    for line, ends in branches.items():
        # The other end is an error, or the line is a whole function, which the library takes for a branch.
        if len(ends) == 1 or text[line - 1].lstrip().startswith(("def ", "async def ")):
            continue
        names = _names(sorted(ends), text)
        question = Question(
            kind=Kind.BRANCH,
            module=module,
            place=function,
            line=line,
            text=text[line - 1].strip(),
            answers=tuple(names.values()),
        )
        coverage.add(question, [names[end] for end, taken in ends.items() if taken])


def _names(ends: list[int], text: list[str]) -> dict[int, str]:
    """Names of the lines that a branch goes to, without their numbers; a negative one ends the function."""
    names: dict[int, str] = {}
    for end in ends:
        name = f"to `{text[end - 1].strip()}`" if end > 0 else "to the end"
        names[end] = f"{name}, the other one" if name in names.values() else name
    return names
