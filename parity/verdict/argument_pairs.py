"""Pairs of the arguments that both sides pass to one call, whose parameters and containers may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from parity.capture.arguments import Argument, Received


def paired(reference: Received, port: Received) -> Iterator[tuple[str, Argument | None, Argument | None]]:
    """Arguments of both sides by name, or of parameters and containers that the sides name otherwise.

    Those pair by the tensor that they are, then by the place of the parameter, then by their order in it.
    """
    known = {argument.name for argument in reference.arguments}
    ours = {argument.name: argument for argument in port.arguments}
    others = {argument.name: argument for argument in port.arguments if argument.name not in known}
    pairs = {argument.name: ours[argument.name] for argument in reference.arguments if argument.name in ours}
    for key in (_origin, _place, _by_order(reference, port)):
        for argument in reference.arguments:
            same = (other for other in others.values() if key(argument) and key(argument) == key(other))
            if argument.name not in pairs and (other := next(same, None)) is not None:
                pairs[argument.name] = others.pop(other.name)
    for argument in reference.arguments:
        yield argument.name, argument, pairs.get(argument.name)
    for argument in others.values():
        yield argument.name, None, argument


def _origin(argument: Argument) -> str:
    return argument.origin


def _place(argument: Argument) -> tuple[int, str]:
    """The place of the parameter, and the way from it to the leaf."""
    return argument.parameter, argument.name.partition(".")[2]


def _by_order(reference: Received, port: Received) -> Callable[[Argument], tuple[int, int] | None]:
    """The place of an argument among those of its parameter, where both sides have as many."""
    leaves = [Counter(argument.parameter for argument in side.arguments) for side in (reference, port)]
    orders: dict[int, tuple[int, int]] = {}
    for side in (reference, port):
        seen: Counter[int] = Counter()
        for argument in side.arguments:
            orders[id(argument)] = argument.parameter, seen[argument.parameter]
            seen[argument.parameter] += 1

    def order(argument: Argument) -> tuple[int, int] | None:
        own = argument.parameter
        return orders[id(argument)] if leaves[0][own] == leaves[1][own] else None

    return order
