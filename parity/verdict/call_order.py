"""Calls of one module that have other numbers in the port than in the reference.

A shared encoder may run on the item before the user, or once where the reference repeats it. Taps pair by the
number of the call, so that such a port differs at right calls. The arguments tell which call is which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

    A call moves only if its arguments are wrong under its own number and right under the other one. That is
    the number of another call that moves, or of one that a single side makes: a port may look a row up once
    and use it twice, so that the calls behind it have other numbers.
    """
    theirs, ours = (_calls_by_module(side) for side in (evidence.reference, results.received))
    numbers: dict[str, int] = {}
    exchanged: set[str] = set()
    for path in (path for path in theirs if path in ours):
        moved = _moved(theirs[path], ours[path], is_same)
        numbers |= moved
        if _is_another_order(moved, ours[path], theirs[path]):
            exchanged |= moved.keys()
    return _reordered(results, numbers, exchanged) if numbers else results


def _calls_by_module(side: Capture) -> dict[str, dict[str, Received]]:
    """The calls of each module with what they receive, by its path."""
    calls: dict[str, dict[str, Received]] = {}
    for call, received in side.arguments.items():
        calls.setdefault(TapName.parse(call).path, {})[call] = received
    return calls


def _moved(theirs: Mapping[str, Received], ours: Mapping[str, Received], is_same: IsSame) -> dict[str, int]:
    """The reference's number of each call of the port that moves, by the call's name.

    Calls of the port beyond the reference's take the numbers that stay.
    """
    wrong = [call for call in ours if call not in theirs or not is_same(call, theirs[call], ours[call])]
    free = [call for call in theirs if call in wrong or call not in ours]
    if all(call not in theirs for call in wrong) or len(theirs) == len(ours) == 1:
        return {}
    names: dict[str, str] = {}
    for call in wrong:
        own = next((other for other in free if is_same(other, theirs[other], ours[call])), None)
        if own is not None:
            free.remove(own)
            names[call] = own
    without = [call for call in wrong if call not in names]
    if len(without) > max(len(ours) - len(theirs), 0):
        return {}
    taken = set(names.values())
    names |= zip(without, (call for call in wrong if call not in taken), strict=False)
    return {call: TapName.parse(own).call for call, own in names.items()}


def _is_another_order(moved: Mapping[str, int], ours: Iterable[str], theirs: Iterable[str]) -> bool:
    """Whether the calls of both sides are in another order, and not only have other calls between them."""
    both = {TapName.parse(call).call for call in theirs}
    numbers = [moved.get(call, TapName.parse(call).call) for call in ours]
    common = [number for number in numbers if number in both]
    return common != sorted(common)


def _reordered(results: Results, moved: Mapping[str, int], exchanged: Iterable[str]) -> Results:
    """The results with other numbers for some calls of the tapped runs.

    Modules alone run on the reference's arguments, and have its numbers.
    """

    def rename(text: str) -> str:
        name = TapName.parse(text)
        number = moved.get(str(name.module_call))
        return text if number is None else str(replace(name, call=number))

    return replace(renamed(results, rename, rename), reordered=frozenset(map(rename, exchanged)))


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
