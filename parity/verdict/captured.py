"""The captures of a batch in one precision, as its verdicts read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from parity.base.precision import PRECISIONS, Precision
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.store import is_saved, open_capture, open_recorded
from parity.case import Case
from parity.case.contract import elements_at_boundary
from parity.case.pairing import UNKNOWN
from parity.execution.folder import CaseFolder, PrecisionFolder, RunnerFolder
from parity.execution.record import ORACLE, REFERENCE, Record, RunnerRecord, Status, read_record
from parity.inputs.arrays import load
from parity.inputs.weights import load_export
from parity.runners.base import Arrays, Tensors
from parity.runners.forms import appends_alone, computed_inside
from parity.runners.oracle.replays import Replays
from parity.runners.oracle.rerun import Rerun
from parity.verdict.evidence import Evidence, Results
from parity.verdict.result_names import comparable


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
        saved_capture(oracle.isolated).tensors,
        saved_capture(reference.incremental).tensors,
        has_padding=folder.batch.poisoned.exists(),
    )


def rerun_of(case: Case, folder: PrecisionFolder) -> Rerun | None:
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


def saved_capture(stem: Path) -> Capture:
    """The capture of a stem; an empty one where nothing is saved."""
    return open_capture(stem) if is_saved(stem) else Capture()


def _results(case: Case, folder: RunnerFolder, name: str, record: RunnerRecord) -> Results:
    # The timed run is judged, if there is one.
    untapped = saved_capture(folder.timed).tensors or saved_capture(folder.untapped).tensors
    if not record.taps_modules:
        return Results(untapped=untapped, taps_modules=False, appends=False)
    received = saved_capture(folder.tapped)
    tapped = received.tensors
    # The tapped run of the reference is its isolated run: its modules run on the recorded inputs.
    isolated = tapped if name == REFERENCE else saved_capture(folder.isolated).tensors
    poisoned = saved_capture(folder.poisoned)
    return Results(
        untapped=untapped,
        tapped=tapped,
        isolated=isolated,
        isolated_problems=record.problems,
        poisoned=poisoned.tensors,
        incremental=saved_capture(folder.incremental).tensors,
        appends=record.appends,
        appends_alone=appends_alone(case, name),
        fused=computed_inside(case, name),
        received=Capture() if name == REFERENCE else received,
        received_poisoned=Capture() if name == REFERENCE else poisoned,
        appending=Capture() if name == REFERENCE else saved_capture(folder.appending),
    )
