"""The search over schemes of quantisation: the cheapest scheme of each product and table within a budget.

It is the search over precisions with schemes in place of them. Each unit is quantised alone in each scheme,
on the port. Errors are those of the outputs against the float64 oracle without quantisation. If errors add in
squares, a knapsack gives the cheapest assignment within a budget. Assignments of many budgets run on the
port, and those without a cheaper and more exact one are the front.

The cost is modelled, of the whole call: the least time of each module on an H200, whose tensors come from
memory (`parity.timing.least_time.cold_seconds`). FLOPs and bytes are those of the case, which counts codes,
scales and the rows that tables read. Rates are measured; that of int8 or fp8 holds where input and weights
both have codes. Modules that no scheme changes count, too. Work between a module's parts does not count,
and neither do launches, which no scheme changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from parity.base.errors import UserError
from parity.base.module_patterns import innermost, outwards
from parity.base.precision import PRECISIONS
from parity.base.precision_policy import BASE, Policy
from parity.base.quantisation import SCHEMES, operands
from parity.base.work import Work
from parity.capture.names import TapName
from parity.case import Case
from parity.studies.precision_search.bench import Bench, Evaluation
from parity.studies.precision_search.knapsack import Knapsack
from parity.studies.precision_search.search import front_of
from parity.studies.precision_search.units import Sensitivity, Unit, units_of
from parity.timing.ceilings import FOLDER, Ceilings, read_ceilings
from parity.timing.least_time import cold_seconds

CEILINGS = FOLDER / "h200.json"
"""The measured rates of the cost. Other GPUs would rank assignments by other numbers."""
BUDGETS = tuple(10.0 ** (step / 4) for step in range(-8, 9))
"""Budgets of the assignments that run for the front, as multiples of the requested one."""


@dataclass(frozen=True)
class SchemeWork:
    """The modelled work of a call in one precision, as `cost.Work` has it of modules; there are no casts.

    Attributes:
        matrices: Work of products and tables by path, and by scheme; "" without one.
        rest: Work of all other modules by tap.
        ceilings: Of the GPU.
    """

    matrices: Mapping[str, Mapping[str, Work]]
    rest: Mapping[str, Work]
    ceilings: Ceilings
    crossings: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, arrays: Mapping[str, np.ndarray], precision: str = BASE) -> SchemeWork:
        """The work of a case on one batch."""
        item = PRECISIONS[precision].dtype.itemsize
        matrices = case.scheme_work(arrays, item)
        works = case.work(arrays, item) if matrices else {}
        paths = {tap: TapName.parse(tap).path for tap in works}
        # A container's work is that of its parts.
        containers = {path[:at] for path in paths.values() for at, c in enumerate(path) if c == "."} | {""}
        left_out = containers | set(matrices)
        rest = {tap: work for tap, work in works.items() if paths[tap] not in left_out}
        return cls(matrices, rest, read_ceilings(CEILINGS))

    def own_seconds(self, path: str, name: str, precision: str = BASE) -> float:
        """Seconds of one product or table in a scheme, or without one in the work's precision."""
        work = self.matrices[path]["" if name == BASE else name]
        return cold_seconds(work, operands(SCHEMES.get(name), precision), self.ceilings)

    def scheme_of(self, path: str, schemes: Mapping[str, str]) -> str:
        """The scheme that patterns give a product or table: the innermost that fits; `BASE` without one."""
        fitting = {pattern: name for pattern, name in schemes.items() if name in self.matrices[path]}
        return innermost(fitting, path) or BASE

    @property
    def rest_seconds(self) -> float:
        """Seconds of the modules that no scheme changes."""
        return sum(cold_seconds(work, BASE, self.ceilings) for work in self.rest.values())

    @property
    def launch_seconds(self) -> float:
        """Least seconds of a launch of each module, which are no part of the cost."""
        return (len(self.matrices) + len(self.rest)) * self.ceilings.kernel_seconds


