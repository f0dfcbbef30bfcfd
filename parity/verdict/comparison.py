"""From captures to verdicts: which module diverges first, and by how much.

Every comparison reads only what the runners saved, so that a replayed run gives the same verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.capture.names import TapName
from parity.inputs.masks import bits, valid_elements
from parity.verdict.diagnosis import Diagnosis, TapRow, diagnose
from parity.verdict.rule import Verdict, bound_for, failure, judge
from parity.verdict.sampling_error import Draws

MODEL_OUTPUT = "model output"
"""The kind of a row that stands for an output of the entry point."""
MAX_BOUNDARY_FRACTION = 0.01
"""A tap that loses more than this share of its own elements to a discontinuity has not been tested."""
MAX_FLIPPED_FRACTION = 0.5
"""Likewise for what lies behind it: a single flip early in a sequence reaches every later row."""


@dataclass
class Evidence:
    """All that is known about one batch in one precision, apart from the runner that is judged.

    Attributes:
        precision: The tested precision.
        entry: Name of the entry point; its outputs are the taps `entry.*`.
        reference: The reference's tapped run, with its calls.
        oracle: The oracle's taps, accumulated.
        oracle_isolated: The oracle's taps, each module alone on the reference's inputs.
        reference_incremental: The reference's incremental outputs; empty where there are none.
        incremental_outputs: The tap of the full forward that each of them must equal.
        valid: For each size that a padded axis can have, the (B, size) mask of what counts.
        batch_size: B.
        has_padding: Whether there was padding to poison.
        boundary: By tap, the elements within round-off of a discontinuity.
        gaps: Classes of the reference that the port cannot have, with the reason.
        causal: Whether no row of a sequence depends on a later one.
    """

    precision: Precision
    entry: str
    reference: Capture
    oracle: Mapping[str, torch.Tensor]
    oracle_isolated: Mapping[str, torch.Tensor]
    reference_incremental: Mapping[str, torch.Tensor]
    incremental_outputs: Mapping[str, str]
    valid: Mapping[int, np.ndarray]
    batch_size: int
    has_padding: bool = True
    boundary: Mapping[str, np.ndarray] = field(default_factory=dict)
    gaps: Mapping[str, str] = field(default_factory=dict)
    causal: bool = True

    def __post_init__(self) -> None:
        self.kinds = {name: call for call in self.reference.calls for name in call.outputs}
        self.model_longest_sum = max(self.reference.longest_sums.values(), default=1)
        self._modules_before: dict[str, int] = {}
        count = 0
        for call in self.reference.calls:
            count += not call.appends and self.reference.longest_sums[call.path] > 0
            self._modules_before |= dict.fromkeys(call.outputs, count)
        self._modules = count
        self._draws = {
            (isolated, str(name.of_tap())): Draws(tensors[str(name)])
            for isolated, tensors in ((False, self.oracle), (True, self.oracle_isolated))
            for name in map(TapName.parse, tensors)
            if name.samples
        }

    def draws(self, tap: str, isolated: bool) -> Draws | None:
        """What rounding alone gives the oracle at a tap; None where it has many rows."""
        return self._draws.get((isolated, tap))

    def longest_sum(self, tap: str, isolated: bool) -> int:
        """Terms of the longest sum that a tap's error comes from: its module's, or all that ran before it."""
        call = self.kinds.get(tap)
        if call is None:
            return self.model_longest_sum
        reference = self.reference
        return reference.longest_sums[call.path] if isolated else reference.longest_sums_before[tap]

    def modules(self, tap: str, isolated: bool) -> int:
        """Modules with arithmetic that a tap's error comes from: its own, or all that ran before it."""
        return 1 if isolated else max(1, self._modules_before.get(tap, self._modules))

    def mask(self, shape: tuple[int, ...]) -> np.ndarray | None:
        """What counts in a tensor of this shape: an axis as long as the sequence is masked by the lengths."""
        return valid_elements(shape, self.valid, self.batch_size)

    def counted(self, tap: str, shape: tuple[int, ...]) -> np.ndarray:
        """Which elements of a tap count: neither padding nor at a discontinuity."""
        mask, boundary = self.mask(shape), self.boundary.get(tap)
        keep = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape).copy()
        return keep if boundary is None else keep & ~boundary

    def is_gap(self, call: ModuleCall) -> str:
        """Why the port cannot have this module, or nothing."""
        return self.gaps.get(call.kind, "")


