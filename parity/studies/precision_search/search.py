"""The search: measure, solve, run the solution on the port, and repair what the model of errors got wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parity.base.errors import UserError
from parity.base.precision_policy import BASE, CASTABLE
from parity.studies.precision_search.bench import Bench, Evaluation
from parity.studies.precision_search.knapsack import Knapsack
from parity.studies.precision_search.units import Sensitivity, Unit, assignment_of, measure, units_of

Progress = Callable[[str], None]

STEPS = 6
"""Assignments tried while the budget of the model of errors is fitted to that of the outputs."""
CLOSE = 1.1
"""The ratio of two budgets of the model between which no further assignment is looked for."""
FAR = 2.0
"""By how many budgets the model of errors may put an assignment beyond the last one and see it tried."""
FRONT = tuple(10.0 ** (step / 2) for step in range(-4, 5))
"""Budgets whose assignments are tried for the front, as multiples of the one that is asked for."""


@dataclass(frozen=True)
class Kept:
    """A unit that stays in fp32.

    Attributes:
        unit: The unit.
        error: Error of the outputs with it lowered, if that was found to be beyond the budget; None where
            it was not tried: then casts cost more than lowering it saves.
        lowered_with: What was lowered with it: nothing, or all that is lowered already, where the names of
            further units may follow.
        best: What lowering it alone does, in its best precision.
    """

    unit: Unit
    error: float | None
    lowered_with: tuple[str, ...] | None
    best: Sensitivity

    @property
    def must(self) -> bool:
        """Whether the budget forbids lowering it, rather than that nothing is won by it."""
        return self.error is not None


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        base: The port in fp32.
        best: The cheapest assignment within the budget, run without taps.
        uniform: The whole port in each lower precision.
        front: Assignments of which none is both cheaper and more exact, cheapest first, run without taps.
        kept: Units that stay in fp32, the most amplifying first.
        sensitivities: By unit's name and precision.
        evaluations: How often the port was run.
    """

    base: Evaluation
    best: Evaluation
    uniform: dict[str, Evaluation]
    front: tuple[Evaluation, ...]
    kept: tuple[Kept, ...]
    sensitivities: dict[tuple[str, str], Sensitivity]
    evaluations: int


def search(bench: Bench, budget: float, progress: Progress, units: Sequence[Unit] | None = None) -> Found:
    """Find the cheapest precisions whose error at the outputs is within the budget.

    Args:
        bench: The case with its inputs.
        budget: The largest relative error of any output, in both norms.
        progress: Called with what is being done.
        units: What is lowered together, and has all of the bench's modules. Default: `units_of`, split where
            they cannot be lowered as a whole.

    Raises:
        UserError: The port's error in fp32 is beyond the budget.
    """
    return _Search(bench, budget, progress, units).found()


