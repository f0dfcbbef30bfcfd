"""The diagnosis of a runner: the first module that diverges, from the verdicts on all taps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from parity.capture.names import Phase, TapName
from parity.case.pairing import UNKNOWN
from parity.verdict.elements import EQUAL_VALUES, EXTRA_CALL, NO_CALL, NO_VERDICT, NOT_FINITE, RAISES
from parity.verdict.judgement import (
    MODEL_OUTPUT,
    ArgumentDifference,
    CallJudgement,
    Diagnosis,
    TapJudgement,
)
from parity.verdict.rule import Verdict
from parity.verdict.tolerance import Tolerated

CLOSE = 10.0
"""Margin up to which the modules inside a failing module may cause its failure. It selects words only."""
MOST_NAMED = 3
"""Number of further wrong results that a text names, where there are more than one beyond them."""


def diagnose(
    taps: Sequence[TapJudgement],
    checks: Mapping[str, Verdict],
    leak: str,
    calls: Sequence[CallJudgement] | None = None,
    entry: str = "",
    tolerated: Tolerated | None = None,
) -> Diagnosis:
    """Name the first module that diverges, or the code between modules.

    Integers of another type with equal values are named last: they hide nothing.

    Args:
        taps: In the order in which modules finish, a module after the modules inside it. The first isolated
            failure is therefore the innermost one.
        checks: Verdicts on other outputs, by name.
        leak: First tap that changes with the content of the padding; empty if none does.
        calls: Calls with other arguments than the reference's; None where arguments are not known.
        entry: Name of the entry.
        tolerated: The errors that the case tolerates; None for none.
    """
    tolerated = tolerated or Tolerated()
    typed = next((tap for tap in taps if any(map(_is_of_types, tap.verdicts.values()))), None)
    taps = [by_values(tap) for tap in taps] if typed else taps
    if calls is not None:
        calls = [call for call in calls if not _is_harmless(call, taps)]
    for tap in taps:
        if tap.isolated is not None and not tap.isolated.passed:
            return _failed_alone(taps, tap, tap.isolated, calls or ())
    for tap in taps:
        verdict = tap.accumulated
        if verdict is not None and np.isnan(verdict.port.l2) and not verdict.passed:
            # It has a place among the wrong results, unlike an output that is not there.
            if tap.kind == MODEL_OUTPUT and _is_nan_of_one_side(verdict):
                continue
            # Only a call before every failure is among the calls. An extra tap has no place before them.
            wrong = next(((call, call.wrong) for call in calls or () if call.wrong), None)
            if wrong is not None and tap.kind not in (UNKNOWN, MODEL_OUTPUT):
                return _between(taps, *wrong, entry, shows=True)
            absent, reason = _outermost(taps, tap, verdict)
            return Diagnosis("module", absent.tap, f"{absent.tap}: {reason}{_first_wrong(taps)}")
    failed = [tap for tap in taps if tap.accumulated is not None and not tap.accumulated.passed]
    for call in calls or ():
        if call.wrong and (failed or call.is_wrong_by_itself):
            around = (other for other in calls or () if TapName.parse(other.call).path == call.parent)
            unknown = _not_compared(around)
            return _between(taps, call, call.wrong, entry, shows=bool(failed), unknown=unknown)
    if failed:
        assert failed[0].accumulated is not None
        if calls is not None and failed[0].kind == MODEL_OUTPUT:
            return _after_the_modules(taps, failed[0], failed[0].accumulated, entry, tolerated)
        return _failed_inside(taps, failed[0], failed[0].accumulated, tolerated, calls or ())
    if leak:
        text = f"padding leaks: garbage in padded positions changes valid bits at {leak}"
        return Diagnosis("check", leak, text)
    for name, verdict in checks.items():
        if not verdict.passed:
            return Diagnosis("check", name, f"{name}: {verdict.reason}")
    if typed:
        reason = next(verdict.reason for verdict in typed.verdicts.values() if _is_of_types(verdict))
        return Diagnosis("module", typed.tap, f"{typed.tap}: {reason}")
    return Diagnosis()


def _outermost(taps: Sequence[TapJudgement], tap: TapJudgement, verdict: Verdict) -> tuple[TapJudgement, str]:
    """The outermost call that one side does not make, of a failing tap and the calls around it.

    A call finishes before the call that makes it, which is therefore the next one of a module around it. The
    port's own calls are in the order of their names, in which a module is behind those inside it.
    """
    side = next((words for words in (NO_CALL, EXTRA_CALL) if verdict.reason.startswith(words)), None)
    if side is None:
        return tap, verdict.reason
    outermost, reason = tap, verdict.reason
    for other in itertools.dropwhile(lambda own: own is not tap, taps):
        # An extra tap has its name as its path.
        if TapName.parse(outermost.tap).path.startswith(f"{TapName.parse(other.tap).path}."):
            around = other.accumulated
            if around is None or not around.reason.startswith(side):
                break
            outermost, reason = other, around.reason
    return outermost, reason


def with_own_leak(diagnosis: Diagnosis, leak: str, own_leak: str) -> Diagnosis:
    """The diagnosis of padding that leaks, with the tap of the reference's own leak.

    Args:
        diagnosis: A diagnosis of any kind.
        leak: The first tap of the port that padding leaks into; empty for none.
        own_leak: The first one of the reference; empty for none.
    """
    if not (own_leak and leak) or (diagnosis.kind, diagnosis.tap) != ("check", leak):
        return diagnosis
    text = (
        f"{diagnosis.text}; so it does in the reference, at {own_leak}: "
        "name in poison the inputs alone whose padding the reference ignores"
    )
    return replace(diagnosis, text=text)


def by_values(tap: TapJudgement) -> TapJudgement:
    """The judgement on a tap, where integers of another type with equal values pass."""

    def judged(verdict: Verdict | None) -> Verdict | None:
        is_of_types = verdict is not None and _is_of_types(verdict)
        return replace(verdict, status="PASS", reason="") if verdict and is_of_types else verdict

    return replace(tap, isolated=judged(tap.isolated), accumulated=judged(tap.accumulated))


def _is_nan_of_one_side(verdict: Verdict) -> bool:
    return verdict.reason.startswith(NOT_FINITE) and NO_VERDICT not in verdict.reason


def _is_of_types(verdict: Verdict) -> bool:
    return verdict.reason.endswith(EQUAL_VALUES)


def _is_harmless(call: CallJudgement, taps: Sequence[TapJudgement]) -> bool:
    """Whether a call lacks arguments of the reference, and has right results all the same.

    A module of the port may have another signature, such as no weights of an attention.
    """
    if any(argument.kind == "value" for argument in call.differing):
        return False
    own = [tap.accumulated for tap in taps if str(TapName.parse(tap.tap).module_call) == call.call]
    return bool(own) and all(verdict is not None and verdict.passed for verdict in own)


def fails_alone(reason: str) -> str:
    """What a module does whose verdict alone has this reason, in words."""
    if reason.startswith(RAISES):
        return "does not run on its own"
    return "cannot be judged" if NO_VERDICT in reason else "diverges on its own"


def _failed_alone(
    taps: Sequence[TapJudgement], tap: TapJudgement, verdict: Verdict, calls: Sequence[CallJudgement]
) -> Diagnosis:
    """The diagnosis of a module that fails on its own, with the argument that its code passes on."""
    reason, inside = verdict.reason, tap.accumulated
    if NO_VERDICT in reason and inside is not None and NO_VERDICT in inside.reason:
        # Alone, a module receives what the reference has lost before it.
        reason = inside.reason
    is_append = TapName.parse(tap.tap).phase is Phase.APPENDING
    text = f"{'in an append, ' * is_append}{tap.path} ({tap.kind}) {fails_alone(reason)}: {reason}"
    text += _also_wrong(taps, tap)
    for call in calls:
        if call.parent == tap.path and call.wrong:
            text = f"{text}; inside, {call.call} {call.text()}"
            argument = argument_of(call.call, call.wrong.name)
            return Diagnosis("module", tap.tap, text, code=tap.path, argument=argument)
    return Diagnosis("module", tap.tap, text + (_first_inside(taps, tap) or _nearest_inside(taps, tap)))


def _also_wrong(taps: Sequence[TapJudgement], failed: TapJudgement) -> str:
    """The other results of a call that fail alone, in words: a wrong integer may make a right result fail."""
    call = TapName.parse(failed.tap).module_call
    return _also(
        tap.tap
        for tap in taps
        if tap is not failed and tap.isolated is not None and not tap.isolated.passed
        if TapName.parse(tap.tap).module_call == call
    )


def _also(names: Iterable[str]) -> str:
    """Words for further results that fail; empty without one."""
    listed = list(names)
    if len(listed) > MOST_NAMED + 1:
        listed[MOST_NAMED:] = [f"{len(listed) - MOST_NAMED} others"]
    return f"; also {', '.join(listed)}" if listed else ""


def _between(
    taps: Sequence[TapJudgement],
    call: CallJudgement,
    wrong: ArgumentDifference,
    entry: str,
    shows: bool,
    unknown: str = "",
) -> Diagnosis:
    """The diagnosis of code that passes a wrong argument to a module.

    Args:
        taps: As in `diagnose`.
        call: The call.
        wrong: The argument.
        entry: Name of the entry.
        shows: Whether a result fails.
        unknown: Arguments that this code receives, and that are not compared, in words.
    """
    judged_alone = any(tap.isolated is not None for tap in taps)
    right = all_right_alone(taps) if judged_alone else "every module before it is right"
    effect = right if shows else "no result of this batch shows it"
    names = (tap.tap for tap in taps if str(TapName.parse(tap.tap).module_call) == call.call)
    code = f"the code of {call.parent or entry}"
    return Diagnosis(
        "between",
        next(names, ""),
        f"{call.call} {call.text()}; {effect}; {_or_tolerated(code, call.behind)} makes the argument"
        f"{unknown}",
        explanation=wrong.explanation,
        code=call.parent,
        argument=argument_of(call.call, wrong.name),
    )


def argument_of(call: str, argument: str) -> str:
    """The tap name of an argument of a call."""
    return str(replace(TapName.parse(call), argument=argument))


def _or_tolerated(code: str, behind: str) -> str:
    """The code that makes a wrong tensor, or the tolerated error of a tap before it."""
    return f"the error that the case tolerates at {behind}, or {code}," if behind else code


def _after_the_modules(
    taps: Sequence[TapJudgement], tap: TapJudgement, verdict: Verdict, entry: str, tolerated: Tolerated
) -> Diagnosis:
    """The diagnosis of a wrong output behind modules that are all right, or of a model without modules.

    The other wrong outputs are told: the first one may be made from a later one.
    """
    has_modules = any(other.kind != MODEL_OUTPUT for other in taps)
    right = "; every module is right and receives the right arguments" if has_modules else ""
    after = " after the modules" if has_modules else ""
    code = _or_tolerated(f"the code of {entry}{after}", tolerated.behind(tap.tap).source)
    failed = (other for other in taps if other.accumulated is not None and not other.accumulated.passed)
    others = _also(other.tap for other in failed if other is not tap)
    text = f"{tap.tap}: {verdict.reason}{others}{right}; {code} makes the output"
    return Diagnosis("between", tap.tap, text, code="")


def _failed_inside(
    taps: Sequence[TapJudgement],
    tap: TapJudgement,
    verdict: Verdict,
    tolerated: Tolerated,
    calls: Sequence[CallJudgement],
) -> Diagnosis:
    """The diagnosis of a tap that fails inside the model and passes alone, or cannot run alone."""
    call = str(TapName.parse(tap.tap).module_call)
    unknown = _not_compared(own for own in calls if own.call == call)
    if tap.isolated is None:
        return Diagnosis("module", tap.tap, f"{tap.tap} ({tap.kind}): {verdict.reason}{unknown}")
    alone = tap.isolated.port.l2
    factor = verdict.port.l2 / alone if alone else None
    source = tolerated.behind(tap.tap).source
    carried = f"; the error that the case tolerates at {source} may be its cause" if source else ""
    growth = f"{factor:.3g} times its own error" if factor else "its own error is zero"
    doubt = "; rounding is rarely the cause of so large an error: look at what the module receives"
    return Diagnosis(
        "amplification",
        tap.tap,
        f"{all_right_alone(taps)}; the error that reaches {tap.path} exceeds its limit: {growth}"
        f"{carried}{doubt if verdict.loses_half_of_digits else ''}{unknown}",
        factor,
    )


def all_right_alone(taps: Sequence[TapJudgement]) -> str:
    """Words for modules that all pass alone. Those of the port alone have no inputs to run on."""
    has_own = any(tap.kind == UNKNOWN for tap in taps)
    return f"every module {'of both sides ' if has_own else ''}passes on its own"


def _first_wrong(taps: Sequence[TapJudgement]) -> str:
    """The first result with wrong numbers, in words; empty without one."""
    for tap in taps:
        verdict = tap.accumulated
        if verdict is not None and not verdict.passed and np.isfinite(verdict.port.l2):
            return f"; {tap.tap} is the first result with other numbers"
    return ""


def _not_compared(calls: Iterable[CallJudgement]) -> str:
    """The arguments of the first call that may be wrong without a comparison, in words; empty without one."""
    call = next((call for call in calls if call.not_compared), None)
    if call is None:
        return ""
    names = ", ".join(call.not_compared)
    return f"; {call.call} takes {names} in another form or not at all, which is not compared"


def _first_inside(taps: Sequence[TapJudgement], failed: TapJudgement) -> str:
    """The result that differs first, in words, if it is one of a module inside that does not run alone."""
    wrong = (tap for tap in taps if tap.accumulated is not None and not tap.accumulated.passed)
    first = next(wrong, failed)
    if first.isolated is not None or not first.path.startswith(f"{failed.path}."):
        return ""
    assert first.accumulated is not None
    if first.accumulated.reason.startswith(NO_CALL):
        absent, reason = _outermost(taps, first, first.accumulated)
        return f"; inside, {absent.tap} is {reason}"
    return f"; inside, {first.tap} is the first result that differs"


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