@dataclass
class Results:
    """What the judged runner saved for one batch in one precision."""

    untapped: Mapping[str, torch.Tensor]
    tapped: Mapping[str, torch.Tensor] = field(default_factory=dict)
    isolated: Mapping[str, torch.Tensor] = field(default_factory=dict)
    isolated_problems: Mapping[str, str] = field(default_factory=dict)
    poisoned: Mapping[str, torch.Tensor] = field(default_factory=dict)
    incremental: Mapping[str, torch.Tensor] = field(default_factory=dict)
    taps_modules: bool = True
    appends: bool = True
    fused: Mapping[str, str] = field(default_factory=dict)
    """Classes of the reference whose work the runner does inside another module, with the reason."""


@dataclass
class Comparison:
    """The verdict on one runner for one batch in one precision."""

    rows: list[TapRow]
    checks: dict[str, Verdict]
    padding_leak: str
    observer_difference: float
    diagnosis: Diagnosis

    @property
    def passed(self) -> bool:
        return self.diagnosis.kind == "none"


def compare(evidence: Evidence, results: Results) -> Comparison:
    """Judge one runner against the reference and the oracle."""
    flips = _flipped_rows(evidence, results)
    rows = [_tap_row(evidence, results, tap, flips) for tap in _taps_in_order(evidence, results)]
    checks = {
        tap: _judge_one(
            evidence,
            tap,
            evidence.oracle.get(evidence.incremental_outputs[tap]),
            reference,
            results.incremental.get(tap),
            _row_mask(flips, reference),
            drawn_for=evidence.incremental_outputs[tap],
        )
        for tap, reference in evidence.reference_incremental.items()
        if results.appends
    }
    looks_for_leaks = results.taps_modules and evidence.has_padding
    leak = first_padding_leak(evidence, results) if looks_for_leaks else ""
    observer = _largest_difference(results) if results.taps_modules else 0.0
    return Comparison(rows, checks, leak, observer, diagnose(rows, checks, leak))


def _taps_in_order(evidence: Evidence, results: Results) -> list[str]:
    """The reference's taps in the order in which modules finish, then those that only the runner has."""
    taps = evidence.reference.tensors
    if not results.taps_modules:
        expected = [tap for tap in taps if TapName.parse(tap).is_output_of(evidence.entry)]
        return expected + [tap for tap in results.untapped if tap not in expected]
    expected = [tap for tap in taps if results.appends or not TapName.parse(tap).appends]
    extra = {*results.tapped, *results.isolated, *results.untapped} - set(taps)
    return expected + sorted(extra)


def _tap_row(evidence: Evidence, results: Results, tap: str, flips: np.ndarray | None) -> TapRow:
    call = evidence.kinds.get(tap)
    is_output = TapName.parse(tap).is_output_of(evidence.entry)
    path = call.path if call else tap
    row = TapRow(tap, path, call.kind if call else (MODEL_OUTPUT if is_output else "unknown"), None, None)
    if tap not in evidence.reference.tensors:
        bound = bound_for(evidence.precision, 1)
        row.accumulated = failure("extra: the reference has no such module or output", bound)
        return row
    reference = evidence.reference.tensors[tap]
    # What ships is the untapped model, so its outputs are the ones to judge.
    port = results.untapped.get(tap) if is_output else results.tapped.get(tap)
    if call and port is None and results.isolated.get(tap) is None:
        row.gap = evidence.is_gap(call) or results.fused.get(call.kind, "")
        if row.gap:
            return row
    contaminated = _row_mask(flips, reference)
    if call is None or not call.appends:
        row.accumulated = _judge_one(evidence, tap, evidence.oracle.get(tap), reference, port, contaminated)
    if call and results.taps_modules:
        problem = results.isolated_problems.get(call.tap)
        if problem:
            row.isolated = failure(f"the module failed: {problem}", bound_for(evidence.precision, 1))
        else:
            contains_flip = any(flipped.startswith(f"{path}.") for flipped in evidence.boundary)
            row.isolated = _judge_one(
                evidence,
                tap,
                evidence.oracle_isolated.get(tap),
                reference,
                results.isolated.get(tap),
                contaminated if contains_flip else None,
                isolated=True,
            )
    return row


