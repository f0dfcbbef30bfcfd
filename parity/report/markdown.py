"""A report as Markdown for a pull request: the verdict, a table, the failures and their explanations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tabulate import tabulate

from parity.execution.record import REFERENCE
from parity.report import coverage, overview
from parity.report.causes import downstream
from parity.report.latencies import milliseconds
from parity.report.outcome import outcome
from parity.report.schema import CaseReport, Report, RunnerReport
from parity.report.schema_modules import MetricReport
from parity.report.streams import stream_lines

MOST_VERDICTS = 12
"""Largest number of verdicts in full: a comment on GitHub holds 65,536 characters."""
MOST_UNASKED = 40
"""Largest number of questions in the table of what no input asks, for the same reason."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&@])")


def render_markdown(report: Report) -> str:
    """The report as GitHub's Markdown, short enough for a comment."""
    verdict = outcome(report)
    parts = [f"### Parity: {verdict.word}", plain(f"{verdict.text[0].upper()}{verdict.text[1:]}")]
    for case in report.cases:
        parts += [plain(overview.case_title(case)), _runners(case)]
    parts += _findings(report)
    metrics = _metrics(report)
    if metrics:
        parts += ["**Metrics**", metrics]
    parts += [details("Modules that fail", _failing_modules(report)), details("Gaps", _gaps(report))]
    parts.append(details("Rows in other batches and in a second run", _rows(report)))
    parts.append(details("Streams", _streams(report)))
    parts.append(details("Notes", "\n".join(f"- {plain(note)}" for note in overview.notes(report))))
    parts += _coverage(report)
    parts.append(details("Environment", _environment(report)))
    return "\n\n".join(part for part in parts if part) + "\n"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of GitHub's Markdown. Cells are Markdown themselves and are not changed."""
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _runners(case: CaseReport) -> str:
    """Runners by precision: the verdict, the largest error over limit of any module, the latency."""
    rows = [
        [plain(label), *(_runner_cell(entry) for entry in entries)]
        for label, entries in overview.by_runner(case)
    ]
    return table(["runner", *(precision.precision for precision in case.precisions)], rows)


def _runner_cell(entry: RunnerReport | None) -> str:
    if entry is None:
        return "not run"
    if entry.verdict == "NONE":
        return plain(entry.status)
    worst = max((module.margin for module in entry.modules), default=0.0)
    is_reference = entry.runner == REFERENCE and entry.verdict == "PASS"
    verdict = "reference" if is_reference else f"**{entry.verdict}** {overview.ratio_text(worst)}"
    if entry.latency is None:
        return verdict
    return f"{verdict}<br>{milliseconds(entry.latency)} ms"


def _findings(report: Report) -> list[str]:
    """One item for each run that fails, is INSENSITIVE or has no verdict, and for each tolerated failure."""
    items = []
    for case, precision, entry in report.runner_reports():
        place = plain(overview.place(case, precision, entry))
        diagnosis = entry.diagnosis
        if entry.verdict in ("FAIL", "INSENSITIVE"):
            text = diagnosis.text if diagnosis is not None else entry.reason
            tap = f"{code_span(diagnosis.tap)}: " if diagnosis is not None and diagnosis.tap else ""
            items.append(f"- **{entry.verdict}** {place}: {tap}{plain(text)}")
            if diagnosis is not None and diagnosis.source:
                items.append(f"  - source: {code_span(diagnosis.source)}")
            patterns = diagnosis.explanation if diagnosis is not None else ()
            items += [f"  - explanation: {plain(pattern)}" for pattern in patterns]
            if origins := downstream(entry):
                items.append(f"  - {len(origins)} failures follow from it")
        elif entry.verdict == "NONE" and entry.status != overview.BUILT:
            items.append(f"- **{plain(entry.status)}** {place}: {plain(entry.reason)}")
    items += [f"- **FAIL** {plain(line)}" for line in stream_lines(report, "FAIL")]
    items += [f"- **TOLERATED** {plain(text)}" for text in overview.tolerated(report)]
    return ["\n".join(items)] if items else []


def _streams(report: Report) -> str:
    return "\n".join(
        f"- {status} {plain(line)}" for status in ("FAIL", "PASS") for line in stream_lines(report, status)
    )


def _metrics(report: Report) -> str:
    rows = [
        [plain(case.case.name), precision.precision, plain(entry.label), *_metric_cells(metric)]
        for case, precision, entry in report.runner_reports()
        for metric in entry.metrics
    ]
    headers = ["case", "precision", "runner", "metric", "reference", "port", "difference (95 %)", "rows"]
    return table(headers, rows) if rows else ""


def _metric_cells(metric: MetricReport) -> list[str]:
    """Name, reference, port, difference with its interval, rows."""
    if metric.reason:
        return [plain(metric.name), plain(metric.reason), "-", "-", str(metric.rows)]
    low, high = metric.interval or (None, None)
    interval = plain(metric.no_interval) if low is None else f"{low:+.1e} to {high:+.1e}"
    flagged = "**FAIL** " if metric.flagged else ""
    difference = f"{flagged}{metric.difference:+.1e} ({interval})"
    return [plain(metric.name), f"{metric.reference:.6f}", f"{metric.port:.6f}", difference, str(metric.rows)]


def _failing_modules(report: Report) -> str:
    verdicts = [
        overview.verdict_lines(f"{overview.place(case, precision, entry)}: {module.tap} {name}", verdict)
        for case, precision, entry in report.runner_reports()
        for origins in [downstream(entry)]
        for module in entry.modules
        if module.tap not in origins
        for name, verdict in module.verdicts.items()
        if verdict.status == "FAIL"
    ]
    left_out = len(verdicts) - MOST_VERDICTS
    more = f"\n  and {left_out} more in report.html" if left_out > 0 else ""
    return _block("\n".join(verdicts[:MOST_VERDICTS]) + more) if verdicts else ""


def _coverage(report: Report) -> list[str]:
    """The section on questions that no input asks of the port."""
    if report.coverage is None:
        return []
    rows = [
        [
            code_span(coverage.file_of(entry)),
            code_span(entry.text or entry.place),
            plain(", ".join(entry.missing)),
        ]
        for entry in report.coverage.unasked[:MOST_UNASKED]
    ]
    left_out = len(report.coverage.unasked) - MOST_UNASKED
    more = f"\n\nand {left_out} more in report.html" if left_out > 0 else ""
    body = table(["place", "source", "not asked"], rows) + more if rows else ""
    return [plain(coverage.in_words(report.coverage)), details("Not asked", body)]


def _rows(report: Report) -> str:
    return "\n".join(
        f"- {plain(case.case.name)}, {plain(label)}: {plain(text)}"
        for case in report.cases
        for label, text in overview.row_lines(case).items()
    )


def _gaps(report: Report) -> str:
    return "\n".join(
        f"- {code_span(kind)}: {plain(reason)}" for kind, reason in overview.gaps(report).items()
    )


def _environment(report: Report) -> str:
    facts = {"command": report.command, "created": report.created, **report.environment}
    return _block("\n".join(f"{name}: {value}" for name, value in facts.items()))


def details(title: str, body: str) -> str:
    """A section that opens on a click; empty without a body."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def plain(text: str) -> str:
    """Plain text on one line, with Markdown's characters escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code_span(text: str) -> str:
    """A code span of any name."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def _block(text: str) -> str:
    """A code block of any text."""
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}text\n{text}\n{fence}"
