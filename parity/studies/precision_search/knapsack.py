"""The cheapest precisions of units with errors that add in squares: an exact mixed-integer program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from parity.base.precision_policy import BASE
from parity.studies.precision_search.cost import Work, cast_seconds
from parity.studies.precision_search.units import Sensitivity, Unit

TIE = 1e-6
"""Weight of the whole error budget, relative to the cost of fp32. It prefers the more exact of two
assignments of equal cost."""


@dataclass(frozen=True)
class Knapsack:
    """Units with their sensitivities and the model's work.

    Attributes:
        units: Units that together contain every module of the work.
        sensitivities: By name of the unit and precision. Missing precisions are no options.
        work: Work of the model.
        base_error: Error of fp32.
    """

    units: Sequence[Unit]
    sensitivities: Mapping[tuple[str, str], Sensitivity]
    work: Work
    base_error: float

    def predicted(self, chosen: Mapping[Unit, str]) -> float:
        """Error of an assignment, if errors add in squares."""
        added = [self.sensitivities[unit.name, name].added for unit, name in chosen.items() if name != BASE]
        return float(np.sqrt(self.base_error**2 + np.square(added).sum()))

    def solve(self, budget: float) -> dict[Unit, str]:
        """The cheapest assignment with a predicted error within the budget; fp32 without one."""
        options = [(unit, name) for unit in self.units for name in self._names(unit)]
        pairs = self._pairs(options)
        own = np.array([self._own_seconds(*option) for option in options])
        squares = np.square([self._added(*option) / budget for option in options])
        whole = own[[name == BASE for _, name in options]].sum()
        cost = np.concatenate([own / whole + TIE * squares, [seconds / whole for *_, seconds in pairs]])
        one_each, met = self._constraints(options, pairs)
        room = max(1.0 - (self.base_error / budget) ** 2, 0.0)
        within = LinearConstraint(np.concatenate([squares, np.zeros(len(pairs))])[None], -np.inf, room)
        result = milp(
            cost,
            integrality=np.array([1] * len(options) + [0] * len(pairs)),
            bounds=Bounds(0.0, 1.0),
            constraints=[one_each, met, within] if pairs else [one_each, within],
            options={"mip_rel_gap": 0.0},
        )
        if result.x is None:
            raise RuntimeError(f"the assignment was not solved: {result.message}")
        return {unit: name for (unit, name), x in zip(options, result.x, strict=False) if x > 0.5}

    def _names(self, unit: Unit) -> list[str]:
        lower = [name for owner, name in self.sensitivities if owner == unit.name]
        return [BASE, *(name for name in lower if np.isfinite(self.sensitivities[unit.name, name].added))]

    def _own_seconds(self, unit: Unit, name: str) -> float:
        return sum(self.work.own_seconds(path, name) for path in unit.paths)

    def _added(self, unit: Unit, name: str) -> float:
        return 0.0 if name == BASE else self.sensitivities[unit.name, name].added

    def _pairs(self, options: list[tuple[Unit, str]]) -> list[tuple[int, int, float]]:
        """Pairs of options with casts between them, and the seconds of the casts."""
        home = {path: unit for unit in self.units for path in unit.paths}
        elements: dict[tuple[Unit, Unit], int] = {}
        for (path, caller), count in self.work.crossings.items():
            edge = (home[path], home[caller])
            if edge[0] != edge[1]:
                elements[edge] = elements.get(edge, 0) + count
        return [
            (i, j, cast_seconds(count, one, other))
            for (inner, outer), count in elements.items()
            for i, (unit, one) in enumerate(options)
            if unit == inner
            for j, (caller, other) in enumerate(options)
            if caller == outer and one != other
        ]

    def _constraints(
        self, options: list[tuple[Unit, str]], pairs: list[tuple[int, int, float]]
    ) -> tuple[LinearConstraint, LinearConstraint]:
        """Constraints: a unit has one precision, and two chosen options pay for the casts between them."""
        size = len(options) + len(pairs)
        one_each = np.zeros((len(self.units), size))
        for column, (unit, _) in enumerate(options):
            one_each[list(self.units).index(unit), column] = 1.0
        met = np.zeros((len(pairs), size))
        for row, (i, j, _) in enumerate(pairs):
            met[row, [i, j]] = 1.0
            met[row, len(options) + row] = -1.0
        return LinearConstraint(one_each, 1.0, 1.0), LinearConstraint(met, -np.inf, 1.0)
