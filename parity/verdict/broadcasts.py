"""Arguments of another shape with other elements: whether the caller is wrong, or the module asks for them.

A mask of (1, N, N) may stand for one of (B, N, N) where the port's module adds what it lacks. A module that
is right on the reference's arguments and wrong on the port's shows that it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from parity.capture.names import TapName
from parity.verdict.judgement import ArgumentDifference, CallJudgement, TapJudgement


def with_broadcasts(
    calls: Iterable[CallJudgement], taps: Sequence[TapJudgement]
) -> tuple[CallJudgement, ...]:
    """The calls, whose arguments of kind "broadcast" are other values or other forms.

    Args:
        calls: Calls with other arguments than the reference's.
        taps: The judgements on all taps.
    """
    return tuple(_decided(call, taps) for call in calls)


def _decided(call: CallJudgement, taps: Sequence[TapJudgement]) -> CallJudgement:
    if all(argument.kind != "broadcast" for argument in call.differing):
        return call
    own = [tap for tap in taps if str(TapName.parse(tap.tap).module_call) == call.call]
    right_alone = all(tap.isolated is not None and tap.isolated.passed for tap in own)
    wrong_inside = any(tap.accumulated is not None and not tap.accumulated.passed for tap in own)
    differing = tuple(
        _as(argument, is_wrong=right_alone and wrong_inside) if argument.kind == "broadcast" else argument
        for argument in call.differing
    )
    return replace(call, differing=differing)


def _as(argument: ArgumentDifference, is_wrong: bool) -> ArgumentDifference:
    """The difference as that of other values, or of another form, which has no explanation."""
    if is_wrong:
        return replace(argument, kind="value")
    return replace(argument, kind="form", explanation=(), failed=None)
