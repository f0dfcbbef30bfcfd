"""The files of a report: `report.json` with every number, and its forms for readers and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from parity.base.errors import UserError
from parity.base.files import parse_json, read_file, write_new
from parity.base.interruption import remaining
from parity.execution.folder import RunFolder
from parity.report.consistency import contradictions
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from parity.report.schema import SCHEMA, CaseReport, Report


def forms(folder: RunFolder) -> dict[Path, Callable[[Report], str]]:
    """Renderers of the report's other forms, by file."""
    return {folder.html: _page, folder.junit: render_junit, folder.markdown: render_markdown}


def _page(report: Report) -> str:
    # Jinja takes a third of a second to import, which a run has while its runners work.
    from parity.report.html import render_html

    return render_html(report)


def write_outputs(report: Report, folder: Path) -> tuple[str, ...]:
    """Write `report.json`, and then the other forms of a report.

    Returns:
        For each form that memory does not suffice for, its name and the problem.

    Raises:
        UserError: The folder cannot be written, or holds another report.
    """
    run = RunFolder(folder)
    write_report(report, run.report)
    problems = []
    with remaining(f"{run.report} is the report"):
        for path, render in forms(run).items():
            try:
                content = render(report).encode()
            except MemoryError:
                problems.append(f"{path} is not written: memory does not suffice for it")
                continue
            write_new(path, content)
    return tuple(problems)


def write_report(report: Report, path: Path) -> None:
    """Write `report.json`, whole or not at all.

    Raises:
        UserError: The folder cannot be written.
    """
    write_new(path, (report.model_dump_json(indent=2) + "\n").encode())


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        UserError: The file is missing, is no report of this schema, or contradicts itself.
    """
    fix = "give a report.json that a run wrote"
    content = b""
    try:
        content = read_file(path)
        report = Report.model_validate_json(content, strict=True)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise UserError("report", str(path), problem, fix) from error
    except ValueError as error:
        if other := _other_schema(content):
            problem, fix = (
                f"is of schema {other}, and not of {SCHEMA}",
                "run again, or use the suite that wrote it",
            )
            raise UserError("report", str(path), problem, fix) from error
        problem = f"is not a report of schema {SCHEMA} ({_reason(error)})"
        raise UserError("report", str(path), problem, fix) from error
    problem = next(contradictions(report), None)
    if problem is not None:
        raise UserError("report", str(path), f"contradicts itself: {problem}", fix)
    return report


def _reason(error: ValueError) -> str:
    """The first problem of a text that is no report, with its place."""
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"]))
    return ": ".join(filter(None, [place, problem["msg"]]))


def _other_schema(content: bytes) -> str:
    """The schema of a report that another version of the suite wrote; empty for any other text."""
    try:
        values = parse_json(content)
    except ValueError:
        return ""
    schema = values.get("schema_version") if isinstance(values, dict) else None
    is_other = isinstance(schema, str) and schema != SCHEMA
    return schema if is_other and schema.startswith(SCHEMA.partition("/")[0]) else ""


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


def require_own(folder: Path, command: str) -> None:
    """Raises `UserError` for a folder with a file of a report's name that is not of an earlier such report.

    Args:
        folder: The folder, which may be absent.
        command: The beginning of the command that the earlier report has.
    """
    run = RunFolder(folder)
    present = [path for path in (run.report, *forms(run)) if path.exists() or path.is_symlink()]
    if not present:
        return
    try:
        is_own = run.report in present and read_report(run.report).command.startswith(command)
    except UserError:
        is_own = False
    if not is_own:
        problem = f"is no earlier report of {command}, and stays"
        raise UserError("report", str(present[0]), problem, "name a new folder")


def write_again(report: Report, folder: Path) -> tuple[str, ...]:
    """`write_outputs` in place of an earlier report.

    Raises:
        UserError: The folder cannot be written.
    """
    run = RunFolder(folder)
    # The report tells whose the other forms are, so that it goes last.
    for path in (*forms(run), run.report):
        path.unlink(missing_ok=True)
    return write_outputs(report, folder)
