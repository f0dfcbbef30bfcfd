"""From verdicts to the schema: the one place where a report's data is made of judgements and records."""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Mapping, Sequence

from parity.base.environment import environment
from parity.capture.names import TapName
from parity.case import Case, load_case
from parity.execution.case_files import CaseDescription
from parity.execution.record import REFERENCE, RunnerRecord
from parity.report.coverage import coverage_report
from parity.report.schema import (
    BatchReport,
    CaseReport,
    PrecisionReport,
    Report,
    RunnerReport,
    StreamReport,
)
from parity.report.schema_modules import (
    DiagnosisReport,
    ElementReport,
    ErrorMapReport,
    LatencyReport,
    MetricReport,
    ModuleReport,
    RooflineReport,
    RoundingReport,
    RowReport,
    VerdictReport,
)
from parity.timing.roofline import WHOLE_MODEL, Rooflines
from parity.verdict.judgement import Diagnosis, ErrorMap, MetricJudgement, RunnerJudgement, TapJudgement
from parity.verdict.judging import PrecisionJudgement
from parity.verdict.refuted import without_refuted
from parity.verdict.row_errors import RowErrors
from parity.verdict.rule import Verdict


def assemble(
    judged: Sequence[tuple[CaseDescription, Sequence[PrecisionJudgement]]],
    command: str,
    asked: Sequence[str],
    streams: Sequence[Sequence[StreamReport]] = (),
    live: Sequence[Case] = (),
) -> Report:
    """The report on a run.

    Args:
        judged: Facts and judgements of each case, one judgement a precision.
        command: The command line.
        asked: The runners that the user named.
        streams: The judged streams of each case; empty without any.
        live: The cases that cannot be loaded again.
    """
    report = Report(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=command,
        environment=environment(),
        requested_runners=tuple(asked),
        cases=tuple(
            _case_report(description, judgements, of_case)
            for (description, judgements), of_case in itertools.zip_longest(judged, streams, fillvalue=())
        ),
        coverage=coverage_report(
            [*live, *(load_case(facts.case) for facts, _ in judged if facts.case.target)],
            [judgement for _, judgements in judged for judgement in judgements],
        ),
        exit_code=0,
    )
    return report.model_copy(update={"exit_code": report.code_of_results()})


def _case_report(
    description: CaseDescription, judgements: Sequence[PrecisionJudgement], streams: Sequence[StreamReport]
) -> CaseReport:
    return CaseReport(
        case=description.case,
        source=description.source,
        weights_source=description.weights_source,
        weights_digest=description.weights_digest,
        labels_digests=description.labels_digests,
        batches=tuple(BatchReport(**batch.model_dump(exclude={"further"})) for batch in description.batches),
        counts=description.counts,
        precisions=tuple(precision_report(judgement) for judgement in without_refuted(judgements)),
        streams=tuple(streams),
    )


def precision_report(judgement: PrecisionJudgement) -> PrecisionReport:
    """The report on all runners of a case in one precision."""
    runners = tuple(
        runner_report(name, runner, judgement.rooflines) for name, runner in judgement.runners.items()
    )
    return PrecisionReport(precision=judgement.precision, runners=runners, gpu=dict(judgement.gpu))


def runner_report(name: str, judgement: RunnerJudgement, rooflines: Rooflines | None = None) -> RunnerReport:
    """The report on one runner.

    Args:
        name: Name of the runner.
        judgement: Its verdicts.
        rooflines: Least times on the GPU; None without a GPU.
    """
    record = judgement.record
    # The GPU does not limit a runner whose label says that it runs on the CPU.
    on_gpu = rooflines is not None and "cpu" not in record.label
    least = rooflines.by_tap if rooflines is not None and on_gpu else {}
    facts = RunnerReport(
        runner=name,
        label=record.label or name,
        status=judgement.status.value,
        reason=judgement.reason,
        verdict=judgement.verdict,
        diagnosis=_diagnosis(judgement.diagnosis) if judgement.diagnosis is not None else None,
        builds=tuple(record.builds),
    )
    if not judgement.taps:
        return facts
    latency = _latency(record.seconds, record.replay_seconds, least, WHOLE_MODEL)
    reason = rooflines.reason if rooflines is not None and on_gpu and latency and name == REFERENCE else ""
    return facts.model_copy(
        update={
            "modules": _modules(judgement.taps, record, least),
            "checks": {check: verdict_report(verdict) for check, verdict in judgement.checks.items()},
            "padding_leak": judgement.padding_leak,
            "observer_difference": judgement.observer_difference,
            "latency": latency,
            "timing_reason": record.timing_reason,
            # All runners share the reason, so the reference alone states it.
            "roofline_reason": reason,
            "replay_reasons": record.replay_reasons,
            "peak_bytes": record.peak_bytes,
            "metrics": tuple(_metric(metric) for metric in judgement.metrics),
            "rows": tuple(RowReport.model_validate(row, from_attributes=True) for row in judgement.rows),
        }
    )


