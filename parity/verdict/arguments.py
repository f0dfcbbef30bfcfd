"""Arguments of the port's calls against the reference's: the verdicts on the code between modules.

An argument whose origin is the reference's, the same tap or input of the entry, is right. Any other tensor is
compared, and so is a parameter of the same name, which may hold other values. Integers and booleans must
equal the reference's. A floating-point argument has the limit of a tap at the beginning of its call: the
errors of reference and port are distances from the oracle's argument (`parity.verdict.rule`), and the code
that makes the argument counts as one more module.

Padding does not count, nor do rows that depend on a discontinuity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from parity.capture.arguments import Argument, Received
from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.verdict.argument_judge import ArgumentJudge, Excluded, View
from parity.verdict.argument_pairs import paired
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import SHAPE, CallJudgement
from parity.verdict.tolerance import Tolerated


def judge_arguments(
    evidence: Evidence,
    results: Results,
    right_taps: int,
    with_floats: bool,
    excluded: Excluded,
    tolerated: Tolerated,
) -> tuple[CallJudgement, ...]:
    """The calls that receive another argument than the reference's, in the order in which they begin.

    Args:
        evidence: Has the arguments of the reference and the oracle.
        results: Has those of the port.
        right_taps: Number of taps before the first one that fails. A call that begins later may receive a
            wrong argument from a wrong module, and is left out.
        with_floats: Whether to compare floating-point tensors.
        excluded: Elements of a tensor that depend on a discontinuity.
        tolerated: The errors that may reach an argument.
    """
    judgements: list[CallJudgement] = []
    for call, received in evidence.reference.arguments.items():
        port = results.received.arguments.get(call)
        # Arguments of another form are compared in it already.
        if port is None or received.finished > right_taps or call in results.in_forms:
            continue
        judge = ArgumentJudge(evidence, results, call, received, with_floats, excluded, tolerated)
        differing, equal = [], {}
        for name, theirs, ours in paired(received, port):
            difference = judge.difference(name, theirs, ours)
            if difference is None:
                equal[name] = theirs.origin if theirs else ""
            elif difference.kind in _OF_SIGNATURES and _is_passed_twice(call, received, theirs, ours):
                continue
            else:
                # Only the first wrong argument has a cause. The tensors of others need no memory.
                is_first = not any(judgement.wrong for judgement in judgements)
                differing.append(difference if is_first else replace(difference, failed=None))
        if differing:
            behind = tolerated.before(received.finished).source
            # One tensor that is two arguments is equal in neither.
            wrong = {str(replace(TapName.parse(call), argument=other.name)) for other in differing}
            right = tuple(name for name, origin in equal.items() if origin not in wrong)
            judgements.append(CallJudgement(call, port.parent, tuple(differing), right, behind))
    return tuple(judgements)


def same_arguments(evidence: Evidence, results: Results) -> Callable[[str, Received, Received], bool]:
    """Whether a call of the reference, by name, and a call of the port receive the same arguments."""

    def is_same(call: str, received: Received, port: Received) -> bool:
        judge = _judge_of_all(evidence, results, call, received)
        # An origin may name a call that has another number on the other side: the elements decide.
        pairs = (
            (name, theirs, replace(ours, origin="") if ours else None)
            for name, theirs, ours in paired(received, port)
        )
        return all(judge.difference(*pair) is None for pair in pairs)

    return is_same


def is_received(evidence: Evidence, results: Results, tap: str) -> bool:
    """Whether a call of both sides receives a result of the reference, which the port has there, too."""
    for call, received in evidence.reference.arguments.items():
        port = results.received.arguments.get(call)
        if port is None or all(own.origin != tap for own in received.arguments):
            continue
        judge = _judge_of_all(evidence, results, call, received)
        for name, theirs, ours in paired(received, port):
            is_tensor = theirs is not None and theirs.origin == tap and ours is not None and ours.tensor
            if is_tensor and judge.difference(name, theirs, ours) is None:
                return True
    return False


def _judge_of_all(evidence: Evidence, results: Results, call: str, received: Received) -> ArgumentJudge:
    """Compares all elements of floating-point arguments, too, and tolerates no error."""
    return ArgumentJudge(evidence, results, call, received, True, lambda tensor: None, Tolerated())


_View = TypeVar("_View", bound=View)


def argument_views(
    evidence: Evidence, results: Results, call: str, views: Iterable[_View]
) -> Iterator[_View]:
    """Yield the views in which a call of the port receives the reference's arguments.

    At least one tensor of floating-point numbers is wrong as it is and right in the view. All others are
    right as they are, or in the view.

    Args:
        evidence: Has the arguments of the reference and the oracle.
        results: Has those of the port.
        call: Name of the call.
        views: The views, without the unchanged one.
    """
    received, port = (side.arguments.get(call) for side in (evidence.reference, results.received))
    if received is None or port is None:
        return
    judge = ArgumentJudge(evidence, results, call, received, True, lambda tensor: None, Tolerated())
    wrong: list[tuple[str, Argument, Argument]] = []
    for name, theirs, ours in paired(received, port):
        # An origin tells nothing: the tensor before may have another form itself.
        ours = replace(ours, origin="") if ours else None
        difference = judge.difference(name, theirs, ours)
        if difference is None:
            continue
        if theirs and ours and theirs.tensor and ours.tensor:
            wrong.append((name, theirs, ours))
        elif difference.kind in ("value", "absent"):
            return
    tensors = [evidence.reference.argument(theirs) for _, theirs, _ in wrong]
    if not any(tensor.dtype.is_floating_point for tensor in tensors):
        return
    for view in views:
        if all(judge.difference(*pair, view) is None for pair in wrong):
            yield view


def other_form(evidence: Evidence, results: Results, call: ModuleCall, fails_alone: bool = False) -> str:
    """The form in which the port's module runs inside the model, and not alone; empty without one.

    PyTorch may turn a mask of booleans into numbers before it calls a module, and a port may not. An argument
    may have another name. Such a module does not run with the reference's arguments. PyTorch may also pad a
    tensor before a convolution, and the port's convolution pads itself. Such a module runs and gives another
    result.

    Args:
        evidence: The evidence of the comparison.
        results: The port's results.
        call: The call of the module.
        fails_alone: Whether the module gives a wrong result alone, and has a verdict inside the model. Then
            an argument of another shape is a form.
    """
    if fails_alone and call.tap in results.in_forms:
        return results.in_forms[call.tap]
    received, port = (side.arguments.get(call.tap) for side in (evidence.reference, results.received))
    has_result = any(output in results.tapped for output in call.outputs)
    raises = call.tap in results.isolated_problems
    if (raises or fails_alone) and port is None and not call.appends:
        # A port may join calls into fewer, or lack one.
        arguments = results.received.arguments
        port = next((arguments[tap] for tap in arguments if TapName.parse(tap).path == call.path), None)
        has_result = port is not None
    if not (raises or fails_alone) or not has_result or received is None or port is None:
        return ""
    judge = ArgumentJudge(evidence, results, call.tap, received, False, lambda tensor: None, Tolerated())
    for name, theirs, ours in paired(received, port):
        # The same module's result, such as one with an axis of 1 more, may be no argument for the port's.
        if raises and (shapes := judge.other_shape(theirs, ours)):
            return f"{name}: {shapes}"
        # A positional argument may have any name.
        if raises and theirs is not None and ours is not None and ours.name != name:
            return f"{name} has the name {ours.name}"
        difference = judge.difference(name, theirs, ours)
        if difference is None or difference.kind == "value":
            continue
        if raises or difference.text.startswith(SHAPE):
            return f"{name}: {difference.text}"
    return ""


_OF_SIGNATURES = ("form", "signature", "broadcast")
"""Kinds of differences that the signature of the port's module may make."""


def _is_passed_twice(call: str, received: Received, argument: Argument | None, port: Argument | None) -> bool:
    """Whether an argument is no parameter of the port's, and another argument of the reference's call too.

    Such as the key of a self-attention, which is its query.
    """
    if argument is None or (port is not None and port.name == argument.name):
        return False
    name = TapName.parse(call)
    others = [other for other in received.arguments if other.name != argument.name]
    known = {str(replace(name, argument=other.name)) for other in others} | {own.origin for own in others}
    return bool(argument.origin) and argument.origin in known
