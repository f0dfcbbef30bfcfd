"""What no input asks, in every form of a report."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from parity.report.html import render_html
from parity.report.markdown import render_markdown
from parity.report.schema import CoverageReport, Report, UnaskedReport
from parity.report.terminal import render
from tests.parity import made_reports

UNASKED = (
    UnaskedReport(kind="function", module="port.mask", place="mask_of", line=3, missing=("runs",)),
    UnaskedReport(
        kind="branch", module="port.mask", place="bias", line=7, text="if n > 0:", missing=("to the end",)
    ),
    UnaskedReport(kind="option", place="model.norm", missing=("softmax",)),
)
EXCUSED = (UNASKED[0].model_copy(update={"place": "debug_str", "reason": "a name for people"}),)


def _report(*unasked: UnaskedReport, reasons: tuple[str, ...] = ()) -> Report:
    coverage = CoverageReport(
        asked={"line": 12, "branch": 3},
        questions={"line": 12, "branch": 3 + len(unasked)},
        unasked=unasked,
        excused=EXCUSED,
        reasons=reasons,
    )
    return made_reports.passing().model_copy(update={"coverage": coverage})


def _terminal(report: Report) -> str:
    console = Console(width=150, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(render(report))
    return capture.get()


def test_a_terminal_has_one_line():
    text = _terminal(_report(*UNASKED))
    assert "not asked: 1 function, 1 branch, 1 option; see report.html#coverage" in text


def test_a_terminal_says_that_everything_is_asked():
    assert "asked: all 12 lines, all 3 branches\n" in _terminal(_report())


def test_a_run_without_a_port_has_no_line():
    report = made_reports.passing()
    assert "asked" not in _terminal(report) + render_markdown(report)
    assert 'id="coverage"' not in render_html(report)


def test_missing_coverage_has_its_reason():
    report = _report(reasons=("CRASHED: signal 11",))
    assert "no coverage: CRASHED: signal 11" in _terminal(report)
    nothing = report.model_copy(
        update={"coverage": report.coverage.model_copy(update={"questions": {}, "asked": {}})}
    )
    assert "asked: " not in _terminal(nothing)
    assert "No coverage: CRASHED: signal 11" in render_html(report)


def test_a_page_lists_every_question_and_every_reason():
    page = render_html(_report(*UNASKED))
    for text in (
        "port/mask.py:7",
        "if n &gt; 0:",
        "to the end",
        "model.norm",
        "softmax",
        "a name for people",
    ):
        assert text in page


def test_markdown_lists_every_question():
    text = render_markdown(_report(*UNASKED))
    assert "not asked: 1 function, 1 branch, 1 option" in text
    assert "`port/mask.py:7`" in text
    assert "softmax" in text


@pytest.mark.parametrize("unasked", [(), UNASKED])
def test_a_report_reads_back(unasked):
    report = _report(*unasked)
    assert Report.model_validate(json.loads(report.model_dump_json())) == report