class _Search:
    def __init__(self, bench: Bench, budget: float, progress: Progress, units: Sequence[Unit] | None) -> None:
        self._bench = bench
        self._budget = budget
        self._progress = progress
        self._runs: list[Evaluation] = []
        self._sensitivities: dict[tuple[str, str], Sensitivity] = {}
        self._base = self._run({})
        if self._base.error > budget:
            raise UserError(
                "--budget",
                budget,
                f"cannot be met: the port's error in fp32 is {self._base.error:.3g}",
                "give a larger one",
            )
        self._splits = units is None
        self._units = tuple(units_of(bench.kinds()) if units is None else units)
        self._measure(self._units)

    def _measure(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._progress(f"lowering {unit.name or 'the model itself'} alone")
            self._sensitivities |= measure(self._bench, [unit])

    def _run(self, chosen: dict[Unit, str]) -> Evaluation:
        found = self._bench.evaluate(assignment_of(chosen))
        if not any(run is found for run in self._runs):
            self._runs.append(found)
        return found

    @property
    def _knapsack(self) -> Knapsack:
        return Knapsack(self._units, self._sensitivities, self._bench.work, self._base.error)

    def found(self) -> Found:
        self._fit()
        while kept := self._to_split():
            parts = [part for unit in kept for part in unit.split()]
            self._units = tuple(unit for unit in self._units if unit not in kept) + tuple(parts)
            self._measure(parts)
            self._fit()
        uniform = {name: self._run(dict.fromkeys(self._units, name)) for name in CASTABLE if name != BASE}
        self._look_around()
        chosen, kept_units = self._polished(self._cheapest)
        return Found(
            base=self._base,
            best=self._run(chosen),
            uniform=uniform,
            front=_front(self._runs),
            kept=kept_units,
            sensitivities=self._sensitivities,
            evaluations=self._bench.evaluations,
        )

    def _to_split(self) -> list[Unit]:
        """Units that stay in fp32 as a whole: parts of them may not, and what must stay is to be named."""
        chosen = self._cheapest
        return [unit for unit in self._units if self._splits and len(unit.paths) > 1 and chosen[unit] == BASE]

    @property
    def _cheapest(self) -> dict[Unit, str]:
        """Of all that was run, the cheapest assignment within the budget."""
        within = [run for run in self._runs if run.error <= self._budget]
        best = min(within, key=lambda run: (run.seconds, run.error))
        return {unit: best.precisions[unit.paths[0]] for unit in self._units}

    def _fit(self) -> None:
        """Run solutions of the knapsack, those that should just keep the budget on the port.

        Errors of neighbours that round the same tensor do not add, and others cancel: the knapsack's own
        budget is moved until what it allows is what the outputs may have.
        """
        knapsack = self._knapsack
        allowed, low, high = math.inf, self._base.error, math.inf
        for _ in range(STEPS):
            chosen = knapsack.solve(allowed)
            predicted = knapsack.predicted(chosen)
            self._progress(f"trying what should have an error of {predicted:.2g}")
            run = self._run(chosen)
            if run.error <= self._budget:
                low = max(low, allowed)
            else:
                # All budgets from here on up to the one that was allowed have this solution.
                high = predicted
            if high <= low * CLOSE:
                return
            guess = predicted * self._budget / run.error
            allowed = guess if low < guess < high else math.sqrt(low * high)

    def _polished(self, chosen: dict[Unit, str]) -> tuple[dict[Unit, str], tuple[Kept, ...]]:
        """Lower what is left where the budget allows it on the port, what saves most first.

        What the model of errors puts far beyond the budget is not tried.
        """
        refused: dict[Unit, tuple[float, tuple[str, ...]]] = {}
        knapsack = self._knapsack
        for move in sorted(self._moves(), key=lambda each: -self._saving(chosen, each)):
            lowered = {unit: self._best(unit)[0] for unit in move if chosen[unit] == BASE}
            trial = {**chosen, **lowered}
            if not lowered or self._saving(chosen, tuple(lowered)) <= 0.0:
                continue
            if knapsack.predicted(trial) > FAR * self._budget + knapsack.predicted(chosen):
                continue
            self._progress(f"lowering {' and '.join(unit.name or 'the model itself' for unit in lowered)}")
            error = self._run(trial).error
            if error <= self._budget:
                chosen = trial
            else:
                # What is exact in the lower precision has no part in it.
                for unit in (each for each in lowered if self._best(each)[1].injected > 0.0):
                    others = tuple(other.name for other in lowered if other != unit)
                    if unit not in refused or len(others) < len(refused[unit][1]):
                        refused[unit] = (error, others)
        kept = []
        for unit in self._units:
            if chosen[unit] == BASE:
                _, alone = self._best(unit)
                error, others = (
                    (alone.error, None) if alone.error > self._budget else refused.get(unit, (None, None))
                )
                kept.append(Kept(unit, error, others, alone))
        kept.sort(key=lambda each: (not each.must, -(each.best.amplification or 0.0)))
        return chosen, tuple(kept)

    def _moves(self) -> list[tuple[Unit, ...]]:
        """Units that are worth lowering at once: one; one and its caller; one with all that is inside it."""
        home = {path: unit for unit in self._units for path in unit.paths}
        alone = [(unit,) for unit in self._units]
        pairs = [(home[path], home[caller]) for path, caller in self._bench.work.crossings]
        trees = [
            tuple(dict.fromkeys(home[path] for path in home if path == top or path.startswith(f"{top}.")))
            for top in home
            if top
        ]
        return list(dict.fromkeys(tuple(dict.fromkeys(move)) for move in [*alone, *pairs, *trees]))

    def _best(self, unit: Unit) -> tuple[str, Sensitivity]:
        """The lower precision in which a unit alone does least harm."""
        options = {name: found for (owner, name), found in self._sensitivities.items() if owner == unit.name}
        name = min(options, key=lambda each: options[each].error)
        return name, options[name]

    def _saving(self, chosen: dict[Unit, str], move: tuple[Unit, ...]) -> float:
        """Modelled seconds that lowering more units saves."""
        lowered = {unit: self._best(unit)[0] for unit in move if chosen[unit] == BASE}
        return self._seconds(chosen) - self._seconds({**chosen, **lowered})

    def _seconds(self, chosen: dict[Unit, str]) -> float:
        return self._bench.work.seconds({path: name for unit, name in chosen.items() for path in unit.paths})

    def _look_around(self) -> None:
        """Run the solutions of other budgets, for the front."""
        knapsack = self._knapsack
        for factor in FRONT:
            self._progress(f"trying a budget of {factor * self._budget:.2g}")
            self._run(knapsack.solve(max(factor * self._budget, self._base.error)))


def _front(runs: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    front: list[Evaluation] = []
    for run in sorted(runs, key=lambda each: (each.seconds, each.error)):
        if math.isfinite(run.error) and (not front or run.error < front[-1].error):
            front.append(run)
    return tuple(front)