def _judge_one(
    evidence: Evidence,
    tap: str,
    oracle: torch.Tensor | None,
    reference: torch.Tensor,
    port: torch.Tensor | None,
    contaminated: np.ndarray | None,
    isolated: bool = False,
    drawn_for: str = "",
) -> Verdict:
    longest_sum = evidence.longest_sum(tap, isolated)
    modules = evidence.modules(tap, isolated)
    bound = bound_for(evidence.precision, longest_sum, modules)
    if port is None:
        return failure("missing: the port has no such module or output", bound)
    if oracle is None:
        return failure("missing: the oracle has no such tap", bound)
    boundary, allowed = evidence.boundary.get(tap), MAX_BOUNDARY_FRACTION
    if boundary is None:
        boundary, allowed = contaminated, MAX_FLIPPED_FRACTION
    verdict = judge(
        oracle,
        reference,
        port,
        evidence.precision,
        longest_sum,
        evidence.mask(tuple(reference.shape)),
        boundary,
        modules,
        evidence.draws(drawn_for or tap, isolated),
    )
    lost = verdict.boundary / max(1, verdict.boundary + verdict.checked)
    if verdict.passed and lost > allowed:
        reason = f"{verdict.boundary} elements depend on a discontinuity, more than {allowed:.0%} of all"
        return failure(reason, bound)
    return verdict


def _flipped_rows(evidence: Evidence, results: Results) -> np.ndarray | None:
    """(B, N) rows that depend on a boundary element which the runner put on the other side.

    Where attention is causal, a flip in row n of a bias reaches rows n and later of its sequence, else all.
    """
    rows = None
    for tap, boundary in evidence.boundary.items():
        port, reference = results.tapped.get(tap), evidence.reference.tensors[tap]
        if port is None or port.shape != reference.shape:
            continue
        flipped = boundary & (port != reference).numpy()
        reached = flipped.any(axis=-1)
        if evidence.causal:
            reached = np.logical_or.accumulate(reached, axis=-1)
        else:
            reached = np.broadcast_to(reached.any(axis=-1, keepdims=True), reached.shape)
        rows = reached if rows is None else rows | reached
    return rows if rows is not None and rows.any() else None


def _row_mask(rows: np.ndarray | None, tensor: torch.Tensor) -> np.ndarray | None:
    """Flipped (B, N) rows as a mask of a tensor's elements; a (B, ...) tensor loses whole batch rows."""
    shape = tuple(tensor.shape)
    if rows is None or not shape or shape[0] != rows.shape[0]:
        return None
    if len(shape) > 1 and shape[1] == rows.shape[1]:
        reduced = rows.reshape(rows.shape + (1,) * (len(shape) - 2))
    else:
        reduced = rows.any(axis=1).reshape((rows.shape[0],) + (1,) * (len(shape) - 1))
    return np.broadcast_to(reduced, shape)


def first_padding_leak(evidence: Evidence, results: Results) -> str:
    """The first tap with a valid element that changed when only the padding did, or nothing."""
    for tap in evidence.reference.tensors:
        if TapName.parse(tap).appends:
            continue  # the poisoned run is a full forward
        clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
        if clean is None and poisoned is None:
            continue
        if clean is None or poisoned is None or clean.shape != poisoned.shape:
            return tap
        keep = evidence.mask(tuple(clean.shape))
        changed = bits(clean) != bits(poisoned)
        if (changed if keep is None else changed & keep).any():
            return tap
    return ""


def _largest_difference(results: Results) -> float:
    """Largest absolute change that tapping made to any output."""
    largest = 0.0
    for tap, plain in results.untapped.items():
        observed = results.tapped.get(tap)
        if observed is not None and observed.shape == plain.shape and plain.numel():
            difference = (observed.double() - plain.double()).abs()
            largest = max(largest, float(difference.max()))
    return largest
