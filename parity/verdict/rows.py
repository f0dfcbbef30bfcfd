"""Judgement of rows: a row's results in other batches, and in a second run.

Equal bits are a fact and not a duty: another batch size may change the order of a sum. Both results of a row
must lie within the limit, so that their difference has a limit too. Let o be the oracle, and L the limit of
the tap's largest error inside the model (`parity.verdict.rule`). Two results within it differ by at most

    |p - q| <= |p - o| + |q - o| <= 2 * L * max |o|

in every element. A row with a larger difference depends on the other rows, or on the time of the run, and
the runner fails.

A case may leave open whether its rows depend on each other, as in a loss of the batch or a graph. Then the
oracle's row differs too, which the reference's same trial shows. Let o' be the oracle of the trial, r and r'
the reference's results, and d = max |o - o'|. As max |o'| <= max |o| + d',

    | |p - p'| - |r - r'| | <= 2 * L * (max |o| + max |o'|) <= 2 * L * (2 * max |o| + max |r - r'|)

up to terms of L^2. A row of the port must move as far as the reference's, within this limit.

Rows with an element at a discontinuity that one of the two results crosses are not judged.
Integers and booleans behind numbers that differ may be other choices. Where they differ, the rest of the row
is not judged either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from parity.execution.record import RowTrialRecord
from parity.verdict.evidence import Evidence
from parity.verdict.judgement import Diagnosis, RowJudgement, TapJudgement

WITHIN_LIMITS = 2.0
"""Largest difference of two results within a limit, in limits."""


def judge_rows(
    evidence: Evidence,
    taps: Iterable[TapJudgement],
    trials: Sequence[RowTrialRecord],
    reference: Sequence[RowTrialRecord] = (),
) -> tuple[RowJudgement, ...]:
    """The judgement of every kind of trial.

    Args:
        evidence: The evidence on the batch.
        taps: Judgements of the runner's taps, which have the limits.
        trials: The runner's trials.
        reference: The reference's trials, where its rows may depend on each other.
    """
    judged = {tap.tap: tap for tap in taps}
    expected = {(trial.kind, trial.rows): trial.taps for trial in reference}
    order = {tap: place for place, tap in enumerate(evidence.reference.tensors)}
    kinds: dict[str, RowJudgement] = {}
    for trial in trials:
        ordered = _ordered(trial, order)
        one = _judge_trial(evidence, judged, ordered, expected.get((trial.kind, trial.rows), {}), order)
        kinds[trial.kind] = _joined(kinds[trial.kind], one, order) if trial.kind in kinds else one
    return tuple(kinds.values())


def row_diagnosis(rows: Iterable[RowJudgement]) -> Diagnosis:
    """The diagnosis of a runner all of whose taps pass: its first row with too large a difference, if any."""
    failed = next((row for row in rows if row.excess), None)
    return Diagnosis() if failed is None else Diagnosis("check", failed.excess, failed.reason)


def _ordered(trial: RowTrialRecord, order: Mapping[str, int]) -> RowTrialRecord:
    """The trial with its taps in the order in which the reference's modules finish."""
    taps = sorted(trial.taps, key=lambda tap: order.get(tap, len(order)))
    return trial.model_copy(update={"taps": {tap: trial.taps[tap] for tap in taps}})


def _joined(one: RowJudgement, other: RowJudgement, order: Mapping[str, int]) -> RowJudgement:
    """Two trials of one kind."""
    firsts = [judgement.first for judgement in (one, other) if judgement.first]
    larger = max(one, other, key=lambda judgement: judgement.largest)
    failed = one if one.excess or not other.excess else other
    return RowJudgement(
        kind=one.kind,
        rows=one.rows + other.rows,
        first=min(firsts, key=lambda tap: order.get(tap, len(order)), default=""),
        largest=larger.largest,
        largest_tap=larger.largest_tap,
        excess=failed.excess,
        reason=failed.reason,
    )


