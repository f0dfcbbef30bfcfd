"""Verdicts on one batch of a case in one precision, from its captures."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from parity.base.precision import PRECISIONS, Precision
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.names import Phase, TapName
from parity.capture.store import is_saved, open_capture, open_recorded
from parity.case import Case
from parity.case.contract import elements_at_boundary
from parity.case.pairing import UNKNOWN
from parity.case.plan import TYPICAL
from parity.execution.folder import CaseFolder, PrecisionFolder, RunnerFolder
from parity.execution.record import (
    NOT_HERE,
    ORACLE,
    REFERENCE,
    Record,
    RowTrialRecord,
    RunnerRecord,
    Status,
    read_record,
)
from parity.inputs.arrays import load
from parity.inputs.weights import load_export
from parity.runners.base import Arrays, Tensors
from parity.runners.forms import FORMS, computed_inside
from parity.runners.oracle.replays import Replays
from parity.runners.oracle.rerun import Rerun
from parity.verdict.comparison import Comparison, compare_runners
from parity.verdict.diagnosis import with_own_leak
from parity.verdict.error_map import with_error_maps
from parity.verdict.evidence import Evidence, Results
from parity.verdict.explanation import explain_between, explain_tap, with_cause, with_translation
from parity.verdict.judgement import Diagnosis, RunnerJudgement
from parity.verdict.magnitudes import beyond_inputs
from parity.verdict.notes import notes
from parity.verdict.result_names import comparable
from parity.verdict.rows import judge_rows, row_diagnosis

JudgesBatch = Callable[[Case, PrecisionFolder, str, Collection[str]], dict[str, RunnerJudgement]]
"""The type of `judge_batch`."""
_PLACE = re.compile(r"\(\S+:\d+ in \w+\)$")
"""File, line and function in an error's text, see `parity.execution.errors.error_text`."""


@dataclass(frozen=True)
class CapturedBatch:
    """The captures of a batch in one precision, in the reference's shapes.

    Attributes:
        record: How each runner ended.
        blocked: Reason why nothing can be judged, or empty.
        evidence: The basis of verdicts, without replays; None if it is blocked.
        results: Results of the runners with captures, without the oracle, by name.
    """

    record: Record
    blocked: str
    evidence: Evidence | None
    results: Mapping[str, Results]


def open_batch(case: Case, folder: PrecisionFolder) -> CapturedBatch:
    """The captures of a batch in one precision. Raises `UserError` if a file is missing or damaged."""
    record = read_record(folder.record)
    blocked = _why_no_evidence(record)
    if blocked:
        return CapturedBatch(record, blocked, None, {})
    evidence = _evidence(case, folder, record)
    results = {
        name: comparable(evidence, _results(case, folder.runner(name), name, runner))
        for name, runner in record.runners.items()
        # A runner that raises in one step still answers the others, which show the module to blame.
        if name != ORACLE and (runner.status is Status.OK or is_saved(folder.runner(name).isolated))
    }
    return CapturedBatch(record, blocked, evidence, results)


