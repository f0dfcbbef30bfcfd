"""The result of a run as typed data: what `report.json` holds and what the terminal shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from configs import AnyCase
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.execution.record import BuildRecord
from parity.verdict.comparison import Comparison
from parity.verdict.diagnosis import TapRow
from parity.verdict.rule import Verdict

SCHEMA = "parity.report/1"

# JSON has no NaN and no infinity: they travel as text, so that any reader can load the file.
Number = Annotated[
    float,
    BeforeValidator(lambda value: float(value)),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ElementReport(_Part):
    """One of a tap's worst elements."""

    index: tuple[int, ...]
    oracle: Number
    reference: Number
    port: Number


class VerdictReport(_Part):
    """A verdict with its numbers; see `parity.verdict.rule` for their meaning. Errors are relative."""

    status: Literal["PASS", "FAIL"]
    reason: str
    err_ref_l2: Number
    err_port_l2: Number
    limit_l2: Number
    err_ref_max: Number
    err_port_max: Number
    limit_max: Number
    gain_ref: Number
    gain_port: Number
    limit_gain: Number
    margin: Number
    sensitivity: Number
    checked: int
    boundary: int
    k: float
    floor: float
    longest_sum: int
    bound: str
    worst: tuple[ElementReport, ...]

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictReport:
        return cls(
            status=verdict.status,
            reason=verdict.reason,
            err_ref_l2=verdict.reference.l2,
            err_port_l2=verdict.port.l2,
            limit_l2=verdict.limit.l2,
            err_ref_max=verdict.reference.largest,
            err_port_max=verdict.port.largest,
            limit_max=verdict.limit.largest,
            gain_ref=verdict.reference.gain,
            gain_port=verdict.port.gain,
            limit_gain=verdict.limit.gain,
            margin=verdict.margin,
            sensitivity=verdict.sensitivity,
            checked=verdict.checked,
            boundary=verdict.boundary,
            k=verdict.bound.k,
            floor=verdict.bound.floor,
            longest_sum=verdict.bound.longest_sum,
            bound=verdict.bound.explain(),
            worst=tuple(
                ElementReport(index=e.index, oracle=e.oracle, reference=e.reference, port=e.port)
                for e in verdict.worst
            ),
        )


class LimitReport(_Part):
    """The least seconds that a module can take on the GPU, and what sets them; see `perf_model.limits`."""

    seconds: float
    bound: Literal["flops", "cache", "memory", "launch"]


class LatencyReport(_Part):
    """Times of single runs in seconds, see `parity.timing.measure`; the spread is the interquartile range.

    `replay`: the same work as replays of a captured CUDA graph.
    """

    median: float
    p10: float | None = None
    p25: float
    p75: float
    p90: float | None = None
    runs: int
    replay: LatencyReport | None = None
    limit: LimitReport | None = None


class ErrorMapReport(_Part):
    """Where a module's error sits, or what garbage in the padding changed; see `parity.verdict.error_map`."""

    axes: tuple[str, str]
    shape: tuple[int, int]
    cells: tuple[str, ...]


class ModuleReport(_Part):
    """One tap: the module's verdict inside the model and on its own, and its latency.

    `sensitivity` is the smallest relative error that either verdict would have noticed in any batch, NaN
    where one failed. A module that passes is BLIND if that is more than `parity.verdict.sensitivity.BLIND`.
    """

    tap: str
    path: str
    kind: str
    status: Literal["PASS", "BLIND", "FAIL", "GAP"]
    gap: str
    accumulated: VerdictReport | None
    isolated: VerdictReport | None
    sensitivity: Number
    worst_batch: int
    latency: LatencyReport | None
    maps: dict[Literal["isolated", "accumulated", "poisoned"], ErrorMapReport] = {}

    @classmethod
    def of(cls, row: TapRow, batch: int, latency: LatencyReport | None) -> ModuleReport:
        return cls(
            tap=row.tap,
            path=row.path,
            kind=row.kind,
            status="GAP" if row.gap else "PASS" if row.passed else "FAIL",
            gap=row.gap,
            accumulated=VerdictReport.of(row.accumulated) if row.accumulated else None,
            isolated=VerdictReport.of(row.isolated) if row.isolated else None,
            sensitivity=min(
                (v.sensitivity for v in (row.isolated, row.accumulated) if v is not None and row.passed),
                default=math.nan,
            ),
            worst_batch=batch,
            latency=latency,
        )

    @property
    def margin(self) -> float:
        """The worse of both verdicts' margins; NaN counts as infinitely bad."""
        margins = [v.margin for v in (self.accumulated, self.isolated) if v is not None]
        return max((math.inf if math.isnan(m) else m for m in margins), default=0.0)


