"""The search: measure, solve, run the solution on the port, and correct the model of errors."""

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
"""Most assignments that a fit of the model's budget to the outputs' budget runs."""
CLOSE = 1.1
"""Ratio of two budgets of the model that ends the fit between them."""
FAR = 2.0
"""Largest predicted growth of the error of an assignment that is tried, in budgets."""
FRONT = tuple(10.0 ** (step / 2) for step in range(-4, 5))
"""Budgets of the assignments that are tried for the front, as multiples of the requested one."""


@dataclass(frozen=True)
class Fp32Unit:
    """A unit that stays in fp32.

    Attributes:
        unit: The unit.
        error: Error of the outputs with it lowered, beyond the budget. None if it was not tried, because
            casts cost more than lowering it saves.
        lowered_with: Names of further units that were lowered with it on top of the policy; None if it was
            lowered alone.
        best: Effect of lowering it alone in its best precision.
    """

    unit: Unit
    error: float | None
    lowered_with: tuple[str, ...] | None
    best: Sensitivity

    @property
    def must(self) -> bool:
        """Whether the budget forbids lowering it. Otherwise lowering it saves nothing."""
        return self.error is not None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        base: The port in fp32.
        best: The cheapest assignment within the budget, run without taps.
        uniform: The whole port in each lower precision, by name.
        front: Assignments without a cheaper and more exact one, cheapest first, run without taps.
        fp32_units: Units that stay in fp32; units that must stay come first, the most amplifying ahead.
        sensitivities: By the unit's name and precision.
        evaluations: Number of runs of the port.
    """

    base: Evaluation
    best: Evaluation
    uniform: dict[str, Evaluation]
    front: tuple[Evaluation, ...]
    fp32_units: tuple[Fp32Unit, ...]
    sensitivities: dict[tuple[str, str], Sensitivity]
    evaluations: int


def search(
    bench: Bench, budget: float, progress: Progress, units: Sequence[Unit] | None = None
) -> SearchResult:
    """Search the cheapest precisions whose error at the outputs is within the budget.

    Args:
        bench: The case with its inputs.
        budget: The largest relative error of any output, in both norms.
        progress: Called with the current step in words.
        units: Units with all modules of the bench. Default: `units_of`, split where a unit cannot be lowered
            as a whole.

    Raises:
        UserError: The port's error in fp32 is beyond the budget.
    """
    return _Search(bench, budget, progress, units).result()


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
        evaluation = self._bench.evaluate(assignment_of(chosen))
        if not any(run is evaluation for run in self._runs):
            self._runs.append(evaluation)
        return evaluation

    @property
    def _knapsack(self) -> Knapsack:
        return Knapsack(self._units, self._sensitivities, self._bench.work, self._base.error)

    def result(self) -> SearchResult:
        self._fit()
        while whole := self._to_split():
            parts = [part for unit in whole for part in unit.split()]
            self._units = tuple(unit for unit in self._units if unit not in whole) + tuple(parts)
            self._measure(parts)
            self._fit()
        uniform = {name: self._run(dict.fromkeys(self._units, name)) for name in CASTABLE if name != BASE}
        self._look_around()
        chosen, fp32_units = self._polished(self._cheapest)
        return SearchResult(
            base=self._base,
            best=self._run(chosen),
            uniform=uniform,
            front=front_of(self._runs),
            fp32_units=fp32_units,
            sensitivities=self._sensitivities,
            evaluations=self._bench.evaluations,
        )

    def _to_split(self) -> list[Unit]:
        """Units of several modules that stay in fp32. Some of their modules may be lowered."""
        chosen = self._cheapest
        return [unit for unit in self._units if self._splits and len(unit.paths) > 1 and chosen[unit] == BASE]

    @property
    def _cheapest(self) -> dict[Unit, str]:
        """The cheapest assignment within the budget of all runs."""
        within = [run for run in self._runs if run.error <= self._budget]
        best = min(within, key=lambda run: (run.seconds, run.error))
        return {unit: best.precisions[unit.paths[0]] for unit in self._units}

    def _fit(self) -> None:
        """Run solutions of the knapsack until one uses the outputs' budget.

        Errors of neighbours that round the same tensor do not add, and others cancel. The fit therefore
        moves the knapsack's own budget.
        """
        knapsack = self._knapsack
        allowed, low, high = math.inf, self._base.error, math.inf
        for _ in range(STEPS):
            chosen = knapsack.solve(allowed)
            predicted = knapsack.predicted(chosen)
            self._progress(f"trying an assignment with a predicted error of {predicted:.2g}")
            run = self._run(chosen)
            if run.error <= self._budget:
                low = max(low, allowed)
            else:
                # All budgets from the predicted error to the allowed one have this solution.
                high = predicted
            if high <= low * CLOSE:
                return
            guess = predicted * self._budget / run.error
            allowed = guess if low < guess < high else math.sqrt(low * high)

    def _polished(self, chosen: dict[Unit, str]) -> tuple[dict[Unit, str], tuple[Fp32Unit, ...]]:
        """Lower further units that the budget allows on the port, the most saving first.

        Moves with a predicted error far beyond the budget are not tried. Returns the assignment and the units
        that stay in fp32.
        """
        refused: dict[Unit, tuple[float, tuple[str, ...]]] = {}
        knapsack = self._knapsack
        for move in sorted(self._moves(), key=lambda move: -self._saving(chosen, move)):
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
                # A unit that is exact in the lower precision adds no error.
                for unit in (unit for unit in lowered if self._best(unit)[1].injected > 0.0):
                    others = tuple(other.name for other in lowered if other != unit)
                    if unit not in refused or len(others) < len(refused[unit][1]):
                        refused[unit] = (error, others)
        fp32_units = []
        for unit in self._units:
            if chosen[unit] == BASE:
                _, alone = self._best(unit)
                error, others = (
                    (alone.error, None) if alone.error > self._budget else refused.get(unit, (None, None))
                )
                fp32_units.append(Fp32Unit(unit, error, others, alone))
        fp32_units.sort(key=lambda stays: (not stays.must, -(stays.best.amplification or 0.0)))
        return chosen, tuple(fp32_units)

    def _moves(self) -> list[tuple[Unit, ...]]:
        """Units to lower at once: one; one and its caller; one with all units inside it."""
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
        """The lower precision in which a unit alone adds the smallest error, with the sensitivity."""
        options = {
            name: effect for (owner, name), effect in self._sensitivities.items() if owner == unit.name
        }
        name = min(options, key=lambda option: options[option].error)
        return name, options[name]

    def _saving(self, chosen: dict[Unit, str], move: tuple[Unit, ...]) -> float:
        """Modelled seconds that a move saves."""
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


def front_of(runs: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """The runs without a cheaper and more exact one, the cheapest first."""
    front: list[Evaluation] = []
    for run in sorted(runs, key=lambda run: (run.seconds, run.error)):
        if math.isfinite(run.error) and (not front or run.error < front[-1].error):
            front.append(run)
    return tuple(front)
