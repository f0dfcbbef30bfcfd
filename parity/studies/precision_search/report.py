"""What a search or the judging of a policy found, as saved data."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from parity.base.precision_policy import MODEL, compact
from parity.report.assemble import latency_report
from parity.report.schema import LatencyReport
from parity.studies.precision_search import cost
from parity.studies.precision_search.bench import Bench, Evaluation
from parity.studies.precision_search.latency import can_measure, latencies
from parity.studies.precision_search.search import Found, Kept
from parity.studies.precision_search.units import Sensitivity


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class AssignmentReport(_Part):
    """One assignment, run on the port.

    Attributes:
        policy: Patterns with precisions, as a policy's file has them.
        error: Largest relative error of any output in either norm, against the oracle.
        l2, largest: Relative errors by output in both norms.
        cost: Modelled, relative to the port in fp32.
        latency: Measured on TensorRT; None on the portable runtime.
    """

    policy: dict[str, str]
    error: float
    l2: dict[str, float]
    largest: dict[str, float]
    cost: float
    latency: LatencyReport | None = None

    @classmethod
    def of(cls, run: Evaluation, bench: Bench) -> AssignmentReport:
        in_fp32 = bench.work.seconds(dict.fromkeys(bench.paths, "fp32"))
        return cls(
            policy=dict(compact(run.precisions).patterns),
            error=run.error,
            l2={name: distance.l2 for name, distance in run.outputs.items()},
            largest={name: distance.largest for name, distance in run.outputs.items()},
            cost=run.seconds / in_fp32,
        )


class SensitivityReport(_Part):
    """A unit lowered alone; see `parity.studies.precision_search.units.Sensitivity`."""

    unit: str
    precision: str
    error: float
    injected: float
    arrived: float
    amplification: float | None

    @classmethod
    def of(cls, unit: str, precision: str, found: Sensitivity) -> SensitivityReport:
        return cls(
            unit=unit or MODEL,
            precision=precision,
            error=found.error,
            injected=found.injected,
            arrived=found.arrived,
            amplification=found.amplification,
        )


class KeptReport(_Part):
    """A unit that stays in fp32; see `parity.studies.precision_search.search.Kept`."""

    unit: str
    must: bool
    error: float | None
    lowered_with: tuple[str, ...] | None
    error_alone: float
    injected: float
    amplification: float | None

    @classmethod
    def of(cls, kept: Kept) -> KeptReport:
        return cls(
            unit=kept.unit.name or MODEL,
            must=kept.must,
            error=kept.error,
            lowered_with=None if kept.lowered_with is None else tuple(n or MODEL for n in kept.lowered_with),
            error_alone=kept.best.error,
            injected=kept.best.injected,
            amplification=kept.best.amplification,
        )


class CostModel(_Part):
    """What costs were modelled with; see `parity.studies.precision_search.cost`."""

    machine: str = cost.MACHINE
    bytes_per_second: float = cost.BANDWIDTH
    flop_per_second: dict[str, float] = cost.PEAK
    kind: str = "modelled, not measured"


class PrecisionSearchReport(_Part):
    """The result of one search, or of judging one policy, whose search fields are then empty.

    Attributes:
        command, case, source, weights: What was run, on what.
        runner: The port's runner.
        budget: The largest error that the outputs may have.
        modules: How many modules a run calls, the model itself included.
        evaluations: How often the port was run.
        base: The port in fp32.
        best: The cheapest assignment within the budget, or the policy that was given.
        uniform: The whole port in each lower precision.
        front: Assignments of which none is both cheaper and more exact, cheapest first.
        kept: Units in fp32, those that must first.
        sensitivities: Each unit lowered alone.
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
    kept: tuple[KeptReport, ...] = ()
    sensitivities: tuple[SensitivityReport, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 within the budget, 1 beyond it."""
        return int(not self.best.error <= self.budget)


def findings(found: Found, bench: Bench) -> Mapping[str, object]:
    """The fields of a report that a search fills. Where TensorRT runs the port, the front is timed."""
    front = tuple(AssignmentReport.of(run, bench) for run in found.front)
    if can_measure():
        timed = zip(front, latencies(bench, found.front), strict=True)
        front = tuple(run.model_copy(update={"latency": latency_report(seconds)}) for run, seconds in timed)
    return {
        "evaluations": found.evaluations,
        "base": AssignmentReport.of(found.base, bench),
        "best": AssignmentReport.of(found.best, bench),
        "uniform": {name: AssignmentReport.of(run, bench) for name, run in found.uniform.items()},
        "front": front,
        "kept": tuple(KeptReport.of(kept) for kept in found.kept),
        "sensitivities": tuple(
            SensitivityReport.of(unit, precision, sensitivity)
            for (unit, precision), sensitivity in found.sensitivities.items()
        ),
    }
