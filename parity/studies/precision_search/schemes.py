"""The search over schemes of quantisation: the cheapest scheme of each product and table within a budget.

It is the search over precisions with schemes in place of them. Each unit is quantised alone in each scheme,
on the port. Errors are those of the outputs against the float64 oracle without quantisation. If errors add in
squares, a knapsack gives the cheapest assignment within a budget. Assignments of many budgets run on the
port, and those without a cheaper and more exact one are the front.

The cost is modelled, and counts the products and tables alone. A product takes

    max(bytes / bandwidth, flops / peak)

Its bytes are those of its float32 input and output, of its codes and of its scales. The peak of int8 and fp8
holds where input and weights both have codes. A table reads the codes, scale and bias of each index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from parity.base.errors import UserError
from parity.base.precision_policy import BASE, Policy
from parity.base.quantisation import SCHEMES, Scheme
from parity.case import Matrix
from parity.studies.precision_search.bench import Bench, Evaluation
from parity.studies.precision_search.cost import BANDWIDTH, PEAK
from parity.studies.precision_search.knapsack import Knapsack
from parity.studies.precision_search.search import front_of
from parity.studies.precision_search.units import Sensitivity, Unit, units_of

QUANTISED_PEAK = 1979e12
"""Dense operations per second of int8 and fp8 on an H200 SXM, from NVIDIA's data sheet."""
_FLOAT = 4
"""Bytes of a float32 number."""
BUDGETS = tuple(10.0 ** (step / 4) for step in range(-8, 9))
"""Budgets of the assignments that run for the front, as multiples of the requested one."""


def seconds(matrix: Matrix, scheme: Scheme | None) -> float:
    """Modelled seconds of a product or a table; None is float32."""
    weights = matrix.inputs * matrix.outputs
    if matrix.is_table:
        row = _FLOAT * matrix.outputs
        if scheme is not None:
            # Scale and bias have four bytes each, or two.
            row = -(-matrix.outputs * scheme.bits // 8) + scheme.bits
        return matrix.rows * row / BANDWIDTH
    moved = _FLOAT * matrix.rows * (matrix.inputs + matrix.outputs)
    peak = PEAK[BASE]
    if scheme is None:
        moved += _FLOAT * weights
    else:
        scales = {"tensor": 1, "channel": matrix.outputs}.get(scheme.span)
        if scales is None:
            scales = -(-matrix.inputs // scheme.block_size) * matrix.outputs
        moved += weights * scheme.bits // 8 + _FLOAT * scales
        peak = QUANTISED_PEAK if scheme.inputs else peak
    return max(moved / BANDWIDTH, 2 * matrix.rows * weights / peak)


@dataclass(frozen=True)
class SchemeWork:
    """The modelled work of products and tables, as `cost.Work` has it of modules; there are no casts.

    Attributes:
        matrices: By path.
    """

    matrices: Mapping[str, Matrix]
    crossings: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def own_seconds(self, path: str, name: str) -> float:
        """Seconds of one product or table in a scheme, or in float32."""
        return seconds(self.matrices[path], SCHEMES.get(name))


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
    work = SchemeWork(bench.case.matrices(bench.arrays))
    if not work.matrices:
        raise UserError("--quantise", bench.case.name, "has no product or table to quantise", "leave it out")
    kinds = {path: "table" if matrix.is_table else "product" for path, matrix in work.matrices.items()}
    units = units_of(kinds)
    base = _run(bench, work, units, {})
    if base.error > budget:
        problem = f"cannot be met: the port's error without quantisation is {base.error:.3g}"
        raise UserError("--budget", budget, problem, "give a larger one")
    sensitivities, runs = {}, [base]
    for unit in units:
        progress(f"quantising {unit.name} alone")
        for name, scheme in SCHEMES.items():
            if scheme.is_of_tables is work.matrices[unit.paths[0]].is_table:
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


def _run(bench: Bench, work: SchemeWork, units: tuple[Unit, ...], chosen: Mapping[Unit, str]) -> Evaluation:
    """Run the port with a scheme for some units, each named by its pattern."""
    names = {unit: chosen.get(unit, BASE) for unit in units}
    schemes = {path: name for unit, name in names.items() if name != BASE for path in unit.paths}
    evaluation = bench.evaluate_policy(Policy.of(schemes))
    own = sum(work.own_seconds(path, name) for unit, name in names.items() for path in unit.paths)
    return replace(
        evaluation,
        seconds=own,
        schemes={unit.name: name for unit, name in names.items() if name != BASE},
    )
