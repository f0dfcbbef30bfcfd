"""Verdicts from saved captures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from cases.registry import get_family
from configs import CaseConfig
from parity.base.precision import PRECISIONS, Precision
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.capture.store import is_saved, open_capture
from parity.execution.folder import PrecisionFolder, RunnerFolder
from parity.execution.record import ORACLE, REFERENCE, Record, RunnerRecord, Status, read_record
from parity.inputs.arrays import load
from parity.report.error_maps import with_pictures, with_telling_pictures
from parity.report.schema import DiagnosisReport, LatencyReport, ModuleReport, RunnerReport, VerdictReport
from parity.runners.fused import FUSED, FUSED_RUNNERS
from parity.verdict.comparison import MODEL_OUTPUT, Comparison, Evidence, Results, compare
from parity.verdict.diagnosis import Diagnosis
from parity.verdict.explanation import why
from parity.verdict.sensitivity import BLIND


def judge_batch(case: CaseConfig, folder: PrecisionFolder, batch: int) -> dict[str, RunnerReport]:
    """Judge every runner of one batch in one precision.

    Args:
        case: The case that was run.
        folder: The batch in the precision.
        batch: The batch's number, for the report.

    Returns:
        A report for each runner except the oracle, which is the measure.

    Raises:
        UserError: A file of the batch is missing or damaged.
    """
    record = read_record(folder.record)
    blocked = _why_no_evidence(record)
    evidence = None if blocked else _evidence(case, folder, record)
    reports = {}
    for name, runner in record.runners.items():
        if name == ORACLE and runner.status is Status.OK:
            continue
        # A runner that raised in one step has still answered the others, which tell the module to blame.
        answered = runner.status is Status.OK or is_saved(folder.runner(name).isolated)
        if evidence is None or not answered:
            reports[name] = _without_verdict(name, runner, blocked, batch)
        else:
            results = _results(folder.runner(name), name, runner)
            comparison = compare(evidence, results)
            if runner.status is not Status.OK:
                comparison.diagnosis = _blamed(comparison, runner)
            found = comparison.diagnosis
            if row := next((row for row in comparison.rows if row.tap == found.tap), None):
                found.why = why(evidence, results, row)
            reports[name] = with_pictures(_judged(name, runner, comparison, batch), evidence, results)
    return reports


def merge_batches(batches: Iterable[Mapping[str, RunnerReport]]) -> tuple[RunnerReport, ...]:
    """One report a runner for several batches: each tap's worst batch, the first diagnosis, one latency.

    What a check would notice counts once for all batches, hence only here are modules found to be BLIND.
    """
    merged: dict[str, RunnerReport] = {}
    for reports in batches:
        for name, report in reports.items():
            merged[name] = _worse(merged[name], report) if name in merged else report
    merged = {name: with_telling_pictures(report) for name, report in merged.items()}
    # The reference's distance from the oracle is the measure itself, whatever it would have noticed.
    return tuple(r if name == REFERENCE else _with_blind_marked(r) for name, r in merged.items())


def _with_blind_marked(report: RunnerReport) -> RunnerReport:
    # What a model's outputs gather on the way hides an error that the modules' own checks would see.
    checks = [m for m in report.modules if m.kind != MODEL_OUTPUT] or report.modules
    # A module that is called several times is the same module: one call that would tell is enough.
    seeing = {m.path for m in checks if m.sensitivity <= BLIND}
    blind = [m for m in checks if m.status == "PASS" and m.path not in seeing]
    if report.verdict != "PASS" or not blind:
        return report
    worst = max(blind, key=lambda module: module.sensitivity)
    text = (
        f"{len(blind)} of {len(checks)} checks would not have noticed an error of {BLIND:.0%}; "
        f"that of {worst.tap} none below {worst.sensitivity:.2g}: give it more rows, or a finer precision"
    )
    marked = {m.tap: m.model_copy(update={"status": "BLIND"}) for m in blind}
    found = DiagnosisReport(
        kind="blind", tap=worst.tap, text=text, amplification=None, batch=worst.worst_batch
    )
    modules = tuple(marked.get(m.tap, m) for m in report.modules)
    return report.model_copy(update={"verdict": "BLIND", "diagnosis": found, "modules": modules})


def _worse(a: RunnerReport, b: RunnerReport) -> RunnerReport:
    if a.verdict == "NONE" or b.verdict == "NONE":
        return a if a.verdict == "NONE" else b
    first_failure = a if a.verdict == "FAIL" else b
    modules = {module.tap: module for module in a.modules}
    for module in b.modules:
        known = modules.get(module.tap)
        if known is None:
            modules[module.tap] = module.model_copy(update={"latency": None})
            continue
        worse = max(known, module, key=_badness)
        both = {"latency": known.latency, "sensitivity": min(known.sensitivity, module.sensitivity)}
        modules[module.tap] = worse.model_copy(update=both)
    checks = dict(a.checks)
    for name, check in b.checks.items():
        if name not in checks or _badness(check) > _badness(checks[name]):
            checks[name] = check
    return a.model_copy(
        update={
            "verdict": first_failure.verdict,
            "diagnosis": first_failure.diagnosis,
            "modules": tuple(modules.values()),
            "checks": checks,
            "padding_leak": a.padding_leak or b.padding_leak,
            "observer_difference": max(a.observer_difference, b.observer_difference),
        }
    )


def _badness(found: ModuleReport | VerdictReport) -> tuple[bool, float]:
    """Orders batches' findings on one tap: a failure before any margin."""
    return found.status == "FAIL", found.margin


