"""Contradictions in the report of a file, which no run writes.

Entries are doubled, numbers disagree, or a verdict is not that of its parts. A report whose numbers are all
written anew is not recognised: it has no key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from parity.execution.record import REFERENCE, Status
from parity.report.schema import CaseReport, Report, RunnerReport, StreamReport
from parity.report.schema_modules import LatencyReport, MetricReport, ModuleReport, VerdictReport
from parity.verdict.sensitivity import INSENSITIVE_ABOVE

_ROUNDING = 1e-9
"""Relative difference between a number and the same one from its parts."""
_STATUSES = {status.value for status in Status} - {Status.UNWRITABLE.value}


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
        names = {batch.name for batch in case.batches}
        for module in entry.modules:
            if module.worst_batch not in names:
                yield f"{place}: {module.tap} has verdicts on {module.worst_batch!r}, which is no batch"
    if report.exit_code not in _codes(report):
        yield f"its exit code is {report.exit_code}, and its results give {report.code_of_results()}"


def _codes(report: Report) -> set[int]:
    """The exit codes that a run with these results may have."""
    codes = {report.code_of_results()}
    if len(report.cases) > 1:
        # Comparisons from Python are joined: the report has the worst code of any.
        alone = (report.model_copy(update={"cases": (case,)}) for case in report.cases)
        codes.add(max(one.code_of_results() for one in alone))
    return codes


def _in_case(case: CaseReport) -> Iterator[str]:
    name = case.case.name
    yield from _repeated(f"{name}: batch", (batch.name for batch in case.batches))
    yield from _repeated(f"{name}: precision", (precision.precision for precision in case.precisions))
    # A comparison pairs streams by their library.
    yield from _repeated(f"{name}: stream", (f"{s.precision} {s.library}" for s in case.streams))
    for stream in case.streams:
        yield from (f"{name}: stream {stream.side}: {problem}" for problem in _in_stream(stream))
    if not case.precisions:
        yield f"{name} has no precision"
    for precision in case.precisions:
        place = f"{name} {precision.precision}"
        yield from _repeated(f"{place}: runner", (entry.runner for entry in precision.runners))
        if not precision.runners:
            yield f"{place} has no runner"


def _in_stream(stream: StreamReport) -> Iterator[str]:
    if stream.failed:
        return
    if stream.steps < 1 or stream.reason or stream.explanation:
        yield "it passes without a step, or with a reason to fail"
    if not all(0.0 <= margin <= 1.0 + _ROUNDING for margin in (stream.cache_margin, stream.output_margin)):
        yield "it passes beyond its limit"


def _in_runner(entry: RunnerReport) -> Iterator[str]:
    yield from _repeated("module", (module.tap for module in entry.modules))
    yield from _repeated("metric", (metric.name for metric in entry.metrics))
    yield from _in_result(entry)
    for module in entry.modules:
        yield from (f"{module.tap}: {problem}" for problem in _in_module(module))
    verdicts = {
        **entry.checks,
        **{f"{m.tap} {name}": verdict for m in entry.modules for name, verdict in m.verdicts.items()},
    }
    for name, verdict in verdicts.items():
        yield from (f"{name}: {problem}" for problem in _in_verdict(verdict))
    for metric in entry.metrics:
        yield from (f"{metric.name}: {problem}" for problem in _in_metric(metric))
    latencies = {"whole model": entry.latency, **{module.tap: module.latency for module in entry.modules}}
    for name, latency in latencies.items():
        if latency is not None and not _is_possible(latency):
            yield f"{name}: its times are no quantiles of times"


def _in_result(entry: RunnerReport) -> Iterator[str]:
    """Contradictions between a runner's verdict and the parts that decide it."""
    if entry.status not in _STATUSES:
        yield f"its status is {entry.status!r}, which no runner has"
    kind = "none" if entry.diagnosis is None else entry.diagnosis.kind
    if entry.verdict == "NONE":
        if entry.status == Status.OK.value or entry.modules or entry.checks or kind != "none":
            yield "it has results and no verdict"
        return
    if entry.verdict == "FAIL":
        if kind in ("none", "insensitive"):
            yield "it fails, and its diagnosis names no failure"
        return
    failing = next(_failing(entry), "")
    if failing:
        yield f"its verdict is {entry.verdict}, and {failing}"
    if not entry.modules and entry.runner != REFERENCE:
        yield f"its verdict is {entry.verdict} without a module"
    insensitive = [module.tap for module in entry.modules if module.status == "INSENSITIVE"]
    if (entry.verdict, kind) not in {("PASS", "none"), ("INSENSITIVE", "insensitive")}:
        yield f"its verdict is {entry.verdict}, and its diagnosis is of the kind {kind!r}"
    elif bool(insensitive) != (entry.verdict == "INSENSITIVE"):
        yield f"its verdict is {entry.verdict}, and {len(insensitive)} modules are INSENSITIVE"


