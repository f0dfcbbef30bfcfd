"""Judged streams in words, for every form of a report."""

from __future__ import annotations

from collections.abc import Iterator

from parity.report.overview import ratio_text
from parity.report.schema import CaseReport, Report, StreamReport


def stream_text(case: CaseReport, stream: StreamReport) -> str:
    """A stream's place and verdict in a line, with its numbers."""
    where = f"{case.case.name}, {stream.precision}, stream of {stream.side}"
    if stream.failed:
        reason = "; ".join(part for part in (stream.reason, stream.explanation) if part)
        # A stream that broke has no judged step.
        step = f"step {stream.steps - 1}: " if stream.steps else ""
        return f"{where}: {step}{stream.failed}: {reason}"
    margins = f"{ratio_text(stream.cache_margin)} (cache), {ratio_text(stream.output_margin)} (outputs)"
    return f"{where}: {stream.steps} steps, {stream.items} items, err/limit {margins}"


def stream_lines(report: Report, status: str) -> Iterator[str]:
    """The lines of all streams with a status, PASS or FAIL."""
    for case in report.cases:
        for stream in case.streams:
            if stream.status == status:
                yield stream_text(case, stream)
