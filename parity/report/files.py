"""A report's files: `report.json` with every number, and beside it what people and programs read of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from parity.base.files import write_new
from parity.execution.folder import RunFolder
from parity.report.html import render_html
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from parity.report.schema import Report, write_report


def forms(folder: RunFolder) -> dict[Path, Callable[[Report], str]]:
    """Renderers of the report's other forms, by file."""
    return {folder.html: render_html, folder.junit: render_junit, folder.markdown: render_markdown}


def write_outputs(report: Report, folder: Path) -> None:
    """Write the forms of a report, and last `report.json`: where it is, all are.

    Raises:
        UserError: The folder cannot be written, or holds another report.
    """
    run = RunFolder(folder)
    for path, render in forms(run).items():
        if not run.report.exists():
            # An interrupted run may have left one.
            path.unlink(missing_ok=True)
        write_new(path, render(report).encode())
    write_report(report, run.report)
