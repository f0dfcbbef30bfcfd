"""The comparison of a runner's captures with those of the reference and the oracle.

A comparison reads captures only. A replayed run therefore gives the same verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.inputs.masks import bits
from parity.verdict.arguments import judge_arguments
from parity.verdict.bound import bound_for
from parity.verdict.diagnosis import diagnose
from parity.verdict.distances import compared_rows
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import MODEL_OUTPUT, CallJudgement, Diagnosis, TapJudgement
from parity.verdict.rule import Verdict, failure, judge
from parity.verdict.sampling_error import FALSE_ALARM

MAX_BOUNDARY_FRACTION = 0.01
"""Largest share of a tap's own elements that may lie at a discontinuity, over all inputs. A tap fails with so
many of them in a batch that chance has more in at most `FALSE_ALARM` of all batches."""
POSITIONED = 3
"""Number of axes of a tap with positions: batch, positions, width."""
MAX_FLIPPED_FRACTION = 0.5
"""Largest share of the elements of later taps. One flip early in a sequence reaches every later row."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts on one runner for one batch in one precision.

    Attributes:
        taps: In the order in which the reference's modules finish.
        checks: Verdicts on incremental outputs, by name.
        padding_leak: First tap that changes with the content of the padding; empty if none does.
        observer_difference: Largest absolute change of an output by tapping the modules.
        diagnosis: Place of the first divergence.
        calls: Calls that receive other arguments than the reference's.
    """

    taps: tuple[TapJudgement, ...]
    checks: Mapping[str, Verdict]
    padding_leak: str
    observer_difference: float
    diagnosis: Diagnosis
    calls: tuple[CallJudgement, ...] = ()

    @property
    def passed(self) -> bool:
        return self.diagnosis.kind == "none"

    def tap(self, name: str) -> TapJudgement | None:
        """The judgement on a tap; None for the name of a check or of no tap."""
        return next((tap for tap in self.taps if tap.tap == name), None)


def compare(evidence: Evidence, results: Results) -> Comparison:
    """Judge one runner against the reference and the oracle."""
    flips = _flipped_rows(evidence, results)
    taps = tuple(_judge_tap(evidence, results, tap, flips) for tap in _taps_in_order(evidence, results))
    checks = {
        tap: _judge_one(
            evidence,
            tap,
            evidence.oracle.get(evidence.incremental_outputs[tap]),
            reference,
            results.incremental.get(tap),
            _row_mask(flips, reference),
            sampled_tap=evidence.incremental_outputs[tap],
        )
        for tap, reference in evidence.reference_incremental.items()
        if results.appends
    }
    looks_for_leaks = results.taps_modules and evidence.has_padding
    leak = first_padding_leak(evidence, results) if looks_for_leaks else ""
    observer = _largest_difference(results) if results.taps_modules else 0.0
    if not results.received.arguments:
        return Comparison(taps, checks, leak, observer, diagnose(taps, checks, leak))
    calls = judge_arguments(
        evidence,
        results,
        _right_taps(evidence, taps),
        with_floats=not all(tap.passed for tap in taps),
        excluded=lambda tensor: _row_mask(flips, tensor),
    )
    diagnosis = diagnose(taps, checks, leak, calls, evidence.entry)
    return Comparison(taps, checks, leak, observer, diagnosis, calls)


def _right_taps(evidence: Evidence, taps: Sequence[TapJudgement]) -> int:
    """Number of the reference's taps before the first one that fails inside the model."""
    failed = {tap.tap for tap in taps if tap.accumulated is not None and not tap.accumulated.passed}
    names = list(evidence.reference.tensors)
    return next((place for place, name in enumerate(names) if name in failed), len(names))


def _taps_in_order(evidence: Evidence, results: Results) -> list[str]:
    """The reference's taps in the order in which modules finish, then the taps of the runner only."""
    taps = evidence.reference.tensors
    if not results.taps_modules:
        expected = [tap for tap in taps if TapName.parse(tap).is_output_of(evidence.entry)]
        return expected + [tap for tap in results.untapped if tap not in expected]
    # Modules of the incremental forward are judged alone.
    appends = results.appends and bool(evidence.oracle_isolated)
    expected = [tap for tap in taps if appends or not TapName.parse(tap).appends]
    extra = {*results.tapped, *results.isolated, *results.untapped} - set(taps)
    return expected + sorted(extra)


