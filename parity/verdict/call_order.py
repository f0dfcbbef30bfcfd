"""Calls of one module that the port makes in another order than the reference.

A shared encoder may run on the item before the user. Taps pair by the number of the call, so that such a port
differs at both calls. The arguments tell which call is which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.verdict.evidence import Evidence, Results

IsSame = Callable[[str, Received, Received], bool]
"""Whether a call of the reference, by name, and one of the port receive the same arguments."""


def in_order(evidence: Evidence, results: Results, is_same: IsSame) -> Results:
    """The results with the calls of each module in the reference's order; the same results if nothing moves.

    A call moves only if its arguments are wrong under its own number and right under the other one, and only
    where the moved calls take each other's numbers.
    """
    moved: dict[str, int] = {}
    for calls in _calls_by_module(evidence.reference).values():
        moved |= _moved(calls, evidence.reference.arguments, results.received.arguments, is_same)
    return _reordered(results, moved) if moved else results


def _calls_by_module(reference: Capture) -> Mapping[str, list[str]]:
    """The calls of each module that is called more than once, by its path."""
    calls: dict[str, list[str]] = {}
    for call in reference.arguments:
        calls.setdefault(TapName.parse(call).path, []).append(call)
    return {path: own for path, own in calls.items() if len(own) > 1}


def _moved(
    calls: list[str], reference: Mapping[str, Received], port: Mapping[str, Received], is_same: IsSame
) -> dict[str, int]:
    """The reference's number of each call of the port that moves, by the call's name."""
    wrong = [call for call in calls if call in port and not is_same(call, reference[call], port[call])]
    numbers: dict[str, int] = {}
    free = list(wrong)
    for call in wrong:
        own = next((other for other in free if is_same(other, reference[other], port[call])), None)
        if own is None:
            return {}
        free.remove(own)
        numbers[call] = TapName.parse(own).call
    return numbers


def _reordered(results: Results, moved: Mapping[str, int]) -> Results:
    """The results with other numbers for some calls of the tapped runs.

    Modules alone run on the reference's arguments, and have its numbers.
    """

    def rename(text: str) -> str:
        name = TapName.parse(text)
        number = moved.get(str(name.module_call))
        return text if number is None else str(replace(name, call=number))

    return replace(renamed(results, rename, rename), reordered=frozenset(map(rename, moved)))


Rename = Callable[[str], str]
"""From a name to the name in its place."""


def renamed(results: Results, tap: Rename, call: Rename) -> Results:
    """The results of the tapped runs with other names of taps and calls."""
    return replace(
        results,
        tapped=Renamed(results.tapped, tap),
        poisoned=Renamed(results.poisoned, tap),
        regrouped={tap(name): shape for name, shape in results.regrouped.items()},
        other_axes={tap(name): shape for name, shape in results.other_axes.items()},
        received=_renamed_run(results.received, tap, call),
        received_poisoned=_renamed_run(results.received_poisoned, tap, call),
    )


def _renamed_run(received: Capture, tap: Rename, call: Rename) -> Capture:
    return replace(
        received,
        tensors=dict(Renamed(received.tensors, tap)),
        call_inputs=dict(Renamed(received.call_inputs, tap)),
        arguments={
            call(name): replace(own, arguments=tuple(_renamed_arguments(own, tap)))
            for name, own in received.arguments.items()
        },
        padded=set(map(tap, received.padded)),
    )


def _renamed_arguments(received: Received, rename: Rename) -> Iterator[Argument]:
    for argument in received.arguments:
        yield replace(argument, tensor=rename(argument.tensor), origin=rename(argument.origin))


class Renamed(Mapping[str, torch.Tensor]):
    """A mapping whose keys have other names; no tensor is read before it is asked for."""

    def __init__(self, inner: Mapping[str, torch.Tensor], rename: Callable[[str], str]) -> None:
        self._inner = inner
        self._names = {rename(name): name for name in inner}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._inner[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
