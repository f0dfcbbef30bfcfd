"""The study: both runs matched, every batch judged, and the result as files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from parity.base.code import changed_code
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.process import one_thread
from parity.case import Case, load_case
from parity.report.differences import WHOLE, Changes, compare_reports
from parity.report.files import read_report
from parity.studies.movement.judging import RunnerMovement, runner_movements
from parity.studies.movement.markdown import render_markdown
from parity.studies.movement.report import ComparisonReport, FactReport, RunnerReport, RunReport
from parity.studies.movement.runs import (
    SavedRun,
    batch_pairs,
    differing_facts,
    left_out,
    open_run,
    require_same,
)
from parity.studies.movement.sides import BatchSide


@dataclasses.dataclass(frozen=True)
class Result:
    """The comparison of two saved runs.

    Attributes:
        report: The movements of results.
        changes: Changes of verdicts, errors and latencies; None if they cannot be compared. Of a runner that
            moved, its modules' verdicts and errors are left out: they follow from the movements.
        not_changes: The reason for missing changes, or empty.
    """

    report: ComparisonReport
    changes: Changes | None
    not_changes: str = ""

    @property
    def exit_code(self) -> int:
        """1 if a result moved by more than rounding explains, or something is worse."""
        return int(bool(self.report.moved) or (self.changes is not None and bool(self.changes.worse)))


@one_thread()
def compare(old_folder: Path, new_folder: Path, command: str, advance: Callable[[str], None]) -> Result:
    """Compare two saved runs, module by module.

    Args:
        old_folder, new_folder: Their folders.
        command: This command line.
        advance: Called with each step.

    Raises:
        UserError: A folder is no complete saved run, a file is not as the run wrote it, or the runs differ in
            weights, inputs, cases or precisions, or have no runner in common.
    """
    advance("digests of both runs")
    old, new = open_run(old_folder), open_run(new_folder)
    require_same(old, new)
    changed = tuple(changed_code(run.manifest.code) for run in (old, new))
    movements, notes = _movements(old, new, changed, advance)
    if not any(runners for runners in movements.values()):
        problem = f"have no result in common: {'; '.join(notes)}"
        raise UserError(
            "compare", f"{old_folder} and {new_folder}", problem, "give runs with the same runners"
        )
    report = ComparisonReport(
        command=command,
        old=RunReport(folder=str(old_folder), command=old.manifest.command, changed_code=changed[0]),
        new=RunReport(folder=str(new_folder), command=new.manifest.command, changed_code=changed[1]),
        differing=tuple(
            FactReport(name=name, old=a, new=b) for name, (a, b) in differing_facts(old, new).items()
        ),
        runners=tuple(
            RunnerReport.of(case, precision, runner)
            for (case, precision), runners in movements.items()
            for runner in runners.values()
        ),
        not_compared=(*left_out(old, new), *notes),
    )
    try:
        return Result(report, _besides(report, _changes(old, new)))
    except UserError as error:
        return Result(report, None, error.problem)


def _movements(
    old: SavedRun, new: SavedRun, changed: tuple[tuple[str, ...], ...], advance: Callable[[str], None]
) -> tuple[dict[tuple[str, str], dict[str, RunnerMovement]], tuple[str, ...]]:
    """The movements by case and precision and by runner, and notes on what is not compared."""
    movements: dict[tuple[str, str], dict[str, RunnerMovement]] = {}
    notes: dict[str, list[str]] = {}
    cases: dict[str, tuple[Case, Case]] = {}
    for pair in batch_pairs(old, new):
        if pair.case not in cases:
            cases = {pair.case: _cases(pair.case, old, new)}
        advance(f"{pair.case} {pair.precision}: {pair.batch}")
        both = zip(cases[pair.case], (pair.old, pair.new), changed, strict=True)
        sides = [BatchSide(case, folder, bool(code)) for case, folder, code in both]
        runners = movements.setdefault((pair.case, pair.precision), {})
        for note in runner_movements(pair.batch, *sides, runners):
            notes.setdefault(f"{pair.case}, {pair.precision}: {note}", []).append(pair.batch)
    return movements, tuple(f"{note} (batch {', '.join(batches)})" for note, batches in notes.items())


def _cases(name: str, old: SavedRun, new: SavedRun) -> tuple[Case, Case]:
    """The case as both runs describe it, of the present code."""
    first, second = (run.cases[name].case for run in (old, new))
    case = load_case(first)
    return case, case if first == second else load_case(second)


def _changes(old: SavedRun, new: SavedRun) -> Changes:
    """Changes of verdicts, errors and latencies. Raises `UserError` if no case can be compared."""
    before, after = (read_report(run.folder.report) for run in (old, new))
    # Another import path of the same case is no other configuration: weights and inputs are equal.
    references = {case.case.name: case.case for case in before.cases}
    cases = tuple(
        case.model_copy(update={"case": references.get(case.case.name, case.case)}) for case in after.cases
    )
    return compare_reports(before, after.model_copy(update={"cases": cases}))


def _besides(report: ComparisonReport, changes: Changes) -> Changes:
    """The changes that the movements do not show."""
    places = {f"{runner.case}, {runner.precision}, {runner.new_label}" for runner in report.moved}
    told = {
        side: [
            change
            for change in getattr(changes, side)
            if change.place not in places or change.kind not in ("verdict", "error") or change.what == WHOLE
        ]
        for side in ("worse", "better")
    }
    return dataclasses.replace(changes, **told)


def write(report: ComparisonReport, folder: Path) -> Path:
    """Write `compare.json` and `compare.md`. Returns the path of the first. Raises `UserError`."""
    path = folder / "compare.json"
    write_new(path, (report.model_dump_json(indent=2) + "\n").encode())
    write_new(folder / "compare.md", render_markdown(report).encode())
    return path
