"""A search for the port's choices that no integer or boolean shows.

Near a tie, rounding explains several values of a choice. The search tries them in the oracle, and takes a
value where the oracle comes nearer to the port. Rows of a batch are tried together, one value a row in each
run. Where a value changes the results of another row, such as those of a later step of a recurrence or of a
column of scores, all values are tried one by one. So are values that only results without rows show, such as
a loss. The search only chooses among values that rounding explains, so a port that is wrong stays so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from parity.runners.oracle.choice import COMPARING, RANKING, Choice
from parity.runners.oracle.choices import Prescribed
from parity.runners.oracle.replays import Replay
from parity.verdict.bound import Bound
from parity.verdict.choices.admissible import admissible

MOST_RUNS = 64
"""Most runs of the oracle in one search for rows together, and for values one by one."""
SAME_COST = 1e-6
"""Largest difference, absolute and relative, of two costs that are the same."""
MOST_TRIALS = 1 << 14
"""Most values that one search tries."""
OUTSIDE = 3
"""Number of the best items outside of a ranking that may take the last one's place."""


@dataclass(frozen=True)
class Trial:
    """One value that rounding explains, in the place of the oracle's.

    Attributes:
        number: Number of the choice.
        places: Its elements, in the flattened choice: one, or a row of a ranking.
        values: Their values.
    """

    number: int
    places: torch.Tensor
    values: torch.Tensor


_CostsOf = Callable[[Prescribed], torch.Tensor]
"""The costs of the oracle under choices (`_costs`)."""


def search(
    run: Callable[[Prescribed], Mapping[str, torch.Tensor]],
    replay: Replay,
    prescribed: Prescribed,
    port: Mapping[str, torch.Tensor],
    bound: Bound,
    rows: int,
) -> Prescribed:
    """The prescribed choices with those that bring the oracle nearer to the port.

    Args:
        run: The oracle's results by tap under prescribed choices.
        replay: Oracle and reference under the choices so far, with rounding samples.
        prescribed: The choices so far.
        port: The port's results by tap.
        bound: The bound of the error of numbers that decide.
        rows: Number of rows of the batch.
    """
    queues = _queues(replay, prescribed, bound, rows)
    if not queues:
        return prescribed
    scales = {
        tap: _scale(replay, tap, bound) for tap in replay.reference if _is_comparable(replay, port, tap)
    }

    def costs_of(choices: Prescribed) -> torch.Tensor:
        return _costs(run(choices), port, scales, rows)

    state = _State(replay, prescribed, _costs(replay.oracle, port, scales, rows))
    state = _one_by_one(state, queues.pop(-1, []), costs_of)
    together, hidden = _rows_together(state, queues, costs_of)
    return _one_by_one(together, hidden, costs_of).taken


@dataclass(frozen=True)
class _State:
    """The choices so far, with the costs of the oracle under them (`_costs`)."""

    replay: Replay
    taken: Prescribed
    costs: torch.Tensor

    def with_trials(self, trials: Iterable[Trial]) -> Prescribed:
        return _with(self.taken, list(trials), self.replay)


def _one_by_one(state: _State, trials: Sequence[Trial], costs_of: _CostsOf) -> _State:
    """The state with the trials that bring all results together nearer."""
    for trial in trials[:MOST_RUNS]:
        taken = state.with_trials([trial])
        costs = costs_of(taken)
        if costs.sum() < state.costs.sum():
            state = _State(state.replay, taken, costs)
    return state


def _rows_together(
    state: _State, queues: Mapping[int, Sequence[Trial]], costs_of: _CostsOf
) -> tuple[_State, list[Trial]]:
    """The state with the trials that bring their rows nearer, and the trials that no row shows.

    Where rows depend on each other, the state has no trial more, and no row shows any.
    """
    everything = sorted((trial for queue in queues.values() for trial in queue), key=lambda t: t.number)
    found = replace(state, costs=state.costs.clone())
    unseen: list[Trial] = []
    is_number_moved = False
    for turn in range(min(MOST_RUNS, max(map(len, queues.values()), default=0))):
        tried = [row for row, queue in queues.items() if turn < len(queue)]
        # Half of the rows at a time shows whether the others depend on them.
        for group in (tried[::2], tried[1::2]) if turn == 0 else (tried,):
            if not group:
                continue
            trials = {row: queues[row][turn] for row in group}
            costs = costs_of(found.with_trials(trials.values()))
            is_same = torch.isclose(costs, found.costs, rtol=SAME_COST, atol=SAME_COST)
            if any(not is_same[row] for row in range(len(costs) - 1) if row not in trials):
                return state, everything
            is_number_moved |= not is_same[-1]
            unseen += [trials[row] for row in group if is_same[row]]
            nearer = [row for row in group if costs[row] < found.costs[row]]
            if nearer:
                found.costs[nearer] = costs[nearer]
                found = replace(found, taken=found.with_trials(trials[row] for row in nearer))
    if found.taken is not state.taken:
        costs = costs_of(found.taken)
        if not torch.allclose(costs[:-1], found.costs[:-1], rtol=SAME_COST, atol=SAME_COST):
            return state, everything
        found = replace(found, costs=costs)
    return found, unseen if is_number_moved else []


def _queues(replay: Replay, prescribed: Prescribed, bound: Bound, rows: int) -> dict[int, list[Trial]]:
    """The trials of every row of the batch, in the order of the choices; of row -1 where rows are unknown."""
    queues: dict[int, list[Trial]] = defaultdict(list)
    count = 0
    for number, choice in enumerate(replay.choices.choices):
        if choice is None or not choice.reference:
            continue
        shown = (
            prescribed[number][1]
            if number in prescribed
            else torch.zeros(choice.value.shape, dtype=torch.bool)
        )
        for values in _alternatives(choice):
            right = admissible(choice, values, bound) & ~shown & _changed(choice, values)
            for places in _units(choice, right):
                row = _row(choice, places, rows)
                queues[row].append(Trial(number, places, values.reshape(-1)[places]))
                count += 1
                if count == MOST_TRIALS:
                    return queues
    return queues