def _failing(entry: RunnerReport) -> Iterator[str]:
    """The parts of a runner that fail, in words."""
    if entry.status != Status.OK.value:
        yield f"its status is {entry.status}"
    yield from (f"{module.tap} fails" for module in entry.modules if module.status == "FAIL")
    yield from (f"{name} fails" for name, check in entry.checks.items() if check.status == "FAIL")
    yield from (f"{metric.name} moves" for metric in entry.metrics if metric.flagged)
    yield from (f"a row {row.kind} differs at {row.excess}" for row in entry.rows if row.excess or row.reason)
    if entry.padding_leak:
        yield f"padding leaks at {entry.padding_leak}"


def _in_module(module: ModuleReport) -> Iterator[str]:
    statuses = {verdict.status for verdict in module.verdicts.values()}
    if module.gap:
        expected = {"GAP"}
    else:
        expected = {"FAIL"} if "FAIL" in statuses else {"PASS", "INSENSITIVE"} if statuses else set()
    if module.status not in expected:
        yield f"its status {module.status} is not that of its verdicts"
    elif module.status in ("PASS", "INSENSITIVE"):
        detected = module.min_detectable_error
        if not detected >= 0.0:
            yield f"it passes and detects {detected:g}"
        if module.status == "INSENSITIVE" and detected <= INSENSITIVE_ABOVE:
            yield f"it is INSENSITIVE and detects {detected:g}"


def _in_verdict(verdict: VerdictReport) -> Iterator[str]:
    errors = (verdict.err_ref_l2, verdict.err_port_l2, verdict.err_ref_max, verdict.err_port_max)
    limits = (verdict.limit_l2, verdict.limit_max, verdict.limit_scale_error)
    if verdict.status == "FAIL":
        if not verdict.reason or verdict.tolerated:
            yield "it fails without a reason, or with a tolerance"
        if any(size < 0.0 for size in (*errors, *limits)):
            yield "it has sizes below 0"
        return
    if verdict.reason:
        yield "it passes with a reason to fail"
    if verdict.checked < 1 or verdict.boundary < 0 or verdict.ties < 0:
        yield f"it passes with {verdict.checked} compared elements"
    if not all(_is_size(error) for error in errors):
        yield "it passes with errors that are no sizes"
        return
    if not all(map(_is_size, (*limits, verdict.k, verdict.floor, abs(verdict.scale_error_ref)))):
        yield "it passes with limits that are no sizes"
        return
    if not verdict.min_detectable_error >= 0.0:
        yield f"it passes and detects {verdict.min_detectable_error:g}"
    if not all(math.isfinite(v) for e in verdict.worst for v in (e.oracle, e.reference, e.port)):
        yield "it passes with an element that is no number"
    ratios = (
        _ratio(verdict.err_port_l2, verdict.limit_l2),
        _ratio(verdict.err_port_max, verdict.limit_max),
        _ratio(abs(verdict.scale_error_port), verdict.limit_scale_error),
    )
    if not math.isclose(max(ratios), verdict.margin, rel_tol=_ROUNDING):
        yield f"its margin {verdict.margin:g} is not the largest ratio of an error to its limit"
    elif verdict.margin > 1.0 + _ROUNDING and not verdict.tolerated:
        yield f"it passes with the margin {verdict.margin:g}"


def _is_size(number: float) -> bool:
    return math.isfinite(number) and number >= 0.0


def _ratio(error: float, limit: float) -> float:
    return 0.0 if error == 0.0 else error / limit if limit > 0.0 else math.inf


def _in_metric(metric: MetricReport) -> Iterator[str]:
    values = (metric.oracle, metric.reference, metric.port, metric.difference, metric.limit)
    if metric.reason or any(value is None for value in values):
        if metric.flagged or not metric.reason or any(value is not None for value in values):
            yield "it has some of its values, or a reason for none beside them"
        return
    oracle, reference, port, difference, limit = (value for value in values if value is not None)
    if not math.isclose(difference, port - reference, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        yield "its difference is not that of port and reference"
    low, high = metric.interval or (-math.inf, math.inf)
    if not low <= high:
        yield "its interval has no length"
    elif metric.flagged != (abs(port - oracle) > limit and (low > 0.0 or high < 0.0)):
        yield "its flag does not follow from its values"


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
