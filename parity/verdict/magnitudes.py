"""Modules of a port that are right on the run's inputs, and not at other magnitudes.

They decide nothing: a model may never have such inputs. A module is noted where it leaves the numbers of its
type, or loses half of its digits, and the reference's module keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parity.base.precision import Precision
from parity.capture.names import TapName
from parity.execution.record import MagnitudeRecord
from parity.runners.magnitudes import UNCHANGED
from parity.verdict.bound import half_of_digits
from parity.verdict.judgement import TapJudgement

BEYOND = "beyond the inputs: "
"""Beginning of the note at a module."""
_TIMES = 8.0
"""Least ratio of the port's error to the reference's."""


def beyond_inputs(
    precision: Precision, trials: Sequence[MagnitudeRecord], taps: Iterable[TapJudgement]
) -> dict[str, tuple[str]]:
    """The notes at results that pass, by tap: the first of each, and none around a noted module.

    A result that passes in another form, such as one with its axes in another order, has none.
    """
    lost = half_of_digits(precision.unit_roundoff)
    passed = {tap.tap for tap in taps if tap.passed}
    alike = {trial.tap for trial in trials if trial.kind == UNCHANGED and not _is_lost(trial, lost)}
    found: dict[str, tuple[str]] = {}
    for trial in sorted(trials, key=_depth, reverse=True):
        is_noted = trial.tap in passed & alike and _is_lost(trial, lost) and trial.reference <= lost
        if is_noted and not any(_is_inside(tap, trial.tap) for tap in found):
            found.setdefault(trial.tap, (_told(trial),))
    return found


def _is_lost(trial: MagnitudeRecord, lost: float) -> bool:
    """Whether the port leaves the numbers of its type, or loses half of their digits by itself."""
    return trial.broken > 0 or trial.port > max(lost, _TIMES * trial.reference)


def _depth(trial: MagnitudeRecord) -> int:
    return TapName.parse(trial.tap).path.count(".")


def _is_inside(tap: str, other: str) -> bool:
    """Whether the module of a tap lies inside that of another one."""
    return TapName.parse(tap).path.startswith(f"{TapName.parse(other).path}.")


def _told(trial: MagnitudeRecord) -> str:
    if trial.broken:
        lost = f"{trial.broken} of {trial.compared} elements are infinite or NaN"
    else:
        lost = f"its relative error is {trial.port:.2g}"
    return f"{BEYOND}with {trial.kind} {lost}, and the reference's error is {trial.reference:.2g}"