def _judge_tap(evidence: Evidence, results: Results, tap: str, flips: np.ndarray | None) -> TapJudgement:
    call = evidence.kinds.get(tap)
    is_output = TapName.parse(tap).is_output_of(evidence.entry)
    path = call.path if call else tap
    kind = call.kind if call else (MODEL_OUTPUT if is_output else "unknown")
    if tap not in evidence.reference.tensors:
        own = TapName.parse(tap).path
        is_called = any(call.path == own for call in evidence.reference.calls)
        if not is_output and not is_called and (absence := evidence.absence(own, kind)):
            return TapJudgement(tap, own, kind, None, None, absence)
        extra = failure("extra: the reference has no such module or output", bound_for(evidence.precision, 1))
        return TapJudgement.of(tap, path, kind, extra)
    reference = evidence.reference.tensors[tap]
    # The shipped model is untapped, so its outputs are judged.
    port = results.untapped.get(tap) if is_output else results.tapped.get(tap)
    if call and port is None and results.isolated.get(tap) is None:
        gap = evidence.gaps.get(kind, "") or results.fused.get(kind, "")
        # A module of the port with other calls or outputs is a difference, and not absent.
        if gap := gap or ("" if _has_module(results, path) else evidence.absence(path, kind)):
            return TapJudgement(tap, path, kind, None, None, gap)
    contaminated = _row_mask(flips, reference)
    accumulated = isolated = None
    if call is None or not call.appends:
        accumulated = _judge_one(evidence, tap, evidence.oracle.get(tap), reference, port, contaminated)
    if call and results.taps_modules and evidence.oracle_isolated:
        isolated = _judge_isolated(evidence, results, call, tap, contaminated)
    allowed = evidence.tolerated(tap, path)
    return TapJudgement.of(
        tap, path, kind, *(_tolerate(verdict, allowed) for verdict in (accumulated, isolated))
    )


def _has_module(results: Results, path: str) -> bool:
    """Whether the runner has any result of the module at a path."""
    return any(TapName.parse(tap).path == path for tap in (*results.tapped, *results.isolated))


def _tolerate(verdict: Verdict | None, allowed: float) -> Verdict | None:
    """A PASS in place of a FAIL whose relative error the case allows. A failure without numbers stays one."""
    if verdict is None or verdict.passed or not verdict.port.l2 <= allowed:
        return verdict
    reason = f"{verdict.reason}; the case tolerates {allowed:.2g}"
    return replace(verdict, status="PASS", reason="", min_detectable_error=allowed, tolerated=reason)


def _judge_isolated(
    evidence: Evidence, results: Results, call: ModuleCall, tap: str, contaminated: np.ndarray | None
) -> Verdict:
    problem = results.isolated_problems.get(call.tap)
    if problem:
        return failure(f"the module failed: {problem}", bound_for(evidence.precision, 1))
    contains_flip = any(flipped.startswith(f"{call.path}.") for flipped in evidence.boundary)
    return _judge_one(
        evidence,
        tap,
        evidence.oracle_isolated.get(tap),
        evidence.reference.tensors[tap],
        results.isolated.get(tap),
        contaminated if contains_flip else None,
        isolated=True,
    )


def _judge_one(
    evidence: Evidence,
    tap: str,
    oracle: torch.Tensor | None,
    reference: torch.Tensor,
    port: torch.Tensor | None,
    contaminated: np.ndarray | None,
    isolated: bool = False,
    sampled_tap: str = "",
) -> Verdict:
    longest_sum = evidence.longest_sum(tap, isolated)
    modules = evidence.modules(tap, isolated)
    bound = bound_for(evidence.precision, longest_sum, modules)
    if port is None:
        return failure("missing: the port has no such module or output", bound)
    if oracle is None:
        return failure("missing: the oracle has no such tap", bound)
    own = evidence.boundary.get(tap)
    boundary = contaminated if own is None else own
    valid = evidence.mask(tuple(reference.shape))
    verdict = judge(
        oracle,
        reference,
        port,
        evidence.precision,
        longest_sum,
        valid,
        boundary,
        modules,
        evidence.rounding_samples(sampled_tap or tap, isolated),
        by_row=isolated,
    )
    lost = verdict.boundary / max(1, verdict.boundary + verdict.checked)
    if not verdict.passed or not lost:
        return verdict
    depend = f"{verdict.boundary} elements depend on a discontinuity, more than"
    if own is None and lost > MAX_FLIPPED_FRACTION:
        return failure(f"{depend} {MAX_FLIPPED_FRACTION:.0%} of all", bound)
    rows = compared_rows(np.broadcast_to(True if valid is None else valid, tuple(reference.shape)))
    if own is not None and _chance_of_boundaries(lost, rows) < FALSE_ALARM:
        return failure(f"{depend} chance has of {MAX_BOUNDARY_FRACTION:.0%} of {rows} rows", bound)
    return verdict


