"""Verdicts from captures: all runners of a case in one precision, batch by batch.

Verdicts follow from the files of a run alone. A replayed run therefore gives the same verdicts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS, Precision
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.store import is_saved, open_capture
from parity.case import Case
from parity.coverage.questions import Coverage
from parity.coverage.sizes import asked_sizes
from parity.execution.folder import BatchFolder, CaseFolder, PrecisionFolder, RunnerFolder
from parity.execution.record import ORACLE, REFERENCE, Record, RunnerRecord, Status, read_record
from parity.inputs.arrays import load
from parity.runners.forms import computed_inside
from parity.timing.roofline import Rooflines, read_rooflines
from parity.verdict.comparison import Comparison, compare
from parity.verdict.error_map import with_error_maps
from parity.verdict.evidence import Evidence, Results
from parity.verdict.explanation import explain_tap
from parity.verdict.judgement import Diagnosis, MetricJudgement, RunnerJudgement
from parity.verdict.merging import advice, merge_batches
from parity.verdict.notes import notes
from parity.verdict.rows import judge_rows, row_diagnosis

if TYPE_CHECKING:
    from parity.verdict.task_metrics.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class PrecisionJudgement:
    """The verdicts on all runners of a case in one precision.

    Attributes:
        precision: Name of the precision.
        runners: By name, over all batches.
        gpu: State of the GPU before and after timing; empty without a GPU.
        rooflines: Least times on the GPU; None without a GPU.
        coverage: What all batches ask of the port; None where it is not measured.
    """

    precision: str
    runners: Mapping[str, RunnerJudgement]
    gpu: Mapping[str, str]
    rooflines: Rooflines | None
    coverage: Coverage | None


class PrecisionJudge:
    """Judges a case in one precision from its captures, which may be removed after their batch is added.

    Args:
        case: The case.
        precision: The tested precision.
        folder: Folder of the case, for its exported weights.
        names: Names of the batches that are known at the start, in order.
        recorded: Whether they are recorded data.
        labels_digests: Digest of each batch's labels; empty without labels, and then there are no metrics.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        folder: CaseFolder,
        names: Sequence[str],
        recorded: bool,
        labels_digests: Sequence[str],
    ) -> None:
        self._case = case
        self._precision = precision
        self._weights = folder.weights
        self._names = list(names)
        self._recorded = recorded
        self._labels_digests = labels_digests
        self._batches: list[Mapping[str, RunnerJudgement]] = []
        self._gpu: Mapping[str, str] = {}
        self._rooflines: Rooflines | None = None
        self._evaluation: Evaluation | None = None
        self._coverage = Coverage()

    def judge(self, batches: Iterable[BatchFolder], keep: bool = True) -> None:
        """Judge batches as they come, each one while the next one is made.

        Args:
            batches: Folders of batches that are done.
            keep: Whether captures stay when their batch is judged.

        Raises:
            UserError: See `add`.
        """
        with ThreadPoolExecutor(max_workers=1) as thread:
            judged: Future[None] | None = None
            for batch in batches:
                if judged is not None:
                    judged.result()
                judged = thread.submit(self._take, batch, keep)
            if judged is not None:
                judged.result()

    def _take(self, batch: BatchFolder, keep: bool) -> None:
        self.add(batch)
        if not keep:
            shutil.rmtree(batch.precision(self._precision.name).path)

    def add(self, batch: BatchFolder) -> None:
        """Judge the next batch.

        Raises:
            UserError: A file in the batch's folder is missing or damaged.
        """
        number = len(self._batches)
        folder = batch.precision(self._precision.name)
        judgements = judge_batch(self._case, folder, self._names[number])
        self._batches.append(judgements)
        for name in judgements:
            if (path := folder.runner(name).coverage).exists():
                self._coverage.update(Coverage.read(path))
        self._gpu = self._gpu or read_record(folder.record).gpu
        self._rooflines = self._rooflines or read_rooflines(folder.roofline)
        compared = [name for name, judgement in judgements.items() if judgement.verdict != "NONE"]
        # Without the reference no runner has a verdict.
        if self._labels_digests and REFERENCE in compared:
            if load(batch.labels).digest != self._labels_digests[number]:
                raise UserError("labels", str(batch.labels), "are not those of the run", "save again")
            self._evaluate().add(batch, [name for name in compared if name != REFERENCE])

    def first_failure(self) -> int | None:
        """Number of the first batch in which a runner fails; None if none does."""
        failing = (
            number
            for number, judgements in enumerate(self._batches)
            if any(judgement.verdict == "FAIL" for judgement in judgements.values())
        )
        return next(failing, None)

    def insensitive_runners(self) -> tuple[str, ...]:
        """Runners with a check that could not notice 1 % so far, and could with more rows."""
        merged = merge_batches(self._batches)
        return tuple(name for name, runner in merged.items() if runner.verdict == "INSENSITIVE")

    def add_more_rows(self, name: str, batch: BatchFolder, keep: bool = True) -> None:
        """Judge a further batch, which only some runners ran.

        Raises:
            UserError: See `add`.
        """
        self._names.append(name)
        self._take(batch, keep)

    def judge_again(self, number: int, batch: BatchFolder, keep: bool = True) -> None:
        """Judge a batch without labels once more, from captures of all modules alone."""
        folder = batch.precision(self._precision.name)
        self._batches[number] = judge_batch(self._case, folder, self._names[number])
        if not keep:
            shutil.rmtree(folder.path)

    def _evaluate(self) -> Evaluation:
        if self._evaluation is None:
            # SciPy's statistics and scikit-learn take a second to import, which only labels need.
            from parity.verdict.task_metrics.evaluation import Evaluation

            task = self._case.task(self._weights, self._precision)
            self._evaluation = Evaluation(task, self._precision)
        return self._evaluation

    def judgement(self) -> PrecisionJudgement:
        """The verdicts over all batches so far."""
        merged = merge_batches(self._batches, advice(self._names, self._recorded))
        runners = {name: self._with_metrics(name, runner) for name, runner in merged.items()}
        coverage = asked_sizes(self._coverage) if self._coverage.seen else None
        return PrecisionJudgement(self._precision.name, runners, self._gpu, self._rooflines, coverage)

    def _with_metrics(self, name: str, runner: RunnerJudgement) -> RunnerJudgement:
        if self._evaluation is None or runner.verdict == "NONE" or name == REFERENCE:
            return runner
        metrics = self._evaluation.judge(name)
        flagged = [metric for metric in metrics if metric.flagged]
        if not flagged or runner.verdict == "FAIL":
            # A module that diverges says more about the cause and remains the diagnosis.
            return replace(runner, metrics=metrics)
        diagnosis = Diagnosis("metric", text=_moved(flagged))
        return replace(runner, metrics=metrics, verdict="FAIL", diagnosis=diagnosis)