def judge_batch(
    case: Case,
    folder: PrecisionFolder,
    batch: str,
    diagnosed: Collection[str] = (),
    threads: int = 1,
) -> dict[str, RunnerJudgement]:
    """Judge every runner of one batch in one precision.

    Args:
        case: The case.
        folder: Folder of the batch in the precision.
        batch: Name of the batch.
        diagnosed: Runners that fail in an earlier batch. The search for a cause is not for them.
        threads: Large taps that are judged side by side.

    Returns:
        A judgement for each runner. The oracle has one only if it fails.

    Raises:
        UserError: A file of the batch is missing or damaged.
    """
    captured = open_batch(case, folder)
    evidence, results = captured.evidence, captured.results
    record, blocked = captured.record, captured.blocked
    judged = {
        name: runner
        for name, runner in record.runners.items()
        if not (name == ORACLE and runner.status is Status.OK)
    }
    if evidence is None:
        return {name: _without_verdict(runner, blocked, batch) for name, runner in judged.items()}
    evidence.replays, evidence.threads = replays_of(case, folder), threads
    reference = folder.runner(REFERENCE)
    evidence.appending = _optional(reference.appending)
    evidence.poisoned = partial(_optional, reference.poisoned)
    comparisons = zip(results.values(), compare_runners(evidence, list(results.values())), strict=True)
    expected_rows = () if case.states_rows else record.runners[REFERENCE].row_trials or ()
    judgements = {}
    for name, runner in judged.items():
        if name not in results:
            judgements[name] = _without_verdict(runner, blocked, batch)
        else:
            own, comparison = next(comparisons)
            grounds, own = comparison.evidence or evidence, comparison.results or own
            grounds.rerun = None if name in diagnosed else _rerun(case, folder)
            grounds.run_oracle = None if grounds.rerun is None else grounds.rerun.call
            own = _judge_runner(grounds, own, comparison, runner, expected_rows, batch)
            judgements[name] = with_translation(own, name)
    of_reference = judgements.get(REFERENCE)
    own_leak = of_reference.padding_leak if of_reference else ""
    return {
        name: replace(
            judgement, diagnosis=with_own_leak(judgement.diagnosis, judgement.padding_leak, own_leak)
        )
        for name, judgement in judgements.items()
    }


def _why_no_evidence(record: Record) -> str:
    for name in (REFERENCE, ORACLE):
        runner = record.runners[name]
        if runner.status is not Status.OK:
            return f"{name} did not run ({runner.status.value}: {runner.reason})"
    return ""


def evidence_of(
    case: Case,
    precision: Precision,
    arrays: Mapping[str, np.ndarray],
    reference: Capture,
    oracle: Capture,
    oracle_isolated: Mapping[str, torch.Tensor],
    reference_incremental: Mapping[str, torch.Tensor],
    has_padding: bool,
) -> Evidence:
    """The basis of the verdicts on one batch, from the captures of the reference and the oracle.

    Args:
        case: The case.
        precision: The tested precision.
        arrays: Inputs of the batch.
        reference: Tapped run of the reference, with its calls.
        oracle: Tapped run of the oracle.
        oracle_isolated: Taps of the oracle, each module alone; empty if no module is judged alone.
        reference_incremental: Incremental outputs of the reference, or empty.
        has_padding: Whether runners also ran with garbage in the padding.
    """
    boundaries = case.boundaries()
    boundary: dict[str, np.ndarray] = {}
    # Each block may have a module of the same kind on the same tensors: they share one answer.
    elements_by_call: dict[str, np.ndarray] = {}
    for call in reference.calls:
        if call.kind not in boundaries:
            continue
        key = repr((call.kind, call.args, call.kwargs))
        if key not in elements_by_call:
            elements_by_call[key] = _boundary(case, boundaries[call.kind], call, reference)
        elements = elements_by_call[key]
        if elements.any():
            boundary |= dict.fromkeys(call.outputs, elements)
    return Evidence(
        precision=precision,
        entry=case.entry,
        reference=reference,
        oracle=oracle.tensors,
        oracle_isolated=oracle_isolated,
        reference_incremental=reference_incremental,
        incremental_outputs=case.incremental_outputs,
        valid=case.valid_rows(arrays),
        batch_size=case.batch_size_of(arrays),
        has_padding=has_padding,
        boundary=boundary,
        gaps=case.gaps(),
        whole_outputs=[f"{case.entry}.{name}" for name in case.whole_outputs],
        absence=_absence(case),
        squeeze=case.squeeze,
        tolerated=case.tolerated,
        port_path=case.port_path,
        causal=case.is_causal(),
        oracle_received=oracle,
    )


def _absence(case: Case) -> Callable[[str, str], str]:
    """`Case.absence`, which also lets the port call modules that PyTorch has and never calls."""

    def reason(path: str, kind: str) -> str:
        stated = case.absence(path, kind)
        if stated or kind != UNKNOWN:
            return stated
        is_module = path in dict(case.build_reference().named_modules())
        return "PyTorch never calls this module" if is_module else ""

    return reason