def _judge_trial(
    evidence: Evidence,
    judged: Mapping[str, TapJudgement],
    trial: RowTrialRecord,
    expected: Mapping[str, Sequence[float]],
    order: Mapping[str, int],
) -> RowJudgement:
    """The judgement of one trial; `expected` has the differences of the reference's rows by tap.

    A tap at which one side alone moves reaches the taps behind it, so that all are judged in `order`.
    """
    largest, largest_tap, excess, reason = 0.0, "", "", ""
    flipped: set[int] = set()
    rounded: set[int] = set()
    equal = [0.0] * len(trial.rows)
    taps = [*trial.taps, *(tap for tap in expected if tap in judged and tap not in trial.taps)]
    for tap in sorted(taps, key=lambda tap: order.get(tap, len(order))):
        differences, own = trial.taps.get(tap, equal), expected.get(tap, equal)
        scale = _scale(evidence, tap)
        relative = [_ratio(difference, scale) for difference in differences]
        if max(relative) > largest:
            largest, largest_tap = max(relative), tap
        moved = [max(pair) for pair in zip(differences, own, strict=True)]
        flipped |= _flipped(evidence, tap, trial.rows, moved)
        differing = {row for row, difference in zip(trial.rows, moved, strict=True) if difference}
        if tap in evidence.exact_taps:
            flipped |= rounded & differing
        else:
            rounded |= differing
        limit = _limit(judged.get(tap))
        text = "" if excess else _excess(trial, tap, differences, own, scale, limit, flipped)
        if text:
            excess, reason = tap, text
    first = next(iter(trial.taps), "")
    return RowJudgement(trial.kind, len(trial.rows), first, largest, largest_tap, excess, reason)


def _excess(
    trial: RowTrialRecord,
    tap: str,
    differences: Sequence[float],
    expected: Sequence[float],
    scale: float,
    limit: float,
    flipped: Collection[int],
) -> str:
    """The row whose difference is the farthest from the allowed one, in words; empty if none exceeds it."""
    beyond, text = 0.0, ""
    for row, difference, own in zip(trial.rows, differences, expected, strict=True):
        if row in flipped:
            continue
        moved, allowed = _ratio(difference, scale), WITHIN_LIMITS * limit
        model = _ratio(own, scale)
        shown = f"row {row} {trial.kind} differs from itself in the batch by {moved:.3g} of the largest "
        if model > allowed:
            # The reference's row depends on its batch too.
            moved, allowed = _ratio(abs(difference - own), scale), allowed * (2.0 + model)
            shown += f"element of {tap}, the PyTorch model's by {model:.3g}; two movements within the limit "
            shown += f"differ by at most {allowed:.3g}"
        else:
            shown += f"element of {tap}; two results within the limit differ by at most {allowed:.3g}"
        if moved - allowed > beyond:
            beyond, text = moved - allowed, shown
    return text


def _ratio(difference: float, scale: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / scale if scale > 0.0 else math.inf


def _scale(evidence: Evidence, tap: str) -> float:
    """The largest compared element of the oracle; 1 for integers and booleans, whose limit is 0."""
    oracle = evidence.oracle.get(tap)
    if oracle is None or not oracle.dtype.is_floating_point:
        return 1.0
    counted = evidence.counted(tap, tuple(oracle.shape))
    values = np.abs(oracle.double().numpy()[counted])
    return float(values.max(initial=0.0, where=np.isfinite(values)))


def _limit(tap: TapJudgement | None) -> float:
    """The limit of the largest error inside the model; infinite without a verdict."""
    if tap is None or tap.accumulated is None or math.isnan(tap.accumulated.limit.largest):
        return math.inf
    return tap.accumulated.limit.largest


def _flipped(evidence: Evidence, tap: str, rows: Sequence[int], differences: Sequence[float]) -> set[int]:
    """Rows that differ at a tap where they have elements at a discontinuity."""
    boundary = evidence.boundary.get(tap)
    if boundary is None:
        return set()
    crossing = boundary.reshape(boundary.shape[0], -1).any(axis=1)
    return {row for row, difference in zip(rows, differences, strict=True) if difference and crossing[row]}
