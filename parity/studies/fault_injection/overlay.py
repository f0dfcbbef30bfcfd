"""A copy of the suite with a fault in its source, run in processes of its own."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.base.precision import Precision
from parity.case import Case
from parity.coverage.source import path_of
from parity.studies import packages
from parity.studies.fault_injection import journeys
from parity.studies.fault_injection.handwritten import Edit

TIMEOUT = 900.0
"""Longest time of all journeys, s."""


@dataclass(frozen=True)
class Answer:
    """The result of all journeys with a copy of the suite.

    Attributes:
        problem: The first journey that fails, with the reason; empty if none does.
        facts: Every number of the reports that does not depend on the day.
        is_reached: Whether the fault's statement ran.
    """

    problem: str
    facts: list[Any]
    is_reached: bool


def travel(case: Case, precision: Precision, fault: Edit | None) -> Answer:
    """Send a case on all journeys, with a fault in the suite or without one."""
    with tempfile.TemporaryDirectory(prefix="parity-overlay-") as name:
        folder = Path(name)
        mark = folder / "reached"
        paths = [] if fault is None else [str(_copy_with(fault, folder / "suite", mark))]
        request, answer = folder / "request.json", folder / "answer.json"
        request.write_text(journeys.Asked(case=case.reference, precision=precision.name).model_dump_json())
        process = subprocess.run(
            [sys.executable, "-m", journeys.__name__, str(request), str(answer)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if not answer.exists():
            last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            return Answer(f"the process ends without an answer: {last}", [], mark.exists())
        travelled = journeys.Travelled.model_validate_json(answer.read_text())
        return Answer(travelled.problem, travelled.facts, mark.exists())


def _copy_with(fault: Edit, root: Path, mark: Path) -> Path:
    """Copy the top package of a fault into `root`, with the fault and a statement that marks its run."""
    top = fault.module.partition(".")[0]
    source = packages.path_of(top)
    shutil.copytree(source, root / top, ignore=shutil.ignore_patterns("__pycache__"))
    changed = Path(path_of(fault.module)).relative_to(source)
    (root / top / changed).write_text(ast.unparse(_marked(fault.tree(), fault.lines[0], mark)))
    return root


def _marked(tree: ast.Module, line: int, mark: Path) -> ast.Module:
    """The tree with one more statement in front of the innermost one at a line: it makes the file `mark`."""
    marker = ast.parse(f"open({str(mark)!r}, 'a').close()").body
    bodies = [
        (body, place)
        for node in ast.walk(tree)
        for field in ("body", "orelse", "finalbody")
        if isinstance(body := getattr(node, field, None), list)
        for place, statement in enumerate(body)
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno)
    ]
    body, place = min(bodies, key=lambda found: found[0][found[1]].end_lineno - found[0][found[1]].lineno)
    body[place:place] = marker
    return ast.fix_missing_locations(tree)
