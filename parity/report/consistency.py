"""Contradictions in the report of a file, which no run writes: doubled entries, numbers that disagree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from parity.report.schema import CaseReport, Report, RunnerReport
from parity.report.schema_modules import LatencyReport, VerdictReport

_ROUNDING = 1e-9
"""Relative difference between a number and the same one from its parts."""


def contradictions(report: Report) -> Iterator[str]:
    """The contradictions in a report, in words."""
    yield from _repeated("case", (case.case.name for case in report.cases))
    if not report.cases:
        yield "it has no case"
    for case in report.cases:
        yield from _in_case(case)
    for case, precision, entry in report.runner_reports():
        place = f"{case.case.name} {precision.precision} {entry.runner}"
        yield from (f"{place}: {problem}" for problem in _in_runner(entry))


def _in_case(case: CaseReport) -> Iterator[str]:
    name = case.case.name
    yield from _repeated(f"{name}: batch", (batch.name for batch in case.batches))
    yield from _repeated(f"{name}: precision", (precision.precision for precision in case.precisions))
    yield from _repeated(f"{name}: stream", (f"{s.precision} {s.side}" for s in case.streams))
    if not case.precisions:
        yield f"{name} has no precision"
    for precision in case.precisions:
        place = f"{name} {precision.precision}"
        yield from _repeated(f"{place}: runner", (entry.runner for entry in precision.runners))
        if not precision.runners:
            yield f"{place} has no runner"


def _in_runner(entry: RunnerReport) -> Iterator[str]:
    yield from _repeated("module", (module.tap for module in entry.modules))
    yield from _repeated("metric", (metric.name for metric in entry.metrics))
    verdicts = {
        **entry.checks,
        **{f"{m.tap} {name}": verdict for m in entry.modules for name, verdict in m.verdicts.items()},
    }
    for name, verdict in verdicts.items():
        yield from (f"{name}: {problem}" for problem in _in_verdict(verdict))
    latencies = {"whole model": entry.latency, **{module.tap: module.latency for module in entry.modules}}
    for name, latency in latencies.items():
        if latency is not None and not _is_possible(latency):
            yield f"{name}: its times are no quantiles of times"


def _in_verdict(verdict: VerdictReport) -> Iterator[str]:
    if verdict.status == "FAIL":
        return
    errors = (verdict.err_ref_l2, verdict.err_port_l2, verdict.err_ref_max, verdict.err_port_max)
    if not all(math.isfinite(error) and error >= 0.0 for error in errors):
        yield "it passes with errors that are no sizes"
        return
    ratios = (
        _ratio(verdict.err_port_l2, verdict.limit_l2),
        _ratio(verdict.err_port_max, verdict.limit_max),
        _ratio(abs(verdict.scale_error_port), verdict.limit_scale_error),
    )
    if not math.isclose(max(ratios), verdict.margin, rel_tol=_ROUNDING):
        yield f"its margin {verdict.margin:g} is not the largest ratio of an error to its limit"
    elif verdict.margin > 1.0 + _ROUNDING and not verdict.tolerated:
        yield f"it passes with the margin {verdict.margin:g}"


def _ratio(error: float, limit: float) -> float:
    return 0.0 if error == 0.0 else error / limit if limit > 0.0 else math.inf


def _is_possible(latency: LatencyReport) -> bool:
    # Of few runs, quartiles and deciles have different estimates: a decile may lie inside the quartiles.
    pairs = ((latency.p10, latency.p90), (latency.p25, latency.p75))
    own = all(
        0.0 < low <= latency.median * (1.0 + _ROUNDING)
        and latency.median <= high * (1.0 + _ROUNDING)
        and math.isfinite(high)
        for low, high in pairs
    )
    roofline = latency.roofline
    return (
        own
        and latency.runs > 0
        and (roofline is None or (math.isfinite(roofline.seconds) and roofline.seconds > 0.0))
        and (latency.replay is None or _is_possible(latency.replay))
    )


def _repeated(kind: str, names: Iterable[str]) -> Iterator[str]:
    listed = list(names)
    yield from (f"{kind} {name} is there twice" for name in dict.fromkeys(listed) if listed.count(name) > 1)
