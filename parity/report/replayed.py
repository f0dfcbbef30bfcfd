"""A replayed run beside the report that the run saved: both are of the same cases and verdicts."""

from __future__ import annotations

from pathlib import Path

from parity.base.errors import UserError
from parity.report.schema import Report


def check_replayed(saved: Report, replayed: Report, path: Path, is_same_code: bool) -> None:
    """Refuse a run whose files say more than its own report.

    Args:
        saved, replayed: The report that the run saved, and the one of its captures.
        path: File of the saved report.
        is_same_code: Whether the code that judges is the run's. Other code may find other verdicts.

    Raises:
        UserError: The reports have other cases, batches, precisions or runners, or a verdict passes that did
            not.
    """
    if _facts(saved) != _facts(replayed):
        problem = "has other cases, batches, precisions or runners than the run's captures"
        raise UserError("replay", str(path), problem, "restore the run's files, or run again")
    before, after = _verdicts(saved), _verdicts(replayed)
    for place in before if is_same_code else ():
        if before[place] != "PASS" and after[place] == "PASS":
            problem = f"has {before[place]} for {', '.join(place)}, and the captures pass"
            raise UserError("replay", str(path), problem, "restore the run's files, or run again")


def _facts(report: Report) -> list[object]:
    cases = [case.model_dump(exclude={"precisions", "streams"}) for case in report.cases]
    return [cases, report.requested_runners, list(_verdicts(report))]


def _verdicts(report: Report) -> dict[tuple[str, str, str], str]:
    """Verdicts by case, precision and runner, in the order of the report."""
    return {
        (case.case.name, precision.precision, runner.runner): runner.verdict
        for case in report.cases
        for precision in case.precisions
        for runner in precision.runners
    }
