"""The place of an error that the padding carries: the first call whose padded positions have other contents.

Padding does not count as a difference by itself. Where every module is right alone and receives the right
arguments, an error beyond half of the digits has one way left into a module: positions that the mask leaves
out, though the model reads them. The same holds inside a module that fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.inputs.masks import bits, same_where_valid
from parity.verdict.argument_judge import Excluded
from parity.verdict.argument_pairs import paired
from parity.verdict.arguments import judge_arguments
from parity.verdict.diagnosis import all_right_alone, argument_of
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import ArgumentDifference, CallJudgement, Diagnosis, TapJudgement
from parity.verdict.tolerance import Tolerated


def first_padding_leak(evidence: Evidence, results: Results) -> str:
    """The first tap with a valid element that changes with the content of the padding; empty if none does.

    A module's result without a padded axis may be that of a padded position, as in a loop over positions. It
    counts if another result changes that is known to be valid.
    """
    first = ""
    for tap in evidence.reference.tensors:
        name = TapName.parse(tap)
        if name.appends:
            continue  # The poisoned run is a full forward.
        clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
        if clean is None and poisoned is None:
            continue
        if clean is None or poisoned is None or clean.shape != poisoned.shape:
            return first or tap
        valid = evidence.mask(tuple(clean.shape), tap)
        changed = bits(clean) != bits(poisoned)
        if (changed if valid is None else changed & valid).any():
            first = first or tap
            if valid is not None or name.is_output_of(evidence.entry):
                return first
    return ""


def in_front_of_leak(evidence: Evidence, results: Results, leak: str, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of padding that leaks, at the place where the port keeps garbage.

    A module may read the padding by design, where the reference clears it in front of the module.

    Args:
        evidence: The basis of the verdicts.
        results: The port's results.
        leak: The tap of `first_padding_leak`.
        diagnosis: The diagnosis so far. Another one than that of the leak stays.
    """
    if (diagnosis.kind, diagnosis.tap) != ("check", leak):
        return diagnosis
    sides = ((evidence.reference, evidence.poisoned()), (results.received, results.received_poisoned))
    for call, received in calls_around(results.received_poisoned, leak).items():
        known = evidence.reference.arguments.get(call)
        # The port's parameter may have another name.
        for _, theirs, ours in paired(known, received) if known else ():
            if theirs is None or ours is None:
                continue
            pair = zip(sides, (theirs, ours), strict=True)
            reference, port = (_changes(*side, call, own.name) for side, own in pair)
            if port and reference is False:
                return _kept(evidence, call, received.parent, theirs, ours, leak)
    return diagnosis


def calls_around(run: Capture, tap: str) -> dict[str, Received]:
    """The call that returns a tap, and the calls before it of the modules around, as they begin.

    A later call, of the same module too, receives what the tap has changed.
    """
    inner, calls = TapName.parse(tap).module_call, {}
    for call, received in run.arguments.items():
        name = TapName.parse(call)
        if name == inner:
            return {**calls, call: received}
        if inner.path.startswith(f"{name.path}."):
            calls[call] = received
    return calls


def _kept(
    evidence: Evidence, call: str, parent: str, theirs: Argument, ours: Argument, leak: str
) -> Diagnosis:
    """The diagnosis of an argument that keeps garbage in its padding."""
    text = (
        f"padding leaks: garbage in padded positions reaches {theirs.name} of {call}, where the reference "
        f"has none, and changes valid bits at {leak}"
    )
    if ours.origin in evidence.reference.tensors and theirs.origin == ours.origin:
        return Diagnosis("check", ours.origin, f"{text}; it is the result of {ours.origin}")
    taps = (tap for tap in evidence.reference.tensors if str(TapName.parse(tap).module_call) == call)
    return Diagnosis(
        "between",
        next(taps, leak),
        f"{text}; the code of {parent or evidence.entry} makes the argument",
        code=parent,
        argument=argument_of(call, theirs.name),
    )


def _changes(clean: Capture, poisoned: Capture, call: str, name: str) -> bool | None:
    """Whether an argument of a call changes with the content of the padding; None where a run lacks it."""
    tensors = []
    for run in (clean, poisoned):
        own = _argument(run, call, name)
        if own is None:
            return None
        if own.tensor in run.padded:
            return True
        tensors.append(run.argument(own))
    return not same_where_valid(*tensors, None)