def _boundary(case: Case, function: Callable, call: ModuleCall, reference: Capture) -> np.ndarray:
    """Elements of a call's output that round-off could change, from the call's arguments."""
    inputs = reference.call_inputs
    args, kwargs = (
        map_tree(part, lambda leaf: inputs[leaf.key] if isinstance(leaf, TensorKey) else leaf)
        for part in (call.args, call.kwargs)
    )
    return elements_at_boundary(case, lambda: function(*args, **kwargs))


def _evidence(case: Case, folder: PrecisionFolder, record: Record) -> Evidence:
    reference, oracle = folder.runner(REFERENCE), folder.runner(ORACLE)
    return evidence_of(
        case,
        PRECISIONS[record.precision],
        load(folder.batch.inputs).arrays,
        open_recorded(reference.tapped),
        open_capture(oracle.tapped),
        _optional(oracle.isolated).tensors,
        _optional(reference.incremental).tensors,
        has_padding=folder.batch.poisoned.exists(),
    )


def _rerun(case: Case, folder: PrecisionFolder) -> Rerun | None:
    """Runs the oracle on the batch again; None without exported weights."""
    again = _again(case, folder)
    return None if again is None else Rerun(*again)


def replays_of(case: Case, folder: PrecisionFolder) -> Replays | None:
    """Runs the batch again under other choices; None without exported weights."""
    again = _again(case, folder)
    return None if again is None else Replays(*again)


def _again(
    case: Case, folder: PrecisionFolder
) -> tuple[Case, Precision, Callable[[], Tensors], Callable[[], Arrays]] | None:
    """Case, precision, weights and inputs of another run of a batch; None without exported weights."""
    weights = CaseFolder(folder.batch.path.parent).weights
    if not weights.exists():
        return None
    precision = PRECISIONS[folder.path.name]
    return case, precision, lambda: load_export(weights), lambda: load(folder.batch.inputs).arrays


def _optional(stem: Path) -> Capture:
    return open_capture(stem) if is_saved(stem) else Capture()


def _results(case: Case, folder: RunnerFolder, name: str, record: RunnerRecord) -> Results:
    # The timed run is judged, if there is one.
    untapped = _optional(folder.timed).tensors or _optional(folder.untapped).tensors
    if not record.taps_modules:
        return Results(untapped=untapped, taps_modules=False, appends=False)
    received = _optional(folder.tapped)
    tapped = received.tensors
    # The tapped run of the reference is its isolated run: its modules run on the recorded inputs.
    isolated = tapped if name == REFERENCE else _optional(folder.isolated).tensors
    poisoned = _optional(folder.poisoned)
    return Results(
        untapped=untapped,
        tapped=tapped,
        isolated=isolated,
        isolated_problems=record.problems,
        poisoned=poisoned.tensors,
        incremental=_optional(folder.incremental).tensors,
        appends=record.appends,
        appends_alone=name not in FORMS,
        fused=computed_inside(case, name),
        received=Capture() if name == REFERENCE else received,
        received_poisoned=Capture() if name == REFERENCE else poisoned,
        appending=Capture() if name == REFERENCE else _optional(folder.appending),
    )


def _judge_runner(
    evidence: Evidence,
    results: Results,
    comparison: Comparison,
    record: RunnerRecord,
    expected_rows: Sequence[RowTrialRecord],
    batch: str,
) -> RunnerJudgement:
    diagnosis = comparison.diagnosis
    if record.status is not Status.OK:
        diagnosis = _blame(comparison, record)
    tap = comparison.tap(diagnosis.tap)
    patterns = diagnosis.explanation
    if tap is not None and not patterns and not (diagnosis.kind == "between" and tap.passed):
        patterns = explain_tap(evidence, results, tap, comparison.taps)
    explanation = with_cause(explain_between(evidence, results, comparison), patterns)
    if tap is not None and diagnosis.kind == "module":
        explanation = (*explanation, *_other_name(evidence, tap.path))
    rows = judge_rows(evidence, comparison.taps, record.row_trials or (), expected_rows)
    if diagnosis.kind == "none":
        diagnosis = row_diagnosis(rows)
    beyond = beyond_inputs(evidence.precision, record.magnitudes, comparison.taps)
    judgement = RunnerJudgement(
        record=record,
        status=record.status,
        reason=record.reason,
        verdict="PASS" if diagnosis.kind == "none" else "FAIL",
        diagnosis=replace(
            diagnosis,
            explanation=explanation,
            batch=batch,
            source=_calling_line(diagnosis, results) or _source(diagnosis, record.sources),
        ),
        taps=tuple(
            replace(tap, notes=(*notes(evidence, results, comparison, tap), *beyond.get(tap.tap, ())))
            for tap in (replace(tap, batch=batch) for tap in comparison.taps)
        ),
        checks=comparison.checks,
        padding_leak=comparison.padding_leak,
        observer_difference=comparison.observer_difference,
        rows=rows,
    )
    return with_error_maps(judgement, evidence, results)


