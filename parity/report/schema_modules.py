"""The parts of a report's schema on one module: verdicts, latencies, diagnoses; see `report.schema`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

# JSON has no NaN and no infinity: they are written as text, which every reader can load.
_WRITTEN = {str(value): value for value in (math.nan, math.inf, -math.inf)}
Number = Annotated[
    float,
    BeforeValidator(lambda value: _WRITTEN.get(value, value) if isinstance(value, str) else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]


class Part(BaseModel):
    """A part of a report: no field is unknown, and none changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ElementReport(Part):
    """One of a tap's worst elements: its index and its value in the three results."""

    index: tuple[int, ...]
    oracle: Number
    reference: Number
    port: Number


class VerdictReport(Part):
    """One verdict with its numbers, as `parity.verdict.rule` defines them. Errors are relative.

    Attributes:
        err_ref_l2, err_port_l2, limit_l2: Euclidean errors of reference and port, and the port's limit.
        err_ref_max, err_port_max, limit_max: The same of the largest element.
        scale_error_ref, scale_error_port, limit_scale_error: The same of the scale error.
        margin: Largest ratio of the port's error to its limit; up to 1 passes.
        min_detectable_error: Smallest relative error that fails; NaN in a FAIL.
        checked, boundary: Numbers of compared elements and of elements left out at a discontinuity.
        ties: Number of integers and booleans that differ from the oracle's, as rounding explains.
        k, floor, longest_sum: Facts of the bound.
        bound: The bound in words.
        worst, tolerated: Elements with the largest errors; the failure that a tolerance hides, or empty.
    """

    status: Literal["PASS", "FAIL"]
    reason: str
    err_ref_l2: Number
    err_port_l2: Number
    limit_l2: Number
    err_ref_max: Number
    err_port_max: Number
    limit_max: Number
    scale_error_ref: Number
    scale_error_port: Number
    limit_scale_error: Number
    margin: Number
    min_detectable_error: Number
    checked: int
    boundary: int
    k: float
    floor: float
    longest_sum: int
    bound: str
    worst: tuple[ElementReport, ...]
    tolerated: str = ""
    ties: int = 0


class RooflineReport(Part):
    """The least time of a module on the GPU, and the ceiling that sets it; see `parity.timing.least_time`."""

    seconds: float
    ceiling: Literal["flops", "cache", "memory", "launch"]


class LatencyReport(Part):
    """Quantiles of the times of single runs, in seconds; see `parity.timing.measure`.

    Attributes:
        runs: Number of runs.
        replay: Times of the same work as replays of a captured CUDA graph.
        roofline: Least time on the GPU.
    """

    median: float
    p10: float
    p25: float
    p75: float
    p90: float
    runs: int
    replay: LatencyReport | None = None
    roofline: RooflineReport | None = None


class ErrorMapReport(Part):
    """The places of a module's error, or of changes by garbage in the padding; see `verdict.error_map`."""

    axes: tuple[str, str]
    shape: tuple[int, int]
    cells: tuple[str, ...]


class RoundingReport(Part):
    """The port's error over the reference's, of a module alone; see `parity.verdict.row_errors`.

    Attributes:
        factor: Ratio of the errors over all batches; infinity if the reference alone is exact.
        interval: Interval of the factor at 95 %; None for too few rows.
        rows: Number of rows.
        noted: Whether the port rounds more, beyond chance.
        text: The same in words.
    """

    factor: Number
    interval: tuple[Number, Number] | None
    rows: int
    noted: bool
    text: str


class ModuleReport(Part):
    """One tap: its verdicts inside the model and alone, and its latency.

    Attributes:
        tap: Name of the tap.
        path: Path of its module.
        kind: Class of its module.
        status: INSENSITIVE passes and has a `min_detectable_error` above
            `parity.verdict.sensitivity.INSENSITIVE_ABOVE`, which more rows could lower.
        gap: Reason why the runner has no such module, or empty.
        accumulated, isolated: Verdicts inside the model and alone; None if there is none.
        min_detectable_error: Smallest relative error that a verdict detects in any batch; NaN in a FAIL.
        by_nature: Whether it is above `INSENSITIVE_ABOVE` in any batch that a run draws.
        worst_batch: Name of the batch with these verdicts.
        latency: Times of the module alone; None if it is not timed.
        error_maps: Places of the errors, of modules that are worth a look.
        notes: Facts about the module's limit that decide nothing, in words.
        rounding: Error over the reference's, of the module alone in a PASS.
    """

    tap: str
    path: str
    kind: str
    status: Literal["PASS", "INSENSITIVE", "FAIL", "GAP"]
    gap: str
    accumulated: VerdictReport | None
    isolated: VerdictReport | None
    min_detectable_error: Number
    worst_batch: str
    by_nature: bool = False
    latency: LatencyReport | None
    error_maps: dict[Literal["isolated", "accumulated", "poisoned"], ErrorMapReport] = {}
    notes: tuple[str, ...] = ()
    rounding: RoundingReport | None = None

    @property
    def verdicts(self) -> dict[str, VerdictReport]:
        """The verdicts by where the module runs, in words."""
        named = {"alone": self.isolated, "in the model": self.accumulated}
        return {name: verdict for name, verdict in named.items() if verdict is not None}

    @property
    def margin(self) -> float:
        """The larger margin of both verdicts; NaN counts as infinite."""
        margins = [verdict.margin for verdict in self.verdicts.values()]
        return max((math.inf if math.isnan(margin) else margin for margin in margins), default=0.0)


class DiagnosisReport(Part):
    """The place where a runner diverges first; see `parity.verdict.judgement.Diagnosis`."""

    kind: Literal["none", "module", "amplification", "between", "check", "metric", "insensitive"]
    tap: str
    text: str
    amplification: float | None
    batch: str
    explanation: tuple[str, ...] = ()
    code: str | None = None
    argument: str = ""
    source: str = ""


class MetricReport(Part):
    """One task metric over all rows of all batches; `parity.verdict.task_metrics` has the rule.

    Attributes:
        reason: Reason why there are no numbers, or empty.
        difference: port - reference.
        interval: 95 % paired-bootstrap interval of port - reference; None for the reason in `no_interval`.
        k, floor: Parts of the limit.
        limit: Largest |port - oracle|, k * |reference - oracle| + floor.
        flagged: Whether the port exceeds the limit and the interval excludes 0.
    """

    name: str
    rows: int
    reason: str = ""
    oracle: Number | None = None
    reference: Number | None = None
    port: Number | None = None
    difference: Number | None = None
    interval: tuple[Number, Number] | None = None
    no_interval: str = ""
    k: Number | None = None
    floor: Number | None = None
    limit: Number | None = None
    flagged: bool = False


class RowReport(Part):
    """Differences of rows in one kind of trial; see `parity.verdict.judgement.RowJudgement`."""

    kind: str
    rows: int
    first: str
    largest: Number
    largest_tap: str
    excess: str
    reason: str
