"""Modules that have their axes in another order in the port, told by values.

A linear layer on channels-last data stands for a convolution of size 1. Where the axes differ in length,
their lengths tell the order (`Evidence.aligned`). Where two are equally long, such a result has the
reference's shape and other elements. It is a layout, and no fault, where one order of axes explains both
sides of the call: an argument is wrong as it is and right in that order, and so is each wrong result. A
result alone that is transposed is a fault, and so is an argument alone with a wrong result.

The order has to end inside the module that makes the call: the result of that module is right as it is, or in
another order itself. A transposition that reaches an output is thus a fault where it begins.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from parity.capture.names import TapName
from parity.verdict.arguments import argument_orders
from parity.verdict.evidence import Evidence, Results, shape_of
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement
from parity.verdict.standards import Standards

MOST_AXES = 5
"""Axes up to which all orders are tried: their number is the factorial."""
Order = tuple[int, ...]
"""The port's axes in the reference's order."""


def in_layouts(evidence: Evidence, results: Results, taps: Sequence[TapJudgement]) -> Results:
    """The results in the reference's order of axes; the same results if no call has another one.

    Args:
        evidence: The evidence of the comparison.
        results: The port's results.
        taps: The judgements on them.
    """
    failing: dict[str, list[TapJudgement]] = {}
    for tap in taps:
        name = TapName.parse(tap.tap)
        if not tap.passed and tap.tap in evidence.kinds and not name.appends:
            failing.setdefault(str(name.module_call), []).append(tap)
    orders: dict[str, Order] = {}
    for call in _contained(evidence, taps, failing):
        order = next(_orders(evidence, results, call, failing[call]), None)
        if order is not None:
            orders[call] = order
    calls = _contained(evidence, taps, orders)
    if not calls:
        return results
    moved = {tap: orders[call] for call in calls for tap in _wrong_inside(failing[call])}
    shapes = {tap: shape_of(evidence.reference.tensors, tap) for tap in moved}
    return replace(
        results,
        tapped=_with_orders(results.tapped, moved),
        poisoned=_with_orders(results.poisoned, moved),
        other_axes={**results.other_axes, **shapes},
        turned=results.turned | set(calls),
    )


def _with_orders(
    tensors: Mapping[str, torch.Tensor], orders: Mapping[str, Order]
) -> Mapping[str, torch.Tensor]:
    """Tensors by tap, some of them with their axes in another order."""
    turned = {tap: tensors[tap].permute(order) for tap, order in orders.items() if tap in tensors}
    return ChainMap(turned, tensors)  # type: ignore[arg-type]


def _wrong_inside(taps: Sequence[TapJudgement]) -> list[str]:
    """The taps that fail inside the model, by name."""
    return [tap.tap for tap in taps if tap.accumulated is not None and not tap.accumulated.passed]


def _contained(evidence: Evidence, taps: Sequence[TapJudgement], calls: Mapping[str, object]) -> list[str]:
    """Those calls whose order of axes ends inside the module that makes them."""
    arguments = evidence.reference.arguments
    parents = {TapName.parse(call).path: own.parent for call, own in arguments.items()}
    wrong: dict[str, set[str]] = {"": set()}
    for tap in taps:
        if tap.accumulated is not None:
            is_output = tap.kind == MODEL_OUTPUT
            own = wrong.setdefault("" if is_output else tap.path, set())
            own |= {str(TapName.parse(name).module_call) for name in _wrong_inside([tap])}

    def caller(call: str) -> str:
        """The module that makes a call, or the first one around it that has results to judge."""
        path, passed = parents[TapName.parse(call).path], {""}
        # A module may be inside of itself.
        while path not in wrong and path not in passed:
            passed.add(path)
            path = parents.get(path, "")
        return path if path in wrong else ""

    inside = [call for call in calls if call in arguments]
    while True:
        left = [call for call in inside if wrong[caller(call)] <= set(inside)]
        if left == inside:
            return inside
        inside = left


def _orders(
    evidence: Evidence, results: Results, call: str, failing: Sequence[TapJudgement]
) -> Iterator[Order]:
    """The orders of axes that explain the arguments of a call, and all its results that fail."""
    tensors, own = results.tapped, evidence.reference.tensors
    wrong = _wrong_inside(failing)
    if any(tap not in tensors or tap not in own for tap in wrong):
        return
    pairs = [(shape_of(tensors, tap), shape_of(own, tap)) for tap in wrong]
    ranks = {len(shape) for pair in pairs for shape in pair}
    # Without a wrong result, the module alone fails: it takes the reference's axes for others.
    for rank in sorted(ranks) if len(ranks) == 1 else () if ranks else range(2, MOST_AXES + 1):
        if rank <= MOST_AXES:
            orders = (order for order in itertools.permutations(range(rank)) if order != tuple(range(rank)))
            fitting = [
                order
                for order in orders
                if all(tuple(ours[axis] for axis in order) == theirs for ours, theirs in pairs)
            ]
            for order in argument_orders(evidence, results, call, fitting):
                if all(_is_right(evidence, tap, tensors[tap].permute(order)) for tap in wrong):
                    yield order


def _is_right(evidence: Evidence, tap: str, port: torch.Tensor) -> bool:
    reference, oracle = evidence.reference.tensors[tap], evidence.oracle.get(tap)
    verdict = Standards(evidence).judge(tap, oracle, reference, port, None)
    return verdict is not None and verdict.passed
