"""The place of an error that the padding carries: the first call whose padded positions have other contents.

Padding does not count as a difference by itself. Where every module is right alone and receives the right
arguments, an error beyond half of the digits has one way left into a module: positions that the mask leaves
out, though the model reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.inputs.masks import bits, same_where_valid
from parity.verdict.arguments import judge_arguments
from parity.verdict.bound import half_of_digits
from parity.verdict.diagnosis import all_right_alone, argument_of
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import Diagnosis, TapJudgement
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
    if not leak or (diagnosis.kind, diagnosis.tap) != ("check", leak):
        return diagnosis
    leaking, poisoned = TapName.parse(leak).module_call, evidence.poisoned()
    sides = ((evidence.reference, poisoned), (results.received, results.received_poisoned))
    for call, received in results.received_poisoned.arguments.items():
        if not _is_around(call, leaking):
            continue
        for argument in received.arguments:
            reference, port = (_changes(*side, call, argument.name) for side in sides)
            if port and reference is False:
                return _kept(evidence, call, received, argument, leak)
    return diagnosis


def _is_around(call: str, inner: TapName) -> bool:
    """Whether a call is another one, or one of a module around it."""
    name = TapName.parse(call)
    return name == inner or _holds(name.path, inner.path)


def _holds(path: str, inner: str) -> bool:
    """Whether a module is another one, or around it."""
    return f"{inner}.".startswith(f"{path}.")


def _kept(evidence: Evidence, call: str, received: Received, argument: Argument, leak: str) -> Diagnosis:
    """The diagnosis of an argument that keeps garbage in its padding."""
    text = (
        f"padding leaks: garbage in padded positions reaches {argument.name} of {call}, where the reference "
        f"has none, and changes valid bits at {leak}"
    )
    theirs = _argument(evidence.reference, call, argument.name)
    is_result = argument.origin in evidence.reference.tensors
    if is_result and theirs is not None and theirs.origin == argument.origin:
        return Diagnosis("check", argument.origin, f"{text}; it is the result of {argument.origin}")
    return Diagnosis(
        "between",
        _tap_of(evidence, call) or leak,
        f"{text}; the code of {received.parent or evidence.entry} makes the argument",
        code=received.parent,
        argument=argument_of(call, argument.name),
    )


def _tap_of(evidence: Evidence, call: str) -> str:
    """The first result of a call; empty if it has none."""
    taps = (tap for tap in evidence.reference.tensors if str(TapName.parse(tap).module_call) == call)
    return next(taps, "")


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
    verdict = failed.accumulated if failed is not None else None
    right = failed if diagnosis.kind == "amplification" else _right_around(taps, failed, diagnosis)
    if right is None or verdict is None or verdict.port.l2 <= half_of_digits(verdict.bound.unit_roundoff):
        return diagnosis
    failing = TapName.parse(right.tap).module_call
    around = {
        call: _without_origins(received)
        for call, received in evidence.reference.arguments.items()
        if _is_around(call, failing)
    }

    def counts(tensor: torch.Tensor) -> np.ndarray:
        mask = evidence.mask(tuple(tensor.shape))
        return np.ones(tensor.shape, dtype=bool) if mask is None else mask

    calls = judge_arguments(
        replace(evidence, reference=replace(evidence.reference, arguments=around), valid={}),
        results,
        len(evidence.reference.tensors),
        with_floats=True,
        excluded=counts,
        tolerated=Tolerated(),
    )
    for call in calls:
        wrong = call.wrong
        if wrong is not None and wrong.kind == "value" and wrong.failed is not None:
            text = (
                f"{call.call} receives another {wrong.name} in its padding: {wrong.text}; "
                f"{all_right_alone(taps) if right is failed else f'{right.path} passes on its own'}, "
                f"and no other difference reaches {failing.path}; the code of "
                f"{call.parent or evidence.entry} makes the argument"
            )
            return Diagnosis(
                "between",
                right.tap,
                text,
                explanation=wrong.explanation,
                code=call.parent,
                argument=argument_of(call.call, wrong.name),
            )
    return diagnosis


def _right_around(
    taps: Sequence[TapJudgement], failed: TapJudgement | None, diagnosis: Diagnosis
) -> TapJudgement | None:
    """The innermost tap around the blamed place that is judged alone, if it passes alone; else None.

    The place is a module that is not judged alone, or the code of a module around a wrong argument.
    """
    if diagnosis.kind == "between":
        inside = diagnosis.code or ""
    else:
        inside = "" if failed is None or failed.isolated is not None else failed.path
    around = (tap for tap in taps if tap.path and _holds(tap.path, inside))
    judged = (tap for tap in around if tap.isolated is not None)
    innermost = max(judged, key=lambda tap: len(tap.path), default=None)
    return innermost if innermost is not None and innermost.isolated and innermost.isolated.passed else None


def _without_origins(received: Received) -> Received:
    """A call whose arguments are compared by their elements, also where both sides take the same result."""
    return replace(received, arguments=tuple(replace(own, origin="") for own in received.arguments))
