"""The schema of a report: the typed data of `report.json`, which every form of a report shows."""

from __future__ import annotations

from typing import Literal

from parity.case import CaseReference
from parity.execution.record import ORACLE, PORT, REFERENCE, BuildRecord, Status
from parity.report.schema_modules import (
    DiagnosisReport,
    LatencyReport,
    MetricReport,
    ModuleReport,
    Number,
    Part,
    RowReport,
    VerdictReport,
)

SCHEMA = "parity.report/1"


class RunnerReport(Part):
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


class PrecisionReport(Part):
    """All runners of a case in one precision."""

    precision: str
    runners: tuple[RunnerReport, ...]
    gpu: dict[str, str] = {}
    """State of the GPU before and after timing: clocks, power, temperature."""


class BatchReport(Part):
    """One batch: its name, what it asks in words, the digest of its inputs, the precisions that ran it."""

    name: str
    purpose: str
    digest: str
    precisions: tuple[str, ...] = ()


class StreamReport(Part):
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

    @property
    def library(self) -> str:
        """The side without its device."""
        return self.side.partition(" ")[0]


class CaseReport(Part):
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


class UnaskedReport(Part):
    """A question about the port, or a bound of the reference, that no input of the run asks in full.

    See `parity.coverage.questions`.

    Attributes:
        kind: Kind of the question; a function or module that never runs is one question.
        module: Import path of the port's module, or of the reference's for a bound; empty for sizes and
            options.
        place: The function, the axis of an argument, or the option.
        line: Number of the line; 0 without one.
        text: The line or expression; empty without one.
        missing: The answers that the run did not give.
        reason: Reason why no input can ask it, as the case states it; empty without one.
    """

    kind: Literal[
        "module", "function", "line", "branch", "outcome", "threshold", "bound", "size", "weight", "option"
    ]
    module: str = ""
    place: str = ""
    line: int = 0
    text: str = ""
    missing: tuple[str, ...]
    reason: str = ""


class CoverageReport(Part):
    """The coverage of the port by all inputs of a run, in one precision.

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


class Report(Part):
    """A whole run.

    Attributes:
        created: Time of the report.
        command: Its command line.
        environment: Machine and libraries of the runners.
        requested_runners: The runners that the user named.
        cases: The results.
        coverage: Coverage of the port by the inputs; None for a run without a port.
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

    @property
    def needed_runners(self) -> frozenset[str]:
        """The runners whose results a run needs: those that the user named, reference, oracle and port."""
        return frozenset((*self.requested_runners, REFERENCE, ORACLE, PORT))

    def code_of_results(self) -> int:
        """0 all pass; 1 a verdict, stream or runner fails or is INSENSITIVE; 2 a needed runner is missing."""
        if self.failing_streams():
            return 1
        entries = [entry for _, _, entry in self.runner_reports()]
        harmless = (Status.OK, Status.UNAVAILABLE, Status.BUILT)
        if any(entry.verdict in ("FAIL", "INSENSITIVE") or entry.status not in harmless for entry in entries):
            return 1
        needed = self.needed_runners
        if any(entry.status == Status.UNAVAILABLE.value and entry.runner in needed for entry in entries):
            return 2
        # A run without a judgement proves only that its engines can be built.
        judged = [
            entry
            for entry in entries
            if entry.status == Status.BUILT or (entry.verdict == "PASS" and entry.runner != REFERENCE)
        ]
        return 0 if judged else 1
