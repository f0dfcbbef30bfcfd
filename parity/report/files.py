"""The files of a report: `report.json` with every number, and its forms for readers and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.execution.folder import RunFolder
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from parity.report.schema import SCHEMA, CaseReport, Report


def forms(folder: RunFolder) -> dict[Path, Callable[[Report], str]]:
    """Renderers of the report's other forms, by file."""
    # Jinja takes a third of a second to import, which a run has while its runners work.
    from parity.report.html import render_html

    return {folder.html: render_html, folder.junit: render_junit, folder.markdown: render_markdown}


def write_outputs(report: Report, folder: Path) -> None:
    """Write the forms of a report, and `report.json` last: a folder with this file is complete.

    Raises:
        UserError: The folder cannot be written, or holds another report.
    """
    run = RunFolder(folder)
    for path, render in forms(run).items():
        write_new(path, render(report).encode())
    write_report(report, run.report)


def write_report(report: Report, path: Path) -> None:
    """Write `report.json`, whole or not at all.

    Raises:
        UserError: The folder cannot be written.
    """
    write_new(path, (report.model_dump_json(indent=2) + "\n").encode())


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        UserError: The file is missing, or no report of this schema.
    """
    try:
        return Report.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            "report", str(path), f"is not a report of schema {SCHEMA}", "give a report.json"
        ) from error


def joined(reports: Sequence[Report], command: str) -> Report:
    """One report on the cases of several, which are not empty. A repeated name of a case gets a number."""
    cases: list[CaseReport] = []
    for case in (case for report in reports for case in report.cases):
        names = {other.case.name for other in cases}
        name, number = case.case.name, 2
        while name in names:
            name, number = f"{case.case.name}_{number}", number + 1
        cases.append(case.model_copy(update={"case": case.case.model_copy(update={"name": name})}))
    return reports[0].model_copy(
        update={
            "command": command,
            "cases": tuple(cases),
            "requested_runners": tuple(dict.fromkeys(r for one in reports for r in one.requested_runners)),
            "exit_code": max(report.exit_code for report in reports),
            "coverage": None,
        }
    )


def write_again(report: Report, folder: Path) -> None:
    """`write_outputs` in place of an earlier report.

    Raises:
        UserError: The folder cannot be written.
    """
    run = RunFolder(folder)
    for path in (run.report, *forms(run)):
        path.unlink(missing_ok=True)
    write_outputs(report, folder)
