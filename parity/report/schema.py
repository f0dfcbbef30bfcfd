"""The schema of a report: the typed data of `report.json`, which every form of a report shows."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from parity.case import CaseReference
from parity.execution.record import BuildRecord

SCHEMA = "parity.report/1"

# JSON has no NaN and no infinity: they are written as text, which every reader can load.
Number = Annotated[
    float,
    BeforeValidator(lambda value: float(value)),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ElementReport(_Part):
    """One of a tap's worst elements: its index and its value in the three results."""

    index: tuple[int, ...]
    oracle: Number
    reference: Number
    port: Number


class VerdictReport(_Part):
    """One verdict with its numbers, as `parity.verdict.rule` defines them. Errors are relative.

    Attributes:
        err_ref_l2, err_port_l2, limit_l2: Euclidean errors of reference and port, and the port's limit.
        err_ref_max, err_port_max, limit_max: The same of the largest element.
        scale_error_ref, scale_error_port, limit_scale_error: The same of the scale error.
        margin: Largest ratio of the port's error to its limit; up to 1 passes.
        min_detectable_error: Smallest relative error that fails; NaN in a FAIL.
        checked, boundary: Numbers of compared elements and of elements left out at a discontinuity.
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


class RooflineReport(_Part):
    """The least time of a module on the GPU, and the ceiling that sets it; see `perf_model.roofline`."""

    seconds: float
    ceiling: Literal["flops", "cache", "memory", "launch"]


class LatencyReport(_Part):
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


class ErrorMapReport(_Part):
    """The places of a module's error, or of changes by garbage in the padding; see `verdict.error_map`."""

    axes: tuple[str, str]
    shape: tuple[int, int]
    cells: tuple[str, ...]


class RoundingReport(_Part):
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


class ModuleReport(_Part):
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
        by_nature: Whether it is above `INSENSITIVE_ABOVE` with any number of rows.
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


class DiagnosisReport(_Part):
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


class MetricReport(_Part):
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


class RowReport(_Part):
    """Differences of rows in one kind of trial; see `parity.verdict.judgement.RowJudgement`."""

    kind: str
    rows: int
    first: str
    largest: Number
    largest_tap: str
    excess: str
    reason: str


class RunnerReport(_Part):
    """One runner in one precision of one case.

    Attributes:
        runner, label: Name of the runner; its description with library and device.
        status, reason: Status at its end, and the reason of another status than OK.
        verdict: NONE if nothing was compared.
        diagnosis: Place of the first divergence.
        modules: In the order in which the reference's modules finish.
        checks: Verdicts on outputs of the incremental forward, by name.
        padding_leak: First tap that changes with the content of the padding; empty if none does.
        observer_difference: Largest absolute change of an output by tapping the modules.
        latency: Times of the whole model; None if it is not timed.
        timing_reason, roofline_reason: Reasons for missing times and rooflines, or empty.
        replay_reasons: Reasons for missing replays, by tap, of the whole model under "".
        peak_bytes: Largest GPU memory of PyTorch's allocator during whole-model runs, weights included.
        builds: Engines of the whole model.
        metrics: Task metrics, if there are labels.
        rows: Differences of rows by kind of trial; only the second run where rows cannot be separated.
    """

    runner: str
    label: str
    status: str
    reason: str
    verdict: Literal["PASS", "INSENSITIVE", "FAIL", "NONE"]
    diagnosis: DiagnosisReport | None = None
    modules: tuple[ModuleReport, ...] = ()
    checks: dict[str, VerdictReport] = {}
    padding_leak: str = ""
    observer_difference: float = 0.0
    latency: LatencyReport | None = None
    timing_reason: str = ""
    roofline_reason: str = ""
    replay_reasons: dict[str, str] = {}
    peak_bytes: int | None = None
    builds: tuple[BuildRecord, ...] = ()
    metrics: tuple[MetricReport, ...] = ()
    rows: tuple[RowReport, ...] = ()