def _moved(flagged: Sequence[MetricJudgement]) -> str:
    """The diagnosis of a port whose tensors pass and whose metrics move."""
    first, *others = flagged
    values = first.values
    assert values is not None
    assert values.interval is not None
    low, high = values.interval
    also = f"; also {', '.join(metric.name for metric in others)}" if others else ""
    return (
        f"every module is within its limit, and {first.name} moves from {values.reference:.6g} to "
        f"{values.port:.6g}: {abs(values.port - values.oracle):.2g} off the oracle's {values.oracle:.6g}, "
        f"limit {values.limit:.2g} (k = {values.k:.3g}, floor = {values.floor:.2g}), and the 95 % interval "
        f"of port - reference is {low:+.2g} to {high:+.2g}, without 0 ({first.rows} rows){also}"
    )


def judge_batch(case: Case, folder: PrecisionFolder, batch: str) -> dict[str, RunnerJudgement]:
    """Judge every runner of one batch in one precision.

    Args:
        case: The case.
        folder: Folder of the batch in the precision.
        batch: Name of the batch.

    Returns:
        A judgement for each runner. The oracle has one only if it fails.

    Raises:
        UserError: A file of the batch is missing or damaged.
    """
    record = read_record(folder.record)
    blocked = _why_no_evidence(record)
    evidence = None if blocked else _evidence(case, folder, record)
    judgements = {}
    for name, runner in record.runners.items():
        if name == ORACLE and runner.status is Status.OK:
            continue
        # A runner that raises in one step still answers the others, which show the module to blame.
        has_captures = runner.status is Status.OK or is_saved(folder.runner(name).isolated)
        if evidence is None or not has_captures:
            judgements[name] = _without_verdict(runner, blocked, batch)
        else:
            results = _results(case, folder.runner(name), name, runner)
            judgements[name] = _judge_runner(evidence, results, runner, batch)
    return judgements


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
            elements_by_call[key] = _boundary(boundaries[call.kind], call, reference)
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
        absence=_absence(case),
        causal=case.is_causal(),
        oracle_received=oracle,
    )