def _alternatives(choice: Choice) -> Iterator[torch.Tensor]:
    """Other values of all elements of a choice."""
    value = choice.value
    if choice.operation in COMPARING:
        yield ~value
    elif choice.operation not in RANKING:
        yield value - 1
        yield value + 1
    else:
        yield from _other_rankings(choice)


def _other_rankings(choice: Choice) -> Iterator[torch.Tensor]:
    """Rankings with two neighbours in each other's place, and with an item from outside in the last place."""
    (numbers,) = choice.numbers
    numbers = numbers if choice.is_descending else -numbers
    axis, value = choice.axis, choice.value
    if axis is None:
        numbers, axis, whole = numbers.reshape(-1), 0, value.reshape(1)
    else:
        whole = value if value.ndim == numbers.ndim else value.unsqueeze(axis)
    items = whole.movedim(axis, -1)
    for place in range(items.shape[-1] - 1):
        swapped = items.clone()
        swapped[..., [place, place + 1]] = items[..., [place + 1, place]]
        yield swapped.movedim(-1, axis).reshape(value.shape)
    outside = numbers.movedim(axis, -1).scatter(-1, items, -torch.inf)
    best = outside.topk(min(OUTSIDE, outside.shape[-1]), -1).indices
    for place in range(best.shape[-1]):
        replaced = torch.cat([items[..., :-1], best[..., place : place + 1]], -1)
        yield replaced.movedim(-1, axis).reshape(value.shape)


def _changed(choice: Choice, values: torch.Tensor) -> torch.Tensor:
    """Elements with another value, of a ranking all of such a row."""
    changed = values != choice.value
    if _is_row(choice):
        changed = changed.any(choice.axis, keepdim=True).expand(values.shape)
    return changed


def _is_row(choice: Choice) -> bool:
    """Whether the elements of a choice along its axis belong together."""
    is_ranking = choice.operation in RANKING and choice.axis is not None
    return is_ranking and choice.value.ndim == choice.numbers[0].ndim


def _units(choice: Choice, right: torch.Tensor) -> Iterator[torch.Tensor]:
    """Places that change together, in the flattened choice."""
    places = torch.arange(right.numel()).reshape(right.shape)
    if not _is_row(choice):
        yield from places[right].unsqueeze(-1).unbind(0)
        return
    rows, mask = places.movedim(choice.axis, -1), right.movedim(choice.axis, -1)
    yield from rows[mask.all(-1)].unbind(0)


def _row(choice: Choice, places: torch.Tensor, rows: int) -> int:
    """The row of the batch of elements; -1 for none, as of a ranking among rows."""
    value = choice.value
    if value.ndim and rows and value.shape[0] % rows == 0 and not _is_among_rows(choice, rows):
        first, last = (int(places[end]) * rows // value.numel() for end in (0, -1))
        if first == last:
            return first
    return -1


def _is_among_rows(choice: Choice, rows: int) -> bool:
    """Whether a ranking is along an axis of rows, which its result has not."""
    if choice.operation not in RANKING or choice.axis is None:
        return False
    (numbers,) = choice.numbers
    return (
        choice.axis % numbers.ndim == 0 and choice.value.ndim < numbers.ndim and numbers.shape[0] % rows == 0
    )


def _with(prescribed: Prescribed, trials: Sequence[Trial], replay: Replay) -> Prescribed:
    """The prescribed choices and those of trials."""
    taken = dict(prescribed)
    own: set[int] = set()
    for trial in trials:
        number = trial.number
        if number not in own:
            own.add(number)
            choice = replay.choices.choices[number].value
            values, mask = taken.get(number, (choice, torch.zeros(choice.shape, dtype=torch.bool)))
            taken[number] = values.clone(), mask.clone()
        values, mask = taken[number]
        values.view(-1)[trial.places] = trial.values.to(values.dtype)
        mask.view(-1)[trial.places] = True
    return taken


def _is_comparable(replay: Replay, port: Mapping[str, torch.Tensor], tap: str) -> bool:
    return tap in port and tap in replay.oracle and port[tap].shape == replay.oracle[tap].shape


def _scale(replay: Replay, tap: str, bound: Bound) -> float:
    """The size of the error that rounding explains at a tap."""
    exact = replay.oracle[tap].double()
    error = (replay.reference[tap].double() - exact).square().mean().sqrt()
    return float(torch.nan_to_num(error + bound.unit_roundoff * exact.square().mean().sqrt(), nan=1.0)) or 1.0


def _costs(
    oracle: Mapping[str, torch.Tensor],
    port: Mapping[str, torch.Tensor],
    scales: Mapping[str, float],
    rows: int,
) -> torch.Tensor:
    """(B + 1) Distances of the port from the oracle, of every row and of results without rows."""
    costs = torch.zeros(rows + 1, dtype=torch.float64)
    for tap, scale in scales.items():
        exact, own = oracle[tap].double(), port[tap].double()
        apart = torch.where(exact == own, 0.0, (exact - own) / scale).square()
        apart = torch.nan_to_num(apart, nan=1e12, posinf=1e12).clamp(max=1e12)
        if exact.ndim and rows and exact.shape[0] % rows == 0 and exact.numel():
            costs[:-1] += apart.reshape(rows, -1).mean(1)
        elif exact.numel():
            costs[-1] += apart.mean()
    return costs