class PrecisionReport(_Part):
    """All runners of a case in one precision."""

    precision: str
    runners: tuple[RunnerReport, ...]
    gpu: dict[str, str] = {}
    """State of the GPU before and after timing: clocks, power, temperature."""


class BatchReport(_Part):
    """One batch: its name, what it asks in words, the digest of its inputs, the precisions that ran it."""

    name: str
    purpose: str
    digest: str
    precisions: tuple[str, ...] = ()


class StreamReport(_Part):
    """One side over a stream of appended items, every step judged; see `parity.studies.streaming`.

    Attributes:
        precision: Name of the precision.
        side: Label of the side: the reference or the port, with library and device.
        steps: Number of judged steps.
        items: Number of items that entered the caches.
        cache_margin, output_margin: Largest error over its limit, of the caches and of the outputs.
        failed: Name of the first tensor that fails, in the last judged step; empty if none does.
        reason: Verdict on this tensor in words.
        explanation: Probable mistake in words, or empty.
    """

    precision: str
    side: str
    steps: int
    items: int
    cache_margin: Number
    output_margin: Number
    failed: str = ""
    reason: str = ""
    explanation: str = ""

    @property
    def status(self) -> Literal["PASS", "FAIL"]:
        return "FAIL" if self.failed else "PASS"


class CaseReport(_Part):
    """One case: its inputs, its weights and its results. `streams` are the judged streams."""

    case: CaseReference
    source: str
    weights_source: str
    weights_digest: str
    labels_digests: tuple[str, ...] = ()
    batches: tuple[BatchReport, ...]
    counts: dict[str, int]
    precisions: tuple[PrecisionReport, ...]
    streams: tuple[StreamReport, ...] = ()


class UnaskedReport(_Part):
    """A question about the port that no input of the run asks in full; see `parity.coverage.questions`.

    Attributes:
        kind: Kind of the question; a function or module that never runs is one question.
        module: Import path of the port's module; empty for sizes and options.
        place: The function, the axis of an argument, or the option.
        line: Number of the line; 0 without one.
        text: The line or expression; empty without one.
        missing: The answers that the run did not give.
        reason: Reason why no input can ask it, as the case states it; empty without one.
    """

    kind: Literal["module", "function", "line", "branch", "outcome", "threshold", "size", "option"]
    module: str = ""
    place: str = ""
    line: int = 0
    text: str = ""
    missing: tuple[str, ...]
    reason: str = ""


class CoverageReport(_Part):
    """What all inputs of a run ask of the port, in one precision.

    Attributes:
        asked, questions: Numbers of questions with all their answers, and of all questions, by kind.
        unasked: The others, in the order of the source.
        excused: Questions that no input can ask, with the reasons.
        reasons: Reasons why a runner has no coverage.
    """

    asked: dict[str, int]
    questions: dict[str, int]
    unasked: tuple[UnaskedReport, ...]
    excused: tuple[UnaskedReport, ...]
    reasons: tuple[str, ...] = ()


class Report(_Part):
    """A whole run.

    Attributes:
        created: Time of the report.
        command: Its command line.
        environment: Machine and libraries of the runners.
        requested_runners: The runners that the user named.
        cases: The results.
        coverage: What the inputs ask of the port; None for a run without a port.
        changed_code: Of a replay, packages whose code is another one than behind the captures.
        exit_code: Exit code of the command.
    """

    schema_version: Literal["parity.report/1"] = SCHEMA
    created: str
    command: str
    environment: dict[str, str]
    requested_runners: tuple[str, ...]
    cases: tuple[CaseReport, ...]
    coverage: CoverageReport | None = None
    changed_code: tuple[str, ...] = ()
    exit_code: int

    def failing_streams(self) -> list[tuple[CaseReport, StreamReport]]:
        return [(case, stream) for case in self.cases for stream in case.streams if stream.failed]

    def runner_reports(self) -> list[tuple[CaseReport, PrecisionReport, RunnerReport]]:
        return [(c, p, r) for c in self.cases for p in c.precisions for r in p.runners]
