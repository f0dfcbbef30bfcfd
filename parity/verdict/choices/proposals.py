"""The port's choices, as its integers and booleans show them.

A result that moves choices holds them. A result that code makes from choices, such as ids that a table maps
indices to, shows those that give the port's value: every possible value of a choice is put through the code.
Where results that share a choice contradict each other, the first one shows it: a later one may be wrong. If
several values remain, the nearest to the oracle's is taken.
Integers of several choices, such as a byte of two codes, are those of `parity.verdict.choices.packed`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from parity.runners.oracle.choice import RANKING, Choice
from parity.runners.oracle.choices import Choices, Link, Prescribed
from parity.verdict.choices.candidates import MOST_VALUES, candidate, count, unshown
from parity.verdict.choices.packed import unpack


def propose(
    recorded: Choices, own: Mapping[str, torch.Tensor], port: Mapping[str, torch.Tensor]
) -> tuple[Prescribed, dict[int, str]]:
    """The port's choices with the mask of those that its results show, and the first tap of each choice.

    Args:
        recorded: The pass of the oracle.
        own: Its results by tap.
        port: The port's results by tap.
    """
    links: dict[str, Link] = {}
    for name, tensor in own.items():
        link = recorded.link(tensor)
        if link is not None and name in port and port[name].shape == tensor.shape:
            links[name] = link
    taps: dict[int, str] = {}
    for name, link in links.items():
        for number in link.numbers:
            taps.setdefault(number, name)
    allowed = _searched(recorded, links, port)
    unpacked = unpack(recorded, links, port)
    proposals: Prescribed = {}
    for number in taps:
        choice = recorded.choices[number]
        values, mask = unpacked[number] if number in unpacked else unshown(choice)
        if number in allowed:
            _take_nearest(choice, allowed[number], values, mask)
        # The first result that holds a choice is read last, and decides.
        for name, link in reversed(links.items()):
            if link.is_moved and number in link.numbers:
                _take_moved(recorded.offsets[number], link, port[name], values, mask)
        if mask.any():
            proposals[number] = _whole(choice, values, mask)
    return proposals, taps


def _take_moved(
    offset: int, link: Link, port: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> None:
    """Read the choices off a result that holds them."""
    labels = link.labels[0].reshape(-1) - offset
    inside = (labels >= 0) & (labels < values.numel())
    values.view(-1)[labels[inside]] = port.reshape(-1)[inside].to(values.dtype)
    mask.view(-1)[labels[inside]] = True


def _searched(
    recorded: Choices, links: Mapping[str, Link], port: Mapping[str, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """By choice, the mask (C, ...) of the possible values that give the port's results."""
    searched = {name: link for name, link in links.items() if not link.is_moved}
    allowed: dict[int, torch.Tensor] = {}
    known: dict[int, torch.Tensor] = {}
    for name, link in searched.items():
        own: dict[int, torch.Tensor] = {}
        counts = {number: count(recorded.choices[number]) for number in link.numbers}
        sizes = [recorded.choices[number].value.numel() + port[name].numel() for number in link.numbers]
        if max(counts.values()) * sum(sizes) > MOST_VALUES:
            continue
        for number, values in counts.items():
            shape = (values, recorded.choices[number].value.numel())
            allowed.setdefault(number, torch.ones(shape, dtype=torch.bool))
            known.setdefault(number, torch.zeros(shape[1], dtype=torch.bool))
            own[number] = allowed[number].clone()
        # An element of several choices shows none of them here.
        flat = torch.where((link.labels >= 0).sum(0) == 1, link.labels.amax(0), -1).reshape(-1)
        labels = {number: flat - recorded.offsets[number] for number in own}
        inside = {
            number: (labels[number] >= 0) & (labels[number] < values.shape[1])
            for number, values in own.items()
        }
        for trial in range(max(counts.values())):
            replayed = link.replay(
                lambda number, at=trial, counts=counts: candidate(
                    recorded.choices[number], min(at, counts[number] - 1)
                )
            )
            gives = (replayed.to(torch.float64) == port[name].to(torch.float64)).reshape(-1)
            for number, values in counts.items():
                if trial < values:
                    own[number][trial, labels[number][inside[number] & ~gives]] = False
        for number, values in own.items():
            is_asked = torch.zeros_like(known[number])
            is_asked[labels[number][inside[number]]] = True
            agrees = values.any(0)
            allowed[number] = torch.where(agrees, values, allowed[number])
            known[number] |= is_asked & agrees
    for number, mask in allowed.items():
        mask &= known[number]
    return allowed


def _take_nearest(choice: Choice, allowed: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> None:
    """Take the allowed value nearest to the oracle's choice: in scores of a ranking, else in steps."""
    candidates = torch.stack([candidate(choice, trial).reshape(-1) for trial in range(len(allowed))])
    own = choice.value.reshape(-1)
    if choice.operation in RANKING:
        distance = _score_distances(choice)
    else:
        distance = (candidates.to(torch.float64) - own.to(torch.float64)).abs()
    distance = torch.where(candidates == own, -1.0, distance).masked_fill(~allowed, torch.inf)
    nearest, at = distance.min(0)
    taken = nearest < torch.inf
    values.view(-1)[taken] = candidates.gather(0, at[None])[0][taken]
    mask.view(-1)[taken] = True


def _score_distances(choice: Choice) -> torch.Tensor:
    """(C, elements of the choice) Distance of each candidate's score from that of the choice."""
    numbers = choice.numbers[0].to(torch.float64)
    if choice.axis is None:
        numbers = numbers.reshape(-1)
        return (numbers[:, None] - numbers[choice.value.reshape(-1)]).abs()
    index = choice.value if choice.value.ndim == numbers.ndim else choice.value.unsqueeze(choice.axis)
    own = numbers.gather(choice.axis, index)
    scores = numbers.movedim(choice.axis, 0)
    apart = (scores.unsqueeze(choice.axis + 1 if choice.axis >= 0 else choice.axis) - own).abs()
    return apart.reshape(len(scores), -1)


def _whole(choice: Choice, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A ranking's choice along all of its axis: items that no result shows follow in the oracle's order.

    A row that is no ranking, because it repeats an item or names none, is not taken.
    """
    if choice.operation not in RANKING:
        return values, mask
    if choice.axis is None or values.ndim < choice.numbers[0].ndim:
        return values, mask & (values >= 0) & (values < count(choice))
    rows, shown, own = (tensor.movedim(choice.axis, -1) for tensor in (values, mask, choice.value))
    for place in (shown.any(-1) & ~shown.all(-1)).nonzero().tolist():
        row, is_shown = rows[tuple(place)], shown[tuple(place)]
        used = set(row[is_shown].tolist())
        others = [item for item in own[tuple(place)].tolist() if item not in used]
        row[~is_shown] = torch.tensor(others[: int((~is_shown).sum())], dtype=row.dtype)
    ordered = rows.sort(-1).values
    is_ranking = (ordered[..., 0] >= 0) & (ordered[..., -1] < count(choice)) & shown.any(-1)
    is_ranking &= (ordered[..., 1:] != ordered[..., :-1]).all(-1)
    return values, is_ranking.unsqueeze(-1).expand(rows.shape).movedim(-1, choice.axis)
