"""The diagnosis of a runner: the first module that diverges, from the verdicts on all taps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parity.verdict.judgement import Diagnosis, TapJudgement
from parity.verdict.rule import Verdict

CLOSE = 10.0
"""Margin up to which the modules inside a failing module may cause its failure. It selects words only."""


def diagnose(taps: Sequence[TapJudgement], checks: Mapping[str, Verdict], leak: str) -> Diagnosis:
    """Name the first module that diverges.

    Args:
        taps: In the order in which modules finish, a module after the modules inside it. The first isolated
            failure is therefore the innermost one.
        checks: Verdicts on other outputs, by name.
        leak: First tap that changes with the content of the padding; empty if none does.
    """
    for tap in taps:
        if tap.isolated is not None and not tap.isolated.passed:
            text = f"{tap.path} ({tap.kind}) diverges on its own: {tap.isolated.reason}"
            return Diagnosis("module", tap.tap, text + _nearest_inside(taps, tap))
    for tap in taps:
        verdict = tap.accumulated
        if verdict is not None and np.isnan(verdict.port.l2) and not verdict.passed:
            return Diagnosis("module", tap.tap, f"{tap.tap}: {verdict.reason}")
    for tap in taps:
        if tap.accumulated is not None and not tap.accumulated.passed:
            return _failed_inside(tap, tap.accumulated)
    if leak:
        text = f"padding leaks: garbage in padded positions changes valid bits at {leak}"
        return Diagnosis("check", leak, text)
    for name, verdict in checks.items():
        if not verdict.passed:
            return Diagnosis("check", name, f"{name}: {verdict.reason}")
    return Diagnosis()


def _failed_inside(tap: TapJudgement, verdict: Verdict) -> Diagnosis:
    """The diagnosis of a tap that fails inside the model and passes alone, or cannot run alone."""
    if tap.isolated is None:
        return Diagnosis("module", tap.tap, f"{tap.tap} ({tap.kind}): {verdict.reason}")
    alone = tap.isolated.port.l2
    factor = verdict.port.l2 / alone if alone else None
    growth = f"{factor:.3g} times its own error" if factor else "its own error is zero"
    return Diagnosis(
        "amplification",
        tap.tap,
        f"every module passes on its own; the error that reaches {tap.path} exceeds its limit: {growth}",
        factor,
    )


def _nearest_inside(taps: Sequence[TapJudgement], failed: TapJudgement) -> str:
    """The module inside a failing one with the largest margin, in words; empty without a candidate.

    An error within a module's limit may exceed the limit of the outer module. Later operations then cancel
    more of the result than of the error. An error far above the limit comes from the module's own code.
    """
    assert failed.isolated is not None
    if failed.isolated.margin > CLOSE:
        return ""
    margin, path = max(
        (
            (tap.isolated.margin, tap.path)
            for tap in taps
            if tap.path.startswith(f"{failed.path}.") and tap.isolated is not None and tap.isolated.passed
        ),
        default=(0.0, ""),
    )
    if not margin:
        return ""
    return f"; of the modules inside, {path} is nearest to its own limit, {margin:.2g} of it"
