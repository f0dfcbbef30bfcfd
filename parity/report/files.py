"""A report's files: `report.json` with every number, and beside it what people and programs read of it."""

from __future__ import annotations

from pathlib import Path

from parity.base.files import write_new
from parity.report.html import render_html
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from parity.report.schema import Report, write_report

FORMS = {"report.html": render_html, "report.junit.xml": render_junit, "report.md": render_markdown}


def write_outputs(report: Report, folder: Path) -> None:
    """Write the forms of a report, and last `report.json`: where it is, all are.

    Raises:
        UserError: The folder cannot be written, or holds another report.
    """
    for name, render in FORMS.items():
        if not (folder / "report.json").exists():
            # Of a run that was interrupted here.
            (folder / name).unlink(missing_ok=True)
        write_new(folder / name, render(report).encode())
    write_report(report, folder / "report.json")
