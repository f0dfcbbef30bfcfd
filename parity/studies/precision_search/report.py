"""The result of a search, or of judging a policy, as saved data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from parity.base.module_patterns import MODEL
from parity.base.precision_policy import BASE, BOTH, CASTABLE, Policy, compact
from parity.report.assemble import latency_report
from parity.report.schema_modules import LatencyReport
from parity.studies.precision_search import cost
from parity.studies.precision_search.bench import Bench, Evaluation
from parity.studies.precision_search.latency import can_measure, latencies
from parity.studies.precision_search.schemes import SchemeSearch, SchemeWork, call_seconds, works_of
from parity.studies.precision_search.search import Fp32Unit, SearchResult
from parity.studies.precision_search.units import Sensitivity
from parity.timing.ceilings import QUANTISED


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class AssignmentReport(_Part):
    """One assignment, run on the port.

    Attributes:
        policy: Patterns with precisions and schemes of quantisation, as in a policy's file.
        error: Largest relative error of any output in either norm, against the oracle.
        l2, largest: Relative errors by output in both norms.
        cost: Modelled cost, relative to fp32.
        latency: Latency on TensorRT; None on the portable runtime.
    """

    policy: dict[str, str]
    error: float
    l2: dict[str, float]
    largest: dict[str, float]
    cost: float
    latency: LatencyReport | None = None

    @classmethod
    def of(cls, run: Evaluation, bench: Bench) -> AssignmentReport:
        return cls.beside(run, bench.work.seconds(dict.fromkeys(bench.paths, "fp32")))

    @classmethod
    def beside(cls, run: Evaluation, in_fp32: float) -> AssignmentReport:
        """The report on a run, with its cost relative to `in_fp32` seconds."""
        return cls(
            policy=_policy(run),
            error=run.error,
            l2={name: distance.l2 for name, distance in run.outputs.items()},
            largest={name: distance.largest for name, distance in run.outputs.items()},
            cost=run.seconds / in_fp32,
        )


def _policy(run: Evaluation) -> dict[str, str]:
    precisions = dict(compact(run.precisions).patterns)
    if run.schemes and precisions == {MODEL: BASE}:
        return dict(run.schemes)
    both = {
        pattern: BOTH.join((precisions[pattern], scheme)) if pattern in precisions else scheme
        for pattern, scheme in run.schemes.items()
    }
    return precisions | both


class SensitivityReport(_Part):
    """A unit lowered alone; see `parity.studies.precision_search.units.Sensitivity`."""

    unit: str
    precision: str
    error: float
    injected: float
    arrived: float
    amplification: float | None

    @classmethod
    def of(cls, unit: str, precision: str, sensitivity: Sensitivity) -> SensitivityReport:
        return cls(
            unit=unit or MODEL,
            precision=precision,
            error=sensitivity.error,
            injected=sensitivity.injected,
            arrived=sensitivity.arrived,
            amplification=sensitivity.amplification,
        )


class Fp32UnitReport(_Part):
    """A unit that stays in fp32; see `parity.studies.precision_search.search.Fp32Unit`."""

    unit: str
    must: bool
    error: float | None
    lowered_with: tuple[str, ...] | None
    error_alone: float
    injected: float
    amplification: float | None

    @classmethod
    def of(cls, fp32_unit: Fp32Unit) -> Fp32UnitReport:
        others = fp32_unit.lowered_with
        return cls(
            unit=fp32_unit.unit.name or MODEL,
            must=fp32_unit.must,
            error=fp32_unit.error,
            lowered_with=None if others is None else tuple(name or MODEL for name in others),
            error_alone=fp32_unit.best.error,
            injected=fp32_unit.best.injected,
            amplification=fp32_unit.best.amplification,
        )


class SchemeCost(_Part):
    """Modelled seconds of a call in float32; see `parity.studies.precision_search.schemes`.

    Attributes:
        whole: The whole call.
        quantisable: Its products and tables.
        launches: Least seconds of the modules' launches, which are no part of the whole.
    """

    whole: float
    quantisable: float
    launches: float


class CostModel(_Part):
    """Constants of the modelled cost; see `parity.studies.precision_search.cost`, and `schemes`."""

    machine: str = cost.MACHINE
    bytes_per_second: float = cost.BANDWIDTH
    flop_per_second: dict[str, float] = cost.PEAK
    kind: str = "modelled, not measured"
    schemes: SchemeCost | None = None


class PrecisionSearchReport(_Part):
    """The result of one search, or of judging one policy. The fields of a search are then empty.

    Attributes:
        command: Command line.
        case, source, weights: Name of the case, origin of its inputs, and origin of its weights.
        runner: Label of the port's runner.
        budget: Largest allowed error of the outputs.
        modules: Number of called modules, including the model itself.
        evaluations: Number of runs of the port.
        base: The port in fp32.
        best: The cheapest assignment within the budget, or the judged policy.
        uniform: The whole port in each lower precision, by name.
        front: Assignments without a cheaper and more exact one, cheapest first.
        fp32_units: Units that stay in fp32; units that must stay come first.
        sensitivities: Effects of lowering one unit alone.
    """

    command: str
    case: str
    source: str
    weights: str
    runner: str
    environment: dict[str, str]
    cost_model: CostModel = CostModel()
    budget: float
    modules: int
    evaluations: int
    base: AssignmentReport
    best: AssignmentReport
    uniform: dict[str, AssignmentReport] = {}
    front: tuple[AssignmentReport, ...] = ()
    fp32_units: tuple[Fp32UnitReport, ...] = ()
    sensitivities: tuple[SensitivityReport, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 within the budget, 1 beyond it."""
        return int(not self.best.error <= self.budget)


