"""A report as Markdown for a pull request: the verdict, a table, what fails and why."""

from __future__ import annotations

import re

from parity.execution.record import REFERENCE
from parity.report import overview
from parity.report.schema import CaseReport, MetricReport, Report, RunnerReport

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&@])")


def render_markdown(report: Report) -> str:
    """The report as GitHub's Markdown, short enough for a comment."""
    outcome = overview.outcome(report)
    parts = [f"### Parity: {outcome.word}", _text(f"{outcome.text[0].upper()}{outcome.text[1:]}")]
    for case in report.cases:
        parts += [_text(overview.case_title(case)), _table(case)]
    parts += _findings(report)
    metrics = _metrics(report)
    if metrics:
        parts += ["**Metrics**", metrics]
    parts += [_details("Modules that fail", _failing_modules(report)), _details("Gaps", _gaps(report))]
    parts.append(_details("Environment", _environment(report)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(case: CaseReport) -> str:
    """Runners by precision: the verdict, the largest error over limit of any module, the latency."""
    precisions = [precision.precision for precision in case.precisions]
    lines = [_row(["runner", *precisions]), _row(["---"] * (1 + len(precisions)))]
    for label, entries in overview.by_runner(case):
        lines.append(_row([_text(label), *(_cell(entry) for entry in entries)]))
    return "\n".join(lines)


def _cell(entry: RunnerReport | None) -> str:
    if entry is None:
        return "not run"
    if entry.verdict == "NONE":
        return _text(entry.status)
    reference = entry.runner == REFERENCE and entry.verdict == "PASS"
    worst = max((module.margin for module in entry.modules), default=0.0)
    shown = ["reference"] if reference else [f"**{entry.verdict}** {overview.ratio_text(worst)}"]
    if entry.latency is not None:
        shown.append(f"{overview.milliseconds(entry.latency)} ms")
    return "<br>".join(shown)


def _findings(report: Report) -> list[str]:
    """One item for each run that fails, is INSENSITIVE, or could not be judged."""
    items = []
    for case, precision, entry in report.runner_reports():
        place = _text(overview.place(case, precision, entry))
        if entry.verdict in ("FAIL", "INSENSITIVE"):
            text = entry.diagnosis.text if entry.diagnosis is not None else entry.reason
            named = entry.diagnosis.tap if entry.diagnosis is not None else ""
            culprit = f"{_code(named)}: " if named else ""
            items.append(f"- **{entry.verdict}** {place}: {culprit}{_text(text)}")
            explanation = entry.diagnosis.explanation if entry.diagnosis is not None else ()
            items += [f"  - explanation: {_text(reason)}" for reason in explanation]
        elif entry.verdict == "NONE" and entry.status != overview.BUILT:
            items.append(f"- **{_text(entry.status)}** {place}: {_text(entry.reason)}")
    return ["\n".join(items)] if items else []


def _metrics(report: Report) -> str:
    rows = [
        _row([_text(case.case.name), precision.precision, _text(entry.label), *_metric_cells(metric)])
        for case, precision, entry in report.runner_reports()
        for metric in entry.metrics
    ]
    names = ["case", "precision", "runner", "metric", "reference", "port", "difference (95 %)", "rows"]
    return "\n".join([_row(names), _row(["---"] * len(names)), *rows]) if rows else ""


def _metric_cells(metric: MetricReport) -> list[str]:
    """Name, reference, port, difference with its interval, rows."""
    if metric.reason:
        return [_text(metric.name), _text(metric.reason), "-", "-", str(metric.rows)]
    low, high = metric.interval or (None, None)
    interval = _text(metric.no_interval) if low is None else f"{low:+.1e} to {high:+.1e}"
    flagged = "**FAIL** " if metric.flagged else ""
    difference = f"{flagged}{metric.difference:+.1e} ({interval})"
    return [_text(metric.name), f"{metric.reference:.6f}", f"{metric.port:.6f}", difference, str(metric.rows)]


def _failing_modules(report: Report) -> str:
    lines = []
    for case, precision, entry in report.runner_reports():
        for module in entry.modules:
            for where, verdict in (("alone", module.isolated), ("in the model", module.accumulated)):
                if verdict is not None and verdict.status == "FAIL":
                    place = overview.place(case, precision, entry)
                    lines.append(overview.verdict_lines(f"{place}: {module.tap} {where}", verdict))
    shown = "\n".join(lines[:_MOST])
    left_out = len(lines) - _MOST
    more = f"\n  and {left_out} more in report.html" if left_out > 0 else ""
    return _block(shown + more) if lines else ""


_MOST = 12
"""Verdicts in full: a comment of GitHub's holds 65,536 characters."""


def _gaps(report: Report) -> str:
    return "\n".join(f"- {_code(kind)}: {_text(reason)}" for kind, reason in overview.gaps(report).items())


def _environment(report: Report) -> str:
    facts = {"command": report.command, "created": report.created, **report.environment}
    return _block("\n".join(f"{name}: {value}" for name, value in facts.items()))


def _details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Plain text that stays plain, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """A code span of a name, whatever is in it, also inside a table."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def _block(text: str) -> str:
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}text\n{text}\n{fence}"
