"""The verb `precision`: a search or a policy, its report and files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.precision_policy import BASE, read_policy
from parity.case import Case
from parity.execution.request import Request
from parity.inputs.arrays import make_inputs
from parity.inputs.prepared import require_rows
from parity.inputs.weights import case_weights
from parity.report.latencies import milliseconds
from parity.runners import make_runner
from parity.studies.precision_search.bench import Bench
from parity.studies.precision_search.report import (
    Fp32UnitReport,
    PrecisionSearchReport,
    SchemeCost,
    policy_fields,
    scheme_fields,
    search_fields,
)
from parity.studies.precision_search.schemes import search_schemes
from parity.studies.precision_search.search import Progress, search


def run(
    request: Request, budget: float, policy: Path | None, progress: Progress, quantise: bool = False
) -> PrecisionSearchReport:
    """Search precisions or schemes of quantisation, or judge a policy.

    Args:
        request: One case. Of recorded data, the first batch counts.
        budget: Largest allowed relative error of any output, in both norms.
        policy: File of a policy to judge; None for a search.
        progress: Called with the current step in words.
        quantise: Whether the search is over schemes.

    Raises:
        UserError: An argument that cannot be used.
    """
    if not (math.isfinite(budget) and budget > 0.0):
        raise UserError("--budget", budget, "is no error", "give a positive number, such as 1e-3")
    if quantise and policy is not None:
        raise UserError("--policy", str(policy), "is judged without a search", "leave --quantise out")
    if not request.has_one_case:
        names = ", ".join(case.name for case in request.cases)
        raise UserError("--case", names, "are several cases", "precisions are for one case: give one --case")
    (case,) = request.cases
    # The truth has no quantised module, whatever the case has.
    case = case.quantised({})
    patterns = None if policy is None else read_policy(policy)
    progress(f"{case.name}: reference and oracle")
    arrays, source = _arrays(case, request)
    tensors, weights_source = case_weights(case, request.checkpoint)
    bench = Bench(case, arrays, tensors)
    if quantise:
        fields = scheme_fields(search_schemes(bench, budget, progress)) | {"evaluations": bench.evaluations}
    elif patterns is None:
        fields = search_fields(search(bench, budget, progress), bench)
    else:
        fields = policy_fields(patterns, bench)
    return PrecisionSearchReport(
        command=request.command,
        case=case.name,
        source=source,
        weights=weights_source,
        runner=make_runner("tripy").label(),
        environment=environment(),
        budget=budget,
        modules=len(bench.paths),
        **fields,
    )


def _arrays(case: Case, request: Request) -> tuple[Mapping[str, np.ndarray], str]:
    inputs = make_inputs(case, None if request.data is None else case.read(request.data))
    require_rows(case, inputs, request.rows)
    typical = inputs.typical
    part = f", the first of {len(inputs.batches)} batches" if len(inputs.batches) > 1 else ""
    return typical.arrays, f"{inputs.source}{part}, batch {case.batch_size_of(typical)}"


def write(report: PrecisionSearchReport, folder: Path) -> None:
    """Write `precision.json` and the policy as a file for `--policy`. Raises `UserError`."""
    lines = (f"{json.dumps(pattern)}: {precision}\n" for pattern, precision in report.best.policy.items())
    write_new(folder / "policy.yaml", "".join(lines).encode())
    write_new(folder / "precision.json", (report.model_dump_json(indent=2) + "\n").encode())


def render(report: PrecisionSearchReport) -> RenderableType:
    """The front, the units that stay in fp32, and the policy, for a terminal."""
    parts: list[RenderableType] = [
        Text(f"{report.case}: {report.source}, weights {report.weights}, {report.runner}")
    ]
    if report.front:
        parts += [Text(), _front_table(report)]
    if report.fp32_units:
        parts += [Text(), _fp32_table(report)]
    within = "within" if report.exit_code == 0 else "BEYOND"
    lines = [f'  "{pattern}": {precision}' for pattern, precision in report.best.policy.items()]
    rates = ", ".join(f"{name} {rate / 1e12:.4g}" for name, rate in report.cost_model.flop_per_second.items())
    parts += [
        Text(),
        Text("\n".join(["policy", *lines])),
        Text(),
        Text(
            f"error {report.best.error:.3g}, {within} the budget of {report.budget:g}; cost "
            f"{report.best.cost:.3f} of fp32's; fp32's own error {report.base.error:.3g}",
            style="bold green" if report.exit_code == 0 else "bold red",
        ),
        *(
            Text(f"all in {name}: error {run.error:.3g}, cost {run.cost:.3f}")
            for name, run in report.uniform.items()
        ),
        Text(f"the port ran {report.evaluations} times; it has {report.modules} modules"),
        Text(
            f"cost is {report.cost_model.kind}: bytes at "
            f"{report.cost_model.bytes_per_second / 1e12:.3g} TB/s, "
            f"matrix products at {rates} TFLOP/s ({report.cost_model.machine})"
        ),
        *_scheme_lines(report.cost_model.schemes),
    ]
    return Group(*parts)


def _scheme_lines(cost: SchemeCost | None) -> list[Text]:
    """What the modelled seconds of a call consist of, in a search over schemes."""
    if cost is None:
        return []
    share = cost.quantisable / cost.whole
    return [
        Text(
            f"in fp32 the call takes {cost.whole * 1e6:.3g} us by it, {share:.0%} of them in products and "
            f"tables; launches of the modules take {cost.launches * 1e6:.3g} us more at least in any scheme"
        )
    ]


def _front_table(report: PrecisionSearchReport) -> Table:
    table = Table(
        title="error against cost: no assignment is both cheaper and more exact",
        title_justify="left",
        box=None,
        header_style="bold",
    )
    for name in ("error", "cost"):
        table.add_column(name, justify="right")
    measured = any(run.latency for run in report.front)
    if measured:
        table.add_column("ms, measured", justify="right")
    table.add_column("policy")
    for run in report.front:
        chosen = run.policy == report.best.policy
        policy = ", ".join(f"{pattern}: {precision}" for pattern, precision in run.policy.items())
        numbers = [f"{run.error:.3g}", f"{run.cost:.3f}"]
        if measured:
            numbers.append(milliseconds(run.latency))
        table.add_row(*numbers, Text(policy), style="bold" if chosen else "")
    return table


def _reason(unit: Fp32UnitReport) -> str:
    if unit.error is None:
        return "saves nothing: casts cost more"
    if unit.lowered_with is None:
        return "must: alone it is beyond the budget"
    others = f" and {', '.join(unit.lowered_with)}" if unit.lowered_with else ""
    return f"must: with the policy{others} the error is {unit.error:.3g}"


def _fp32_table(report: PrecisionSearchReport) -> Table:
    table = Table(
        title=f"stays in {BASE}", title_justify="left", box=None, header_style="bold", show_edge=False
    )
    table.add_column("module", no_wrap=True)
    for name in ("amplification", "error alone", "reason"):
        table.add_column(name, justify="left" if name == "reason" else "right")
    for unit in report.fp32_units:
        amplification = "" if unit.amplification is None else f"{unit.amplification:.3g}"
        table.add_row(Text(unit.unit), amplification, f"{unit.error_alone:.3g}", Text(_reason(unit)))
    return table