def scheme_fields(result: SchemeSearch) -> Mapping[str, object]:
    """The fields of a report that a search over schemes fills."""

    def of(run: Evaluation) -> AssignmentReport:
        return AssignmentReport.beside(run, result.base.seconds)

    return {
        "base": of(result.base),
        "best": of(result.best),
        "front": tuple(map(of, result.front)),
        "sensitivities": tuple(
            SensitivityReport.of(unit, name, sensitivity)
            for (unit, name), sensitivity in result.sensitivities.items()
        ),
        "cost_model": _scheme_cost_model(result.work, result.base.seconds),
    }


def _scheme_cost_model(work: SchemeWork, whole: float) -> CostModel:
    """The constants of the cost of schemes, with the seconds of the whole call in float32."""
    ceilings = work.ceilings
    return CostModel(
        machine=f"{ceilings.gpu.name}, measured rates",
        bytes_per_second=ceilings.copy_bandwidth,
        flop_per_second={name: ceilings.matmul_rate(name) for name in (*CASTABLE, *QUANTISED)},
        kind="modelled, not measured, of the whole call without launches",
        schemes=SchemeCost(
            whole=whole,
            quantisable=whole - work.rest_seconds,
            launches=work.launch_seconds,
        ),
    )


def policy_fields(policy: Policy, bench: Bench) -> Mapping[str, object]:
    """The fields of a report on a policy that is judged without a search. Raises `UserError`."""
    # The policy first, because it may not fit the model.
    judged, base = bench.evaluate_policy(policy), bench.evaluate({})
    fields = {"evaluations": bench.evaluations}
    if not policy.schemes:
        return fields | {
            "base": AssignmentReport.of(base, bench),
            "best": AssignmentReport.of(judged, bench),
        }
    works = works_of(bench, judged)
    whole = call_seconds(works, base)
    return fields | {
        "base": AssignmentReport.beside(replace(base, seconds=whole), whole),
        "best": AssignmentReport.beside(replace(judged, seconds=call_seconds(works, judged)), whole),
        "cost_model": _scheme_cost_model(works[BASE], whole),
    }


def search_fields(result: SearchResult, bench: Bench) -> Mapping[str, object]:
    """The fields of a report that a search fills. On TensorRT the front is timed."""
    front = tuple(AssignmentReport.of(run, bench) for run in result.front)
    if can_measure():
        timed = zip(front, latencies(bench, result.front), strict=True)
        front = tuple(run.model_copy(update={"latency": latency_report(seconds)}) for run, seconds in timed)
    return {
        "evaluations": result.evaluations,
        "base": AssignmentReport.of(result.base, bench),
        "best": AssignmentReport.of(result.best, bench),
        "uniform": {name: AssignmentReport.of(run, bench) for name, run in result.uniform.items()},
        "front": front,
        "fp32_units": tuple(Fp32UnitReport.of(unit) for unit in result.fp32_units),
        "sensitivities": tuple(
            SensitivityReport.of(unit, precision, sensitivity)
            for (unit, precision), sensitivity in result.sensitivities.items()
        ),
    }