class DiagnosisReport(_Part):
    """Where a runner diverges first."""

    kind: Literal["none", "module", "amplification", "check", "metric", "blind"]
    tap: str
    text: str
    amplification: float | None
    batch: int
    why: tuple[str, ...] = ()

    @classmethod
    def of(cls, comparison: Comparison, batch: int) -> DiagnosisReport:
        found = comparison.diagnosis
        return cls(
            kind=found.kind,
            tap=found.tap,
            text=found.text,
            amplification=found.amplification,
            batch=batch,
            why=found.why,
        )


class MetricReport(_Part):
    """One metric of a task over all rows of all batches; `parity.verdict.task_metrics` says when it is
    flagged.

    Attributes:
        reason: why there are no numbers, or empty.
        difference: port - reference.
        interval: 95 % paired-bootstrap interval of port - reference; None for the reason in `no_interval`.
        k, floor, limit: |port - oracle| may be up to limit = k * |reference - oracle| + floor.
        flagged: the port is beyond the limit, and the interval excludes 0.
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


class RunnerReport(_Part):
    """One runner in one precision of one case.

    `replay_reasons`: why there is no latency as a replay, by tap, the whole model under "". `peak_bytes`: the
    most GPU memory that PyTorch's allocator held during whole-model runs, weights included.
    """

    runner: str
    label: str
    status: str
    reason: str
    verdict: Literal["PASS", "BLIND", "FAIL", "NONE"]
    diagnosis: DiagnosisReport | None = None
    modules: tuple[ModuleReport, ...] = ()
    checks: dict[str, VerdictReport] = {}
    padding_leak: str = ""
    observer_difference: float = 0.0
    latency: LatencyReport | None = None
    timing_reason: str = ""
    limit_reason: str = ""
    replay_reasons: dict[str, str] = {}
    peak_bytes: int | None = None
    builds: tuple[BuildRecord, ...] = ()
    metrics: tuple[MetricReport, ...] = ()


class PrecisionReport(_Part):
    """All runners of a case in one precision."""

    precision: str
    runners: tuple[RunnerReport, ...]
    gpu: dict[str, str] = {}
    """The GPU's clocks, power and temperature before and after timing."""


class CaseReport(_Part):
    """One case: what was run, on what, with which weights."""

    case: AnyCase
    source: str
    weights_source: str
    weights_digest: str
    inputs_digests: tuple[str, ...]
    labels_digests: tuple[str, ...] = ()
    batches: int
    counts: dict[str, int]
    precisions: tuple[PrecisionReport, ...]


class Report(_Part):
    """A whole run."""

    schema_version: Literal["parity.report/1"] = SCHEMA
    created: str
    command: str
    environment: dict[str, str]
    requested_runners: tuple[str, ...]
    cases: tuple[CaseReport, ...]
    exit_code: int

    def runner_reports(self) -> list[tuple[CaseReport, PrecisionReport, RunnerReport]]:
        return [(c, p, r) for c in self.cases for p in c.precisions for r in p.runners]


def write_report(report: Report, path: Path) -> None:
    """Write `report.json`, whole or not at all. Raises `UserError` where the folder cannot be written."""
    write_new(path, (report.model_dump_json(indent=2) + "\n").encode())


def read_report(path: Path) -> Report:
    """Read a report. Raises `UserError` naming the file if it is none of this schema."""
    try:
        return Report.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            "report", str(path), f"is not a report of schema {SCHEMA}", "give a report.json"
        ) from error
