"""The verdicts over several batches: each tap's worst batch, the first diagnosis, the detected errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from parity.execution.record import REFERENCE
from parity.verdict.error_map import with_telling_maps
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis, RunnerJudgement, TapJudgement
from parity.verdict.rule import Verdict
from parity.verdict.sensitivity import INSENSITIVE_ABOVE


def merge_batches(batches: Iterable[Mapping[str, RunnerJudgement]]) -> dict[str, RunnerJudgement]:
    """One judgement for each runner: each tap's worst batch, and the first diagnosis.

    An error that one batch detects is detected. Therefore only merged judgements are INSENSITIVE.

    Args:
        batches: Judgements by runner, in the order of the batches.
    """
    merged: dict[str, RunnerJudgement] = {}
    for judgements in batches:
        for name, judgement in judgements.items():
            merged[name] = _merge(merged[name], judgement) if name in merged else judgement
    merged = {name: with_telling_maps(judgement) for name, judgement in merged.items()}
    # The reference's distance from the oracle is the measure, however small a detected error is.
    return {
        name: judgement if name == REFERENCE else _with_insensitive(judgement)
        for name, judgement in merged.items()
    }


def _with_insensitive(judgement: RunnerJudgement) -> RunnerJudgement:
    """The judgement INSENSITIVE, if a check of a passing runner detects too little."""
    # Errors of all modules add up at the outputs and hide an error that a module's own check detects.
    checks = [tap for tap in judgement.taps if tap.kind != MODEL_OUTPUT] or list(judgement.taps)
    # One sensitive call is enough for a module that is called several times.
    sensitive = {tap.path for tap in checks if tap.min_detectable_error <= INSENSITIVE_ABOVE}
    insensitive = [tap for tap in checks if tap.status == "PASS" and tap.path not in sensitive]
    if judgement.verdict != "PASS" or not insensitive:
        return judgement
    worst = max(insensitive, key=lambda tap: tap.min_detectable_error)
    text = (
        f"{len(insensitive)} of {len(checks)} checks do not detect an error of {INSENSITIVE_ABOVE:.0%}; "
        f"{worst.tap} detects none below {worst.min_detectable_error:.2g}: "
        f"give it more rows, or a finer precision"
    )
    names = {tap.tap for tap in insensitive}
    return replace(
        judgement,
        verdict="INSENSITIVE",
        diagnosis=Diagnosis("insensitive", worst.tap, text, batch=worst.batch),
        taps=tuple(replace(tap, insensitive=tap.tap in names) for tap in judgement.taps),
    )


def _merge(earlier: RunnerJudgement, later: RunnerJudgement) -> RunnerJudgement:
    if earlier.verdict == "NONE" or later.verdict == "NONE":
        return earlier if earlier.verdict == "NONE" else later
    first_failure = earlier if earlier.verdict == "FAIL" else later
    taps = {tap.tap: tap for tap in earlier.taps}
    for tap in later.taps:
        taps[tap.tap] = _worse(taps[tap.tap], tap) if tap.tap in taps else tap
    checks = dict(earlier.checks)
    for name, verdict in later.checks.items():
        if name not in checks or _badness(verdict) > _badness(checks[name]):
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


def _worse(earlier: TapJudgement, later: TapJudgement) -> TapJudgement:
    """The worse of two batches, with the smallest error that either detects, notes and rows of both.

    A module that runs alone in one of them has the verdict of that batch.
    """
    detectable = min(earlier.min_detectable_error, later.min_detectable_error)
    notes = tuple(dict.fromkeys(earlier.notes + later.notes))
    worse, other = (later, earlier) if _badness(later) > _badness(earlier) else (earlier, later)
    isolated = other.isolated if worse.isolated is None else worse.isolated
    both = [tap.row_errors for tap in (earlier, later) if tap.row_errors is not None]
    row_errors = both[0] + both[1] if len(both) > 1 else next(iter(both), None)
    return replace(
        worse, isolated=isolated, min_detectable_error=detectable, notes=notes, row_errors=row_errors
    )


def _badness(judgement: TapJudgement | Verdict) -> tuple[bool, float]:
    """The order of the batches of one tap: any failure is worse than any margin."""
    return judgement.status == "FAIL", judgement.margin
