"""Streams in the report: every form tells of them, and one that fails fails the run."""

import io

from junitparser import JUnitXml
from rich.console import Console

from parity.report.differences import compare_reports
from parity.report.html import render_html
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from parity.report.outcome import outcome
from parity.report.schema import StreamReport
from parity.report.streams import stream_text
from parity.report.terminal import render
from tests.parity import made_reports

GOOD = StreamReport(
    precision="fp32", side="PyTorch", steps=7, items=51, cache_margin=0.11, output_margin=0.19
)
BAD = StreamReport(
    precision="fp32",
    side="tripy (portable, cpu)",
    steps=3,
    items=20,
    cache_margin=70.0,
    output_margin=0.2,
    failed="k of layer 1",
    reason="relative L2 error 0.5 exceeds 1e-07",
    explanation="holds the row of the step before",
)
LINE = (
    "hstu_tiny, fp32, stream of tripy (portable, cpu): step 2: k of layer 1: "
    "relative L2 error 0.5 exceeds 1e-07; holds the row of the step before"
)


def _report(*streams, report=None):
    report = report or made_reports.passing()
    (case,) = report.cases
    return report.model_copy(update={"cases": (case.model_copy(update={"streams": streams}),)})


def _shown(report, verbose=False):
    console = Console(width=200, highlight=False, file=io.StringIO())
    console.print(render(report, verbose))
    return console.file.getvalue()


def test_the_first_sentence_counts_streams():
    for streams, words in (
        ((), "3 runs; the closest"),
        ((GOOD,), "and 1 stream; "),
        ((GOOD,) * 2, "2 streams; "),
    ):
        assert f" {words}" in outcome(_report(*streams)).text
    assert "1 of 1 stream fails; none of" in outcome(_report(BAD)).text


def test_a_stream_in_a_line():
    (case,) = _report().cases
    good = "hstu_tiny, fp32, stream of PyTorch: 7 steps, 51 items, err/limit 0.11 (cache), 0.19 (outputs)"
    assert (stream_text(case, GOOD), stream_text(case, BAD)) == (good, LINE)
    broken = BAD.model_copy(update={"steps": 0, "failed": "the stream", "explanation": ""})
    assert stream_text(case, broken).endswith(
        "stream of tripy (portable, cpu): the stream: relative L2 error 0.5 exceeds 1e-07"
    )


def test_streams_that_pass_are_counted_and_told_in_every_form():
    passing = _report(GOOD)
    assert outcome(passing).text.startswith("21 module verdicts of 3 runs and 1 stream; ")
    assert " of 3 runs and 2 streams; " in outcome(_report(GOOD, GOOD)).text
    assert "streams: 1 of 1 PASS; worst err/limit 0.19" in _shown(passing)
    line = "hstu_tiny, fp32, stream of PyTorch: 7 steps, 51 items, err/limit 0.11 (cache), 0.19 (outputs)"
    assert f"stream: {line}" in _shown(passing, verbose=True)
    assert f"- PASS {line.replace('_', chr(92) + '_')}" in render_markdown(passing)
    suites = {suite.name: suite for suite in JUnitXml.fromstring(render_junit(passing).encode())}
    suite = suites["hstu_tiny, streams"]
    assert (suite.tests, suite.failures, [test.name for test in suite]) == (1, 0, ["PyTorch"])
    page = render_html(passing)
    assert "<h3>Streams</h3>" in page
    assert '<td class="number">51</td>' in page


def test_a_stream_that_fails_fails_every_form():
    failing = _report(GOOD, BAD)
    assert str(outcome(failing)).startswith("FAIL: 1 of 2 streams fails; none of 6 runs diverges")
    assert str(outcome(_report(BAD))).startswith("FAIL: 1 of 1 stream fails; none of 6 runs diverges")
    both = str(outcome(_report(BAD, report=made_reports.failing())))
    assert both.startswith("FAIL: 3 of 6 runs diverge; 1 of 1 stream fails")
    text = _shown(failing)
    assert f"FAIL: {LINE}" in text
    assert "streams: 1 of 2 PASS; worst err/limit 70.00" in text
    assert f"- **FAIL** {LINE.replace('_', chr(92) + '_')}" in render_markdown(failing)
    xml = JUnitXml.fromstring(render_junit(failing).encode())
    (failed,) = (test for suite in xml for test in suite if test.result)
    assert failed.name == BAD.side
    assert (failed.result[0].message, failed.result[0].text) == (f"{BAD.failed}: {BAD.reason}", LINE)
    assert xml.failures == 1
    assert f"<strong>{LINE}</strong>" in render_html(failing)


def test_without_streams_no_form_has_a_word_of_them():
    report = made_reports.passing()
    for text in (_shown(report), render_markdown(report), render_junit(report), render_html(report)):
        assert "tream" not in text


def test_a_report_with_a_failing_stream_is_worse():
    changes = compare_reports(_report(GOOD), _report(GOOD.model_copy(update={"failed": "k"})))
    assert [(change.kind, change.what, change.new) for change in changes.worse] == [
        ("verdict", "stream fp32 PyTorch", "FAIL")
    ]
    gone = compare_reports(_report(GOOD), _report())
    assert [(change.kind, change.what) for change in gone.worse] == [("missing", "stream fp32 PyTorch")]