@dataclass(frozen=True)
class SchemeSearch:
    """The result of a search over schemes.

    Attributes:
        base: The port without quantisation.
        best: The cheapest run within the budget.
        front: Runs without a cheaper and more exact one, cheapest first.
        sensitivities: By the unit's name and scheme.
        work: The modelled work.
    """

    base: Evaluation
    best: Evaluation
    front: tuple[Evaluation, ...]
    sensitivities: Mapping[tuple[str, str], Sensitivity]
    work: SchemeWork


def search_schemes(bench: Bench, budget: float, progress: Callable[[str], None]) -> SchemeSearch:
    """Search schemes within a budget of the outputs' error.

    Raises:
        UserError: The case has nothing to quantise, or its error without quantisation is beyond the budget.
    """
    work = SchemeWork.of(bench.case, bench.arrays)
    if not work.matrices:
        raise UserError("--quantise", bench.case.name, "has no product or table to quantise", "leave it out")
    matrices = bench.case.matrices(bench.arrays)
    kinds = {path: "table" if matrix.is_table else "product" for path, matrix in matrices.items()}
    units = units_of(kinds)
    base = _run(bench, work, units, {})
    if base.error > budget:
        problem = f"cannot be met: the port's error without quantisation is {base.error:.3g}"
        raise UserError("--budget", budget, problem, "give a larger one")
    sensitivities, runs = {}, [base]
    for unit in units:
        progress(f"quantising {unit.name} alone")
        for name in SCHEMES:
            if name in work.matrices[unit.paths[0]]:
                alone = _run(bench, work, units, {unit: name})
                added = math.sqrt(max(alone.error**2 - base.error**2, 0.0))
                sensitivities[unit.name, name] = Sensitivity(alone.error, added, math.nan, alone.error)
                runs.append(alone)
    knapsack = Knapsack(units, sensitivities, work, base.error)
    for factor in BUDGETS:
        progress(f"trying a budget of {factor * budget:.2g}")
        runs.append(_run(bench, work, units, knapsack.solve(max(factor * budget, base.error))))
    best = min((run for run in runs if run.error <= budget), key=lambda run: (run.seconds, run.error))
    return SchemeSearch(base, best, front_of(runs), sensitivities, work)


def works_of(bench: Bench, run: Evaluation) -> dict[str, SchemeWork]:
    """The modelled work of a call in float32, and in each precision of a run."""
    return {name: SchemeWork.of(bench.case, bench.arrays, name) for name in {BASE, *run.precisions.values()}}


def call_seconds(works: Mapping[str, SchemeWork], run: Evaluation) -> float:
    """Modelled seconds of a run's call: each module in its own precision and scheme.

    Args:
        works: The work by precision.
        run: The run.
    """

    def precision_of(path: str) -> str:
        return next(run.precisions[outer] for outer in outwards(path) if outer in run.precisions)

    seconds = 0.0
    for path in works[BASE].matrices:
        precision = precision_of(path)
        work = works[precision]
        seconds += work.own_seconds(path, work.scheme_of(path, run.schemes), precision)
    for tap in works[BASE].rest:
        precision = precision_of(TapName.parse(tap).path)
        work = works[precision]
        seconds += cold_seconds(work.rest[tap], precision, work.ceilings)
    return seconds


def _run(bench: Bench, work: SchemeWork, units: tuple[Unit, ...], chosen: Mapping[Unit, str]) -> Evaluation:
    """Run the port with a scheme for some units, each named by its pattern."""
    names = {unit: chosen.get(unit, BASE) for unit in units}
    schemes = {path: name for unit, name in names.items() if name != BASE for path in unit.paths}
    evaluation = bench.evaluate_policy(Policy.of(schemes))
    return replace(
        evaluation,
        seconds=call_seconds({BASE: work}, evaluation),
        schemes={unit.name: name for unit, name in names.items() if name != BASE},
    )
