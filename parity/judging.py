"""Verdicts from saved captures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from configs import CaseConfig
from parity.captures import Capture, load_capture
from parity.collect import ORACLE, POISONED, REFERENCE, Record, RunnerRecord
from parity.compare import Comparison, Diagnosis, Evidence, Results, compare
from parity.errors import UserError
from parity.families import get_family
from parity.inputs import load
from parity.precision import PRECISIONS
from parity.report import DiagnosisReport, LatencyReport, ModuleReport, RunnerReport, VerdictReport
from parity.worker import Status


def judge_batch(case: CaseConfig, folder: Path, batch: int) -> dict[str, RunnerReport]:
    """Judge every runner of one batch in one precision.

    Args:
        case: The case that was run.
        folder: The precision's folder, inside the batch's.
        batch: The batch's number, for the report.

    Returns:
        A report for each runner except the oracle, which is the measure.

    Raises:
        UserError: A file of the batch is missing or damaged.
    """
    record = _record(folder / "record.json")
    blocked = _why_no_evidence(record)
    evidence = None if blocked else _evidence(case, folder, record)
    reports = {}
    for name, runner in record.runners.items():
        if name == ORACLE and runner.status is Status.OK:
            continue
        # A runner that raised in one step has still answered the others, which tell the module to blame.
        answered = runner.status is Status.OK or (folder / name / "isolated.json").exists()
        if evidence is None or not answered:
            reports[name] = _without_verdict(name, runner, blocked, batch)
        else:
            comparison = compare(evidence, _results(folder / name, name, runner))
            if runner.status is not Status.OK:
                comparison.diagnosis = _blamed(comparison, runner)
            reports[name] = _judged(name, runner, comparison, batch)
    return reports


def _record(path: Path) -> Record:
    try:
        return Record.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError("record", str(path), "is missing or damaged", "run again") from error


def merge_batches(batches: Iterable[Mapping[str, RunnerReport]]) -> tuple[RunnerReport, ...]:
    """One report a runner for several batches: each tap's worst batch, the first diagnosis, one latency."""
    merged: dict[str, RunnerReport] = {}
    for reports in batches:
        for name, report in reports.items():
            merged[name] = _worse(merged[name], report) if name in merged else report
    return tuple(merged.values())


def _worse(a: RunnerReport, b: RunnerReport) -> RunnerReport:
    if a.verdict == "NONE" or b.verdict == "NONE":
        return a if a.verdict == "NONE" else b
    first_failure = a if a.verdict == "FAIL" else b
    modules = {module.tap: module for module in a.modules}
    for module in b.modules:
        known = modules.get(module.tap)
        if known is None or _badness(module) > _badness(known):
            modules[module.tap] = module.model_copy(update={"latency": known.latency if known else None})
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


def _evidence(case: CaseConfig, folder: Path, record: Record) -> Evidence:
    family = get_family(case.family)
    arrays = load(folder.parent / "inputs.safetensors").arrays
    reference = load_capture(folder / REFERENCE / "tapped")
    boundary: dict[str, np.ndarray] = {}
    for call in reference.calls:
        elements = family.boundary(call, reference.call_inputs, case.model)
        if elements is not None and elements.any():
            boundary |= dict.fromkeys(call.outputs, elements)
    oracle = folder / ORACLE
    return Evidence(
        precision=PRECISIONS[record.precision],
        entry=family.entry,
        reference=reference,
        oracle=load_capture(oracle / "tapped").tensors,
        oracle_isolated=load_capture(oracle / "isolated").tensors,
        reference_incremental=_optional(folder / REFERENCE / "incremental").tensors,
        incremental_outputs=family.incremental_outputs,
        valid=family.valid_rows(arrays),
        batch_size=family.batch_size(arrays),
        has_padding=(folder.parent / POISONED).exists(),
        boundary=boundary,
        gaps=family.gaps(),
    )


def _optional(stem: Path) -> Capture:
    return load_capture(stem) if stem.with_suffix(".json").exists() else Capture()


def _results(folder: Path, name: str, record: RunnerRecord) -> Results:
    untapped = _optional(folder / "untapped").tensors
    if not record.taps_modules:
        return Results(untapped=untapped, taps_modules=False, appends=False)
    tapped = _optional(folder / "tapped").tensors
    # On its own inputs the reference is its own isolated run.
    isolated = tapped if name == REFERENCE else load_capture(folder / "isolated").tensors
    return Results(
        untapped=untapped,
        tapped=tapped,
        isolated=isolated,
        isolated_problems=record.problems,
        poisoned=_optional(folder / "poisoned").tensors,
        incremental=_optional(folder / "incremental").tensors,
        appends=record.appends,
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
        call_tap = row.tap.split("[")[0]
        seconds = record.module_seconds.get(call_tap)
        # A module with several outputs is timed once, in its first row.
        latency = latency_of(seconds) if seconds and call_tap not in timed else None
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
        latency=latency_of(record.seconds) if record.seconds else None,
        timing_reason=record.timing_reason,
        builds=tuple(record.builds),
    )


def latency_of(seconds: list[float]) -> LatencyReport:
    """Median and quartiles of measured seconds."""
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return LatencyReport(
        median=statistics.median(seconds), p25=quartiles[0], p75=quartiles[2], runs=len(seconds)
    )