def _argument(run: Capture, call: str, name: str) -> Argument | None:
    """A tensor that a call receives; None if it receives none of this name."""
    arguments = run.arguments[call].arguments if call in run.arguments else ()
    return next((own for own in arguments if own.name == name and own.tensor), None)


def through_padding(
    evidence: Evidence, results: Results, taps: Sequence[TapJudgement], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis of an error inside the model, with the argument whose padding may carry it.

    It is the given diagnosis where a module is wrong alone, rounding may be the cause, or no padding differs.
    Only the calls of the innermost module that is right alone, the failing one or one around it, and of the
    modules around that one are asked, the outermost first.
    """
    failed = next((tap for tap in taps if tap.tap == diagnosis.tap), None)
    if failed is None or failed.accumulated is None:
        return diagnosis
    verdict = failed.accumulated
    right = failed if diagnosis.kind == "amplification" else _right_around(taps, failed, diagnosis)
    if right is None or not verdict.loses_half_of_digits:
        return diagnosis
    found = _first_in_padding(evidence, results, calls_around(evidence.reference, right.tap))
    if found is None:
        return diagnosis
    effect = all_right_alone(taps) if right is failed else f"{right.path} passes on its own"
    return _made_by_code(
        evidence, *found, right.tap, "padding", f"{effect}, and no other difference reaches {right.path}"
    )


def inside_through_padding(
    evidence: Evidence,
    results: Results,
    taps: Sequence[TapJudgement],
    calls: Sequence[CallJudgement],
    diagnosis: Diagnosis,
) -> Diagnosis:
    """The diagnosis of a module that fails alone, with the padding that carries the error inside it.

    The first wrong result inside is that of a module that is right alone and receives right arguments. The
    padding of one of them differs. A module inside whose result this is, and whose own arguments are right
    in their padding, too, computes it: it is at fault. Otherwise the code around makes the argument.

    It is the given diagnosis where an argument is known to be wrong, rounding may be the cause, or no padding
    differs.

    Args:
        evidence: The basis of the verdicts.
        results: The port's results.
        taps: The judgements on all results.
        calls: The calls with other arguments than the reference's, the padding left out.
        diagnosis: The diagnosis so far.
    """
    outer = TapName.parse(diagnosis.tap)
    if diagnosis.kind != "module" or diagnosis.argument or outer.appends:
        return diagnosis
    within = [tap for tap in taps if TapName.parse(tap.tap).phase is outer.phase and _is_in(tap, outer.path)]
    wrong = (tap for tap in within if tap.accumulated is not None and not tap.accumulated.passed)
    first = next(wrong, None)
    if first is None or first.isolated is None or not first.isolated.passed:
        return diagnosis
    around = calls_around(evidence.reference, first.tap)
    around = {call: own for call, own in around.items() if call.startswith(f"{outer.path}.")}
    assert first.accumulated is not None
    known = any(call.call in around and call.wrong for call in calls)
    if known or not first.accumulated.loses_half_of_digits:
        return diagnosis
    found = _first_in_padding(evidence, results, around)
    if found is None:
        return diagnosis
    effect = f"{first.path} passes on its own, and no other difference reaches it"
    while True:
        call, argument = found
        receives = f"{call.call} receives another {argument.name} in its padding: {argument.text}"
        maker = _maker(evidence, results, call, argument)
        own = next((tap for tap in within if tap.tap == maker), None)
        if own is None:
            break
        # A call before it may receive the other padding already.
        earlier = _first_in_padding(evidence, results, _call_of(evidence, maker))
        if earlier is None:
            text = f"{own.path} ({own.kind}) makes another result in its padding: {receives}; {effect}"
            return Diagnosis("module", maker, text, explanation=argument.explanation)
        found = earlier
    code = f"the code of {call.parent} makes the argument"
    # The module's own result tells the cause.
    return replace(
        diagnosis,
        text=f"{diagnosis.text}; inside, {receives}; {effect}; {code}",
        code=call.parent,
        argument=argument_of(call.call, argument.name),
    )


def _is_in(tap: TapJudgement, path: str) -> bool:
    return tap.path.startswith(f"{path}.")


def _maker(evidence: Evidence, results: Results, call: CallJudgement, argument: ArgumentDifference) -> str:
    """The origin that an argument has on both sides; empty where they differ."""
    sides = (run.arguments[call.call] for run in (evidence.reference, results.received))
    # The port's parameter may have another name.
    pairs = (pair for name, *pair in paired(*sides) if name == argument.name)
    origins = {own.origin if own else "" for own in next(pairs)}
    return origins.pop() if len(origins) == 1 else ""


def _call_of(evidence: Evidence, tap: str) -> dict[str, Received]:
    """The call that returns a tap, with the reference's arguments; empty if they are not known."""
    call = str(TapName.parse(tap).module_call)
    received = evidence.reference.arguments.get(call)
    return {} if received is None else {call: received}


def _first_in_padding(
    evidence: Evidence, results: Results, calls: Mapping[str, Received]
) -> tuple[CallJudgement, ArgumentDifference] | None:
    """The first argument of calls that is wrong in its padding; None without one."""
    around = {call: _without_origins(received) for call, received in calls.items()}

    def counts(tensor: torch.Tensor) -> np.ndarray:
        mask = evidence.mask(tuple(tensor.shape))
        return np.ones(tensor.shape, dtype=bool) if mask is None else mask

    reference = replace(evidence.reference, arguments=around)
    return _first_in_part(replace(evidence, reference=reference, valid={}), results, counts)


def wrong_in_part(
    evidence: Evidence, results: Results, excluded: Excluded, tap: str, part: str, effect: str
) -> Diagnosis | None:
    """The diagnosis of the first argument that is wrong in a part of its elements; None without one.

    Args:
        evidence: The basis of the verdicts, with the calls that are asked.
        results: The port's results.
        excluded: The elements that are not of the part.
        tap: The tap that the diagnosis names.
        part: The part, in words.
        effect: What is known of the modules, in words.
    """
    found = _first_in_part(evidence, results, excluded)
    return None if found is None else _made_by_code(evidence, *found, tap, part, effect)


def _first_in_part(
    evidence: Evidence, results: Results, excluded: Excluded
) -> tuple[CallJudgement, ArgumentDifference] | None:
    """The first argument that is wrong in a part of its elements, with its call; None without one."""
    calls = judge_arguments(
        evidence,
        results,
        len(evidence.reference.tensors),
        with_floats=True,
        excluded=excluded,
        tolerated=Tolerated(),
    )
    for call in calls:
        wrong = call.wrong
        if wrong is not None and wrong.kind == "value" and wrong.failed is not None:
            return call, wrong
    return None


def _made_by_code(
    evidence: Evidence, call: CallJudgement, wrong: ArgumentDifference, tap: str, part: str, effect: str
) -> Diagnosis:
    """The diagnosis of code that makes an argument which is wrong in a part."""
    return Diagnosis(
        "between",
        tap,
        f"{call.call} receives another {wrong.name} in its {part}: {wrong.text}; {effect}; "
        f"the code of {call.parent or evidence.entry} makes the argument",
        explanation=wrong.explanation,
        code=call.parent,
        argument=argument_of(call.call, wrong.name),
    )


def _right_around(
    taps: Sequence[TapJudgement], failed: TapJudgement, diagnosis: Diagnosis
) -> TapJudgement | None:
    """The innermost tap around the blamed place that is judged alone, if it passes alone; else None.

    The place is a module that is not judged alone, or the code of a module around a wrong argument.
    """
    is_between = diagnosis.kind == "between"
    if not is_between and failed.isolated is not None:
        return None
    inside = f"{diagnosis.code if is_between else failed.path}."
    around = (tap for tap in taps if tap.path and inside.startswith(f"{tap.path}."))
    judged = (tap for tap in around if tap.isolated is not None)
    innermost = max(judged, key=lambda tap: len(tap.path), default=None)
    return innermost if innermost is not None and innermost.isolated and innermost.isolated.passed else None


def _without_origins(received: Received) -> Received:
    """A call whose arguments are compared by their elements, also where both sides take the same result."""
    return replace(received, arguments=tuple(replace(own, origin="") for own in received.arguments))