def latency_report(seconds: Sequence[float], replays: Sequence[float] = ()) -> LatencyReport:
    """Median, quartiles and deciles of measured times.

    Args:
        seconds: Times of single runs, at least one.
        replays: Times of replays of the same work, or empty.
    """
    # The exclusive deciles of few runs lie outside the measured range, and so do the quartiles of two runs.
    quartiles, deciles = [*seconds] * 3, [*seconds] * 9
    if len(seconds) > 1:
        quartiles = statistics.quantiles(
            seconds, n=4, method="inclusive" if len(seconds) == 2 else "exclusive"
        )
        deciles = statistics.quantiles(seconds, n=10, method="inclusive")
    return LatencyReport(
        median=statistics.median(seconds),
        p10=deciles[0],
        p25=quartiles[0],
        p75=quartiles[2],
        p90=deciles[8],
        runs=len(seconds),
        replay=latency_report(replays) if replays else None,
    )


def _latency(
    seconds: Sequence[float], replays: Sequence[float], least: Mapping[str, object], tap: str
) -> LatencyReport | None:
    if not seconds:
        return None
    roofline = RooflineReport.model_validate(least[tap], from_attributes=True) if tap in least else None
    return latency_report(seconds, replays).model_copy(update={"roofline": roofline})


def _modules(
    taps: Sequence[TapJudgement], record: RunnerRecord, least: Mapping[str, object]
) -> tuple[ModuleReport, ...]:
    modules = []
    timed: set[str] = set()
    for tap in taps:
        # A module with several outputs is timed once, and its first tap has the time.
        call = str(TapName.parse(tap.tap).module_call)
        seconds = record.module_seconds.get(call, []) if call not in timed else []
        replays = record.module_replay_seconds.get(call, [])
        modules.append(_module(tap, _latency(seconds, replays, least, call)))
        timed.add(call)
    return tuple(modules)


def _module(tap: TapJudgement, latency: LatencyReport | None) -> ModuleReport:
    return ModuleReport(
        tap=tap.tap,
        path=tap.path,
        kind=tap.kind,
        status=tap.status,
        gap=tap.gap,
        accumulated=verdict_report(tap.accumulated) if tap.accumulated is not None else None,
        isolated=verdict_report(tap.isolated) if tap.isolated is not None else None,
        min_detectable_error=tap.min_detectable_error,
        worst_batch=tap.batch,
        by_nature=tap.by_nature,
        latency=latency,
        error_maps={name: _error_map(error_map) for name, error_map in tap.error_maps.items()},
        notes=tap.notes,
        rounding=_rounding(tap.row_errors) if tap.row_errors is not None else None,
    )


def _rounding(errors: RowErrors) -> RoundingReport:
    return RoundingReport(
        factor=errors.factor,
        interval=errors.interval(),
        rows=errors.rows,
        noted=errors.is_noted,
        text=errors.text(),
    )


def _error_map(error_map: ErrorMap) -> ErrorMapReport:
    return ErrorMapReport(axes=error_map.axes, shape=error_map.shape, cells=error_map.cells)


def verdict_report(verdict: Verdict) -> VerdictReport:
    """The report on one verdict."""
    reference, port, limit = verdict.reference, verdict.port, verdict.limit
    return VerdictReport(
        status=verdict.status,
        reason=verdict.reason,
        err_ref_l2=reference.l2,
        err_port_l2=port.l2,
        limit_l2=limit.l2,
        err_ref_max=reference.largest,
        err_port_max=port.largest,
        limit_max=limit.largest,
        scale_error_ref=reference.scale_error,
        scale_error_port=port.scale_error,
        limit_scale_error=limit.scale_error,
        margin=verdict.margin,
        min_detectable_error=verdict.min_detectable_error,
        checked=verdict.checked,
        boundary=verdict.boundary,
        k=verdict.bound.k,
        floor=verdict.bound.floor,
        longest_sum=verdict.bound.longest_sum,
        bound=verdict.bound.explain(),
        worst=tuple(
            ElementReport(index=e.index, oracle=e.oracle, reference=e.reference, port=e.port)
            for e in verdict.worst
        ),
        tolerated=verdict.tolerated,
        ties=verdict.ties,
    )


def _diagnosis(diagnosis: Diagnosis) -> DiagnosisReport:
    return DiagnosisReport(
        kind=diagnosis.kind,
        tap=diagnosis.tap,
        text=diagnosis.text,
        amplification=diagnosis.amplification,
        batch=diagnosis.batch,
        explanation=diagnosis.explanation,
        code=diagnosis.code,
        argument=diagnosis.argument,
        source=diagnosis.source,
    )


def _metric(metric: MetricJudgement) -> MetricReport:
    values = metric.values
    if values is None:
        return MetricReport(name=metric.name, rows=metric.rows, reason=metric.reason)
    return MetricReport(
        name=metric.name,
        rows=metric.rows,
        oracle=values.oracle,
        reference=values.reference,
        port=values.port,
        difference=values.difference,
        interval=values.interval,
        no_interval=values.no_interval,
        k=values.k,
        floor=values.floor,
        limit=values.limit,
        flagged=values.flagged,
    )