def _why_no_evidence(record: Record) -> str:
    for name in (REFERENCE, ORACLE):
        runner = record.runners[name]
        if runner.status is not Status.OK:
            return f"{name} did not run ({runner.status.value}: {runner.reason})"
    return ""


def evidence_of(
    case: CaseConfig,
    precision: Precision,
    arrays: Mapping[str, np.ndarray],
    reference: Capture,
    oracle: Mapping[str, torch.Tensor],
    oracle_isolated: Mapping[str, torch.Tensor],
    reference_incremental: Mapping[str, torch.Tensor],
    has_padding: bool,
) -> Evidence:
    """What one batch is judged by, from what the reference and the oracle gave for `arrays`."""
    family = get_family(case.family)
    boundary: dict[str, np.ndarray] = {}
    # Every block may have a module of the same kind on the same tensors: one answer for all of them.
    known: dict[str, np.ndarray | None] = {}
    for call in reference.calls:
        asked = repr((call.kind, call.args, call.kwargs))
        if asked not in known:
            known[asked] = family.boundary(call, reference.call_inputs, case.model)
        elements = known[asked]
        if elements is not None and elements.any():
            boundary |= dict.fromkeys(call.outputs, elements)
    return Evidence(
        precision=precision,
        entry=family.entry,
        reference=reference,
        oracle=oracle,
        oracle_isolated=oracle_isolated,
        reference_incremental=reference_incremental,
        incremental_outputs=family.incremental_outputs,
        valid=family.valid_rows(arrays),
        batch_size=family.batch_size(arrays),
        has_padding=has_padding,
        boundary=boundary,
        gaps=family.gaps(),
        causal=family.is_causal(case.model),
    )


def _evidence(case: CaseConfig, folder: PrecisionFolder, record: Record) -> Evidence:
    reference, oracle = folder.runner(REFERENCE), folder.runner(ORACLE)
    return evidence_of(
        case,
        PRECISIONS[record.precision],
        load(folder.batch.inputs).arrays,
        open_capture(reference.tapped),
        open_capture(oracle.tapped).tensors,
        open_capture(oracle.isolated).tensors,
        _optional(reference.incremental).tensors,
        has_padding=folder.batch.poisoned.exists(),
    )


