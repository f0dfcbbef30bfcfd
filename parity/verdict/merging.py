"""The verdicts over several batches: each tap's worst batch, the first diagnosis, the detected errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from parity.execution.record import REFERENCE, Status
from parity.verdict.error_map import with_telling_maps
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis, RunnerJudgement, TapJudgement
from parity.verdict.rule import Verdict
from parity.verdict.sensitivity import (
    GROWTH,
    INSENSITIVE_ABOVE,
    LARGEST_MULTIPLE,
    error_text,
    rows_needed,
    why_by_nature,
)

NOT_DETECTED = f"no batch of a run detects every error of {INSENSITIVE_ABOVE:.0%}"
"""Beginning of the note at a tap that detects too little by its nature."""
_LOST_ABOVE = 0.5
"""Relative error. An output of the model that does not detect half of its own size says nothing."""


def merge_batches(
    batches: Iterable[Mapping[str, RunnerJudgement]], further: int, recorded: bool, most: int = 0
) -> dict[str, RunnerJudgement]:
    """One judgement for each runner: each tap's worst batch, and the first diagnosis.

    A failing tap or check that the diagnosis names has the verdicts of the diagnosis' batch: the message and
    the numbers below it are of one batch.

    An error that one batch detects is detected. Therefore only merged judgements are INSENSITIVE.

    Args:
        batches: Judgements by runner, in the order of the batches.
        further: Number of the largest further batch with more rows among them; 0 without one.
        recorded: Whether they are recorded data.
        most: The largest number of batches with more rows; 0 if it is unknown.
    """
    merged: dict[str, RunnerJudgement] = {}
    for judgements in batches:
        for name, judgement in judgements.items():
            merged[name] = _merge(merged[name], judgement) if name in merged else judgement
    merged = {name: with_telling_maps(judgement) for name, judgement in merged.items()}
    # The reference's distance from the oracle is the measure, however small a detected error is.
    return {
        name: judgement if name == REFERENCE else _with_insensitive(judgement, further, recorded, most)
        for name, judgement in merged.items()
    }


def _advice(insensitive: Sequence[TapJudgement], further: int, recorded: bool) -> str:
    """The advice for checks that detect too little in all batches of a run.

    Args:
        insensitive: The checks.
        further: Number of the largest batch with more rows; 0 without one.
        recorded: Whether the batches are recorded data.
    """
    if recorded:
        return "recorded data have no more rows to draw; give a larger file, or a finer precision"
    if not further:
        times = max(rows_needed(tap.min_detectable_error, tap.lasting_limit) for tap in insensitive)
        # The estimate is no promise so far beyond the rows that it comes from.
        number = f"about {times:.0f} times as many" if times <= LARGEST_MULTIPLE else "far more"
        if all(tap.rows.is_of_batch for tap in insensitive):
            beside = "return a number of each row beside it, or give a finer precision"
            return f"it is one number of the whole batch, whose roundings no other row averages out; {beside}"
        return f"the inputs have too few rows; give {number}, or a finer precision"
    return f"{GROWTH**further} times the rows of the typical batch are not enough; give a finer precision"


def _with_insensitive(judgement: RunnerJudgement, further: int, recorded: bool, most: int) -> RunnerJudgement:
    """The judgement with the taps that detect too little; INSENSITIVE if more rows can help."""
    lost = [tap for tap in judgement.taps if _is_lost(tap)]
    if judgement.verdict == "PASS" and lost:
        names = {tap.tap for tap in lost}
        taps = (replace(tap, insensitive=True) if tap.tap in names else tap for tap in judgement.taps)
        text = (
            f"{lost[0].tap}: rounding may be as large as the result, so that nearly any result would pass; "
            "return it before numbers cancel or errors grow, or give a finer precision"
        )
        diagnosis = Diagnosis("insensitive", lost[0].tap, text, batch=lost[0].batch)
        return replace(judgement, verdict="INSENSITIVE", taps=tuple(taps), diagnosis=diagnosis)
    # Errors of all modules add up at the outputs and hide an error that a module's own check detects.
    checks = [tap for tap in judgement.taps if tap.kind != MODEL_OUTPUT] or list(judgement.taps)
    # One sensitive call is enough for a module that is called several times.
    sensitive = {tap.path for tap in checks if tap.min_detectable_error <= INSENSITIVE_ABOVE}
    # The case asks no more of a tolerated tap than its tolerance.
    asked = [tap for tap in checks if tap.status == "PASS" and not tap.is_tolerated]
    too_little = [tap for tap in asked if tap.path not in sensitive]
    if judgement.verdict != "PASS" or not too_little:
        return judgement
    reasons = {
        tap.tap: why_by_nature(tap.lasting_limit, tap.rows, further, most, tap.min_detectable_error)
        for tap in too_little
    }
    insensitive = [tap for tap in too_little if not reasons[tap.tap]]
    marked = {tap.tap: _marked(tap, reasons[tap.tap]) for tap in too_little}
    judgement = replace(judgement, taps=tuple(marked.get(tap.tap, tap) for tap in judgement.taps))
    if not insensitive:
        return judgement
    worst = max(insensitive, key=lambda tap: tap.min_detectable_error)
    text = (
        f"{len(insensitive)} of {len(checks)} checks do not detect an error of {INSENSITIVE_ABOVE:.0%}; "
        f"{worst.tap} detects none below {error_text(worst.min_detectable_error, 2)}: "
        f"{_advice(insensitive, further, recorded)}"
    )
    diagnosis = Diagnosis("insensitive", worst.tap, text, batch=worst.batch)
    return replace(judgement, verdict="INSENSITIVE", diagnosis=diagnosis)


def _is_lost(tap: TapJudgement) -> bool:
    """Whether nearly any result would pass as this output of the model, which is not all zeros."""
    is_judged = tap.kind == MODEL_OUTPUT and tap.status == "PASS" and not tap.is_tolerated
    return is_judged and tap.rows.carrying > 0.0 and not tap.min_detectable_error < _LOST_ABOVE


def is_lost_for_good(judgement: RunnerJudgement, further: int) -> bool:
    """Whether an output stays lost in all batches that a run may still draw.

    The limit of a scale error is the only one that falls with the rows, with their square root.

    Args:
        judgement: The judgement on the batches so far.
        further: Number of batches with more rows that may follow.
    """
    lost = (tap for tap in judgement.taps if _is_lost(replace(tap, insensitive=False)))
    return any(
        verdict.limit.scale_error * math.sqrt(verdict.rows.most / (tap.rows.most * GROWTH**further))
        > _LOST_ABOVE
        for tap in lost
        for verdict in tap.verdicts.values()
    )


def _marked(tap: TapJudgement, by_nature: str) -> TapJudgement:
    """A tap that detects too little, marked as INSENSITIVE, or with the reason why that is its nature."""
    if not by_nature:
        return replace(tap, insensitive=True)
    note = f"{NOT_DETECTED}: {by_nature}"
    return replace(tap, by_nature=True, notes=(*tap.notes, note))


def _merge(earlier: RunnerJudgement, later: RunnerJudgement) -> RunnerJudgement:
    if earlier.verdict == "NONE" or later.verdict == "NONE":
        return _without_evidence(*((earlier, later) if earlier.verdict == "NONE" else (later, earlier)))
    first_failure = earlier if earlier.verdict == "FAIL" else later
    named = (earlier.diagnosis or Diagnosis()).tap
    taps = {tap.tap: tap for tap in earlier.taps}
    for tap in later.taps:
        taps[tap.tap] = _worse(taps[tap.tap], tap, tap.tap == named) if tap.tap in taps else tap
    checks = dict(earlier.checks)
    for name, verdict in later.checks.items():
        is_named = name == named and name in checks and not checks[name].passed
        if name not in checks or (not is_named and _badness(verdict) > _badness(checks[name])):
            checks[name] = verdict
    return replace(
        earlier,
        verdict=first_failure.verdict,
        diagnosis=first_failure.diagnosis,
        taps=tuple(taps.values()),
        checks=checks,
        padding_leak=earlier.padding_leak or later.padding_leak,
        observer_difference=max(earlier.observer_difference, later.observer_difference),
    )


def _without_evidence(none: RunnerJudgement, other: RunnerJudgement) -> RunnerJudgement:
    """Two batches, of which one has no verdict: a failure of the other one names the module to blame.

    Modules run alone in some batches only. A port that raises in all of them has a verdict there.
    """
    if other.verdict != "FAIL":
        return none
    return other if other.status is not Status.OK else replace(other, status=none.status, reason=none.reason)


def _worse(earlier: TapJudgement, later: TapJudgement, is_named: bool) -> TapJudgement:
    """The worse of two batches, with the smallest error that either detects, notes and rows of both.

    It is the earlier one if that fails at the tap that the diagnosis names.

    A verdict that one of them alone has is that of both, also where the other one has no verdict at all.
    """
    if bool(earlier.verdicts) != bool(later.verdicts):
        judged, unjudged = (earlier, later) if earlier.verdicts else (later, earlier)
        return replace(judged, notes=tuple(dict.fromkeys(judged.notes + unjudged.notes)))
    coarser, finer = sorted((earlier, later), key=lambda tap: -tap.min_detectable_error)
    notes = tuple(dict.fromkeys(earlier.notes + later.notes))
    is_later = not (is_named and not earlier.passed) and _badness(later) > _badness(earlier)
    worse, other = (later, earlier) if is_later else (earlier, later)
    isolated = other.isolated if worse.isolated is None else worse.isolated
    accumulated = other.accumulated if worse.accumulated is None else worse.accumulated
    both = [tap.row_errors for tap in (earlier, later) if tap.row_errors is not None]
    row_errors = both[0] + both[1] if len(both) > 1 else next(iter(both), None)
    # Padding that leaks in one batch moves no margin: its map stays whichever batch is worse.
    leaks = {name: shown for name, shown in other.error_maps.items() if name == "poisoned"}
    return replace(
        worse,
        isolated=isolated,
        accumulated=accumulated,
        error_maps={**leaks, **worse.error_maps},
        min_detectable_error=finer.min_detectable_error,
        # A verdict that the finer batch does not have remains.
        lasting_limits={**coarser.lasting_limits, **finer.lasting_limits},
        rows=earlier.rows.and_later(later.rows),
        notes=notes,
        row_errors=row_errors,
    )


def _badness(judgement: TapJudgement | Verdict) -> tuple[bool, float]:
    """The order of the batches of one tap: any failure is worse than any margin."""
    return judgement.status == "FAIL", judgement.margin