def _other_name(evidence: Evidence, path: str) -> Iterator[str]:
    """The name of a module in the port, where it is another one: `names` may pair the wrong modules."""
    own = evidence.port_path(path)
    if own.rpartition(".")[2] != path.rpartition(".")[2]:
        yield f"names pairs it with {own} of the port"


def _calling_line(diagnosis: Diagnosis, results: Results) -> str:
    """The line of the port's code that passes the argument of a diagnosis; empty for others."""
    if not diagnosis.argument:
        return ""
    argument = TapName.parse(diagnosis.argument)
    run = results.appending if argument.appends else results.received
    received = run.arguments.get(str(argument.module_call))
    return received.source if received is not None else ""


def _source(diagnosis: Diagnosis, sources: Mapping[str, str]) -> str:
    """The place of the port's code that a diagnosis names: of the module, or of the nearest one around it."""
    if diagnosis.kind not in ("module", "amplification", "between"):
        return ""
    name = TapName.parse(diagnosis.argument or diagnosis.tap)
    path = diagnosis.code if diagnosis.code is not None else name.path
    while path:
        for phase in (name.phase, Phase.FORWARD):
            if place := sources.get(str(TapName(path, phase=phase))):
                return place
        path = path.rpartition(".")[0]
    return sources.get(str(TapName("", phase=name.phase)), "")


def _blame(comparison: Comparison, record: RunnerRecord) -> Diagnosis:
    """The diagnosis of a runner that raised: a module that fails alone, else the whole model.

    A module may raise another error alone, since it has other parameters than the reference's. It is not at
    fault.
    """
    tap = comparison.tap(comparison.diagnosis.tap)
    if tap is None or tap.isolated is None or tap.isolated.passed:
        return Diagnosis("check", "", f"every module passes on its own, and {record.reason}")
    problem = record.problems.get(str(TapName.parse(tap.tap).module_call), "")
    if not problem or _is_same(problem, record.reason):
        return comparison.diagnosis
    wrong = (
        f"{other.path} is wrong on its own"
        for other in comparison.taps
        if other.isolated is not None
        and not other.isolated.passed
        and str(TapName.parse(other.tap).module_call) not in record.problems
    )
    told = next(wrong, "every module that runs on its own passes")
    return Diagnosis("check", "", f"{told}, and {record.reason}")


def _is_same(problem: str, reason: str) -> bool:
    """Whether the error of a module alone is in a runner's reason: by its line of code, else by its words."""
    place = _PLACE.search(problem)
    return (place[0] if place else problem) in reason


def _without_verdict(record: RunnerRecord, blocked: str, batch: str) -> RunnerJudgement:
    status = record.status if record.status is not Status.OK else Status.ERROR
    reason = record.reason or blocked
    if batch not in ("", TYPICAL) and status not in NOT_HERE:
        reason = f"{reason}, in batch {batch}"
    if status is Status.REFUSED:
        # A refused graph is a fault of the port and fails without a comparison.
        diagnosis = Diagnosis("check", text=record.reason, batch=batch)
        return RunnerJudgement(record, status, reason, "FAIL", diagnosis)
    return RunnerJudgement(record, status, reason, "NONE")