def _absence(case: Case) -> Callable[[str, str], str]:
    """`Case.absence`, which also lets the port call modules that PyTorch has and never calls."""

    def reason(path: str, kind: str) -> str:
        stated = case.absence(path, kind)
        if stated or kind != "unknown":
            return stated
        is_module = path in dict(case.build_reference().named_modules())
        return "PyTorch never calls this module" if is_module else ""

    return reason


def _boundary(function: Callable[..., np.ndarray], call: ModuleCall, reference: Capture) -> np.ndarray:
    """Elements of a call's output that round-off could change, from the call's arguments."""

    def tensor(leaf: Any) -> Any:
        return reference.call_inputs[leaf.key] if isinstance(leaf, TensorKey) else leaf

    return function(*map_tree(call.args, tensor), **map_tree(call.kwargs, tensor))


def _evidence(case: Case, folder: PrecisionFolder, record: Record) -> Evidence:
    reference, oracle = folder.runner(REFERENCE), folder.runner(ORACLE)
    return evidence_of(
        case,
        PRECISIONS[record.precision],
        load(folder.batch.inputs).arrays,
        open_capture(reference.tapped),
        open_capture(oracle.tapped),
        _optional(oracle.isolated).tensors,
        _optional(reference.incremental).tensors,
        has_padding=folder.batch.poisoned.exists(),
    )


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
    return Results(
        untapped=untapped,
        tapped=tapped,
        isolated=isolated,
        isolated_problems=record.problems,
        poisoned=_optional(folder.poisoned).tensors,
        incremental=_optional(folder.incremental).tensors,
        appends=record.appends,
        fused=computed_inside(case, name),
        received=Capture() if name == REFERENCE else received,
    )


def _judge_runner(evidence: Evidence, results: Results, record: RunnerRecord, batch: str) -> RunnerJudgement:
    comparison = compare(evidence, results)
    diagnosis = comparison.diagnosis
    if record.status is not Status.OK:
        diagnosis = _blame(comparison, record)
    tap = comparison.tap(diagnosis.tap)
    explanation = diagnosis.explanation
    if tap is not None and not explanation and not (diagnosis.kind == "between" and tap.passed):
        explanation = explain_tap(evidence, results, tap)
    rows = judge_rows(evidence, comparison.taps, record.row_trials or ())
    if diagnosis.kind == "none":
        diagnosis = row_diagnosis(rows)
    judgement = RunnerJudgement(
        record=record,
        status=record.status,
        reason=record.reason,
        verdict="PASS" if diagnosis.kind == "none" else "FAIL",
        diagnosis=replace(diagnosis, explanation=explanation, batch=batch),
        taps=tuple(
            replace(tap, batch=batch, notes=notes(evidence, comparison, tap)) for tap in comparison.taps
        ),
        checks=comparison.checks,
        padding_leak=comparison.padding_leak,
        observer_difference=comparison.observer_difference,
        rows=rows,
    )
    return with_error_maps(judgement, evidence, results)


def _blame(comparison: Comparison, record: RunnerRecord) -> Diagnosis:
    """The diagnosis of a runner that raised: a module that fails alone, else the whole model."""
    tap = comparison.tap(comparison.diagnosis.tap)
    if tap is not None and tap.isolated is not None and not tap.isolated.passed:
        return comparison.diagnosis
    return Diagnosis("check", "", f"every module passes on its own, and {record.reason}")


def _without_verdict(record: RunnerRecord, blocked: str, batch: str) -> RunnerJudgement:
    status = record.status if record.status is not Status.OK else Status.ERROR
    reason = record.reason or blocked
    if status is Status.REFUSED:
        # A refused graph is a fault of the port and fails without a comparison.
        diagnosis = Diagnosis("check", text=record.reason, batch=batch)
        return RunnerJudgement(record, status, reason, "FAIL", diagnosis)
    return RunnerJudgement(record, status, reason, "NONE")
