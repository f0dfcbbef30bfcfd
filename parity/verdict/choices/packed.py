"""The port's choices, as integers of several of them show them, such as a byte that packs two codes.

An integer that is the oracle's shows the oracle's choices. For another one, all values of its choices are put
through the code together, and the nearest ones that give the port's integer are taken. Where two are equally
near, as in a sum, the integer shows none of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import torch

from parity.runners.oracle.choice import RANKING, Choice
from parity.runners.oracle.choices import Choices, Link, Prescribed
from parity.verdict.choices.candidates import MOST_VALUES, candidate, count, unshown

_Elements = tuple[torch.Tensor, torch.Tensor]
"""(K, ...) Mask of a result's labels that are of one choice, and under it their elements of the choice."""


def unpack(recorded: Choices, links: Mapping[str, Link], port: Mapping[str, torch.Tensor]) -> Prescribed:
    """The choices that integers of several choices show, by the number of a choice.

    Args:
        recorded: The pass of the oracle.
        links: The choices that its results come from, by tap.
        port: The port's results by tap.
    """
    found: Prescribed = {}
    for name, link in links.items():
        several = (link.labels >= 0).sum(0) > 1
        if not several.any() or any(recorded.choices[number].operation in RANKING for number in link.numbers):
            continue
        equal = link.tensor.cpu().to(torch.float64) == port[name].to(torch.float64)
        _take_own(recorded, link, several & equal, found)
        differs = several & ~equal
        if differs.any() and _is_small(recorded, link):
            _unpack_one(recorded, link, port[name], differs, found)
    return found


def _take_own(recorded: Choices, link: Link, equal: torch.Tensor, found: Prescribed) -> None:
    """Add the oracle's choices under the elements of one result that equal the port's."""
    for number in link.numbers:
        here, element = _elements(recorded, number, link)
        _, mask = found.setdefault(number, unshown(recorded.choices[number]))
        mask.view(-1)[element[equal.expand(here.shape)[here]]] = True


def _is_small(recorded: Choices, link: Link) -> bool:
    """Whether all values of the choices together can be tried."""
    choices = [recorded.choices[number] for number in link.numbers]
    trials = max(map(count, choices)) ** len(link.labels)
    return trials * (link.tensor.numel() + sum(choice.value.numel() for choice in choices)) <= MOST_VALUES


def _unpack_one(
    recorded: Choices, link: Link, port: torch.Tensor, differs: torch.Tensor, found: Prescribed
) -> None:
    """Add to `_take_own` the choices under the elements of one result that differ from the oracle's."""
    choices = {number: recorded.choices[number] for number in link.numbers}
    inside = {number: _elements(recorded, number, link) for number in choices}
    own = _at_labels({number: choice.value for number, choice in choices.items()}, inside, link)
    nearest = torch.full(port.shape, math.inf, dtype=torch.float64)
    is_only, taken = torch.zeros(port.shape, dtype=torch.bool), own
    for values in _trials(choices, inside, link):
        gives = differs & (link.replay(values.__getitem__).to(torch.float64) == port.to(torch.float64))
        if gives.any():
            tried = _at_labels(values, inside, link)
            steps = (tried - own).abs().sum(0)
            is_nearer = gives & (steps < nearest)
            is_another = gives & (steps == nearest) & (tried != taken).any(0)
            is_only = is_nearer | (is_only & ~is_another)
            nearest = torch.where(is_nearer, steps, nearest)
            taken = torch.where(is_nearer, tried, taken)
    for number, (here, element) in inside.items():
        values, mask = found[number]
        is_shown = is_only.expand(here.shape)[here]
        values.view(-1)[element[is_shown]] = taken[here][is_shown].to(values.dtype)
        mask.view(-1)[element[is_shown]] = True


def _elements(recorded: Choices, number: int, link: Link) -> _Elements:
    labels = link.labels - recorded.offsets[number]
    here = (labels >= 0) & (labels < recorded.choices[number].value.numel())
    return here, labels[here]


def _trials(
    choices: Mapping[int, Choice], inside: Mapping[int, _Elements], link: Link
) -> Iterator[dict[int, torch.Tensor]]:
    """Values of all choices: the elements of one integer have every combination of their possible values."""
    depth = len(link.labels)
    layers = {}
    for number, (here, element) in inside.items():
        places = torch.arange(depth).reshape(-1, *[1] * (here.ndim - 1)).expand(here.shape)
        layers[number] = torch.zeros(choices[number].value.shape, dtype=torch.int64)
        layers[number].view(-1)[element] = places[here]
    for trial in itertools.product(range(max(map(count, choices.values()))), repeat=depth):
        yield {
            number: candidate(choice, torch.tensor(trial).clamp(max=count(choice) - 1)[layers[number]])
            for number, choice in choices.items()
        }


def _at_labels(
    values: Mapping[int, torch.Tensor], inside: Mapping[int, _Elements], link: Link
) -> torch.Tensor:
    """(K, ...) The values of the choices under the labels of a result; 0 where there is none."""
    found = torch.zeros(link.labels.shape, dtype=torch.float64)
    for number, (here, element) in inside.items():
        found[here] = values[number].reshape(-1)[element].to(torch.float64)
    return found