def _optional(stem: Path) -> Capture:
    return open_capture(stem) if is_saved(stem) else Capture()


def _results(folder: RunnerFolder, name: str, record: RunnerRecord) -> Results:
    # The run that was timed is the one to judge.
    untapped = _optional(folder.timed).tensors or _optional(folder.untapped).tensors
    if not record.taps_modules:
        return Results(untapped=untapped, taps_modules=False, appends=False)
    tapped = _optional(folder.tapped).tensors
    # On its own inputs the reference is its own isolated run.
    isolated = tapped if name == REFERENCE else open_capture(folder.isolated).tensors
    return Results(
        untapped=untapped,
        tapped=tapped,
        isolated=isolated,
        isolated_problems=record.problems,
        poisoned=_optional(folder.poisoned).tensors,
        incremental=_optional(folder.incremental).tensors,
        appends=record.appends,
        fused=FUSED if name in FUSED_RUNNERS else {},
    )


def _blamed(comparison: Comparison, record: RunnerRecord) -> Diagnosis:
    """Where a runner that raised goes wrong: in a module on its own, or only as a whole."""
    found = comparison.diagnosis
    row = next((row for row in comparison.rows if row.tap == found.tap), None)
    if row is not None and row.isolated is not None and not row.isolated.passed:
        return found
    return Diagnosis("check", "", f"every module is right on its own, and {record.reason}")


def _without_verdict(name: str, record: RunnerRecord, blocked: str, batch: int) -> RunnerReport:
    status = record.status if record.status is not Status.OK else Status.ERROR
    refused = status is Status.REFUSED
    return RunnerReport(
        runner=name,
        label=record.label or name,
        status=status.value,
        reason=record.reason or blocked,
        # That the graph is refused is the port's fault, which needs no comparison to be found.
        verdict="FAIL" if refused else "NONE",
        diagnosis=DiagnosisReport(kind="check", tap="", text=record.reason, amplification=None, batch=batch)
        if refused
        else None,
        builds=tuple(record.builds),
    )


def _judged(name: str, record: RunnerRecord, comparison: Comparison, batch: int) -> RunnerReport:
    modules = []
    timed: set[str] = set()
    for row in comparison.rows:
        call_tap = str(TapName.parse(row.tap).module_call)
        seconds = record.module_seconds.get(call_tap)
        # A module with several outputs is timed once, in its first row.
        replays = record.module_replay_seconds.get(call_tap, [])
        latency = latency_of(seconds, replays) if seconds and call_tap not in timed else None
        timed.add(call_tap)
        modules.append(ModuleReport.of(row, batch, latency))
    return RunnerReport(
        runner=name,
        label=record.label,
        status=record.status.value,
        reason=record.reason,
        verdict="PASS" if comparison.passed else "FAIL",
        diagnosis=DiagnosisReport.of(comparison, batch),
        modules=tuple(modules),
        checks={check: VerdictReport.of(verdict) for check, verdict in comparison.checks.items()},
        padding_leak=comparison.padding_leak,
        observer_difference=comparison.observer_difference,
        latency=latency_of(record.seconds, record.replay_seconds) if record.seconds else None,
        timing_reason=record.timing_reason,
        replay_reasons=record.replay_reasons,
        peak_bytes=record.peak_bytes,
        builds=tuple(record.builds),
    )


def latency_of(seconds: list[float], replays: list[float] | None = None) -> LatencyReport:
    """Median, quartiles and deciles of measured seconds, and of replays of the same where there are any."""
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    # Of a few runs these would lie beyond the least and the greatest, which nobody has seen.
    deciles = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
    return LatencyReport(
        median=statistics.median(seconds),
        p10=deciles[0],
        p25=quartiles[0],
        p75=quartiles[2],
        p90=deciles[8],
        runs=len(seconds),
        replay=latency_of(replays) if replays else None,
    )