def _chance_of_boundaries(share: float, rows: int) -> float:
    """The chance of this share of rows at a discontinuity, or more, if `MAX_BOUNDARY_FRACTION` of all are.

    All elements of a row may have one pre-image, so that rows and not elements are independent.

    Args:
        share: Share of the elements at a discontinuity.
        rows: Number of compared rows.
    """
    # SciPy takes long to import, which a run has while its runners work.
    from scipy import special

    # The binomial tail. The incomplete beta function has it for parts of rows, too.
    return float(special.betainc(share * rows, rows - share * rows + 1.0, MAX_BOUNDARY_FRACTION))


def _flipped_rows(evidence: Evidence, results: Results) -> np.ndarray | None:
    """(B, N) mask of rows that depend on a boundary element on which the runner and the reference differ.

    With causal attention, a flip in row n of a bias (B, N, ...) reaches row n and all later rows of its
    sequence. Without, it reaches all of its sequence. A flip in a tap without positions, such as the indices
    of a top-k (B, k), reaches its row of the batch, and N is 1.
    """
    rows = None
    for tap, boundary in evidence.boundary.items():
        port, reference = results.tapped.get(tap), evidence.reference.tensors[tap]
        if port is None or port.shape != reference.shape:
            continue
        flipped = boundary & (port != reference).numpy()
        if flipped.ndim == POSITIONED:
            reached = flipped.any(axis=-1)
            if evidence.causal:
                reached = np.logical_or.accumulate(reached, axis=-1)
            else:
                reached = np.broadcast_to(reached.any(axis=-1, keepdims=True), reached.shape)
        else:
            reached = flipped.reshape(len(flipped), -1).any(axis=-1, keepdims=True)
        rows = reached if rows is None else _either(rows, reached)
    return rows if rows is not None and rows.any() else None


def _either(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Rows in one mask (B, N) or the other; of whole sequences where their numbers of positions differ."""
    if 1 in (rows.shape[1], others.shape[1]) or rows.shape == others.shape:
        return rows | others
    return rows.any(axis=1, keepdims=True) | others.any(axis=1, keepdims=True)


def _row_mask(rows: np.ndarray | None, tensor: torch.Tensor) -> np.ndarray | None:
    """Mask of a tensor's elements in flipped (B, N) rows; of a (B, ...) tensor in whole batch rows."""
    shape = tuple(tensor.shape)
    if rows is None or not shape or shape[0] != rows.shape[0]:
        return None
    if len(shape) > 1 and shape[1] == rows.shape[1]:
        reduced = rows.reshape(rows.shape + (1,) * (len(shape) - 2))
    else:
        reduced = rows.any(axis=1).reshape((rows.shape[0],) + (1,) * (len(shape) - 1))
    return np.broadcast_to(reduced, shape)


def first_padding_leak(evidence: Evidence, results: Results) -> str:
    """The first tap with a valid element that changes with the content of the padding; empty if none does."""
    for tap in evidence.reference.tensors:
        if TapName.parse(tap).appends:
            continue  # The poisoned run is a full forward.
        clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
        if clean is None and poisoned is None:
            continue
        if clean is None or poisoned is None or clean.shape != poisoned.shape:
            return tap
        valid = evidence.mask(tuple(clean.shape))
        changed = bits(clean) != bits(poisoned)
        if (changed if valid is None else changed & valid).any():
            return tap
    return ""


def _largest_difference(results: Results) -> float:
    """The largest absolute change of an output by tapping the modules."""
    largest = 0.0
    for tap, plain in results.untapped.items():
        observed = results.tapped.get(tap)
        if observed is not None and observed.shape == plain.shape and plain.numel():
            difference = (observed.double() - plain.double()).abs()
            largest = max(largest, float(difference.max()))
    return largest
