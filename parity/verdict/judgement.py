"""The data of verdicts: taps, diagnoses, metrics, runners."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity.execution.record import RunnerRecord, Status
from parity.verdict.patterns import FailedTensor
from parity.verdict.row_errors import RowErrors
from parity.verdict.rule import Verdict
from parity.verdict.sensitivity import Rows

MODEL_OUTPUT = "model output"
"""Kind of a tap that is an output of the entry point."""


@dataclass(frozen=True, slots=True)
class ErrorMap:
    """Levels of error over limit on two axes of a tensor; see `parity.verdict.error_map`.

    Attributes:
        axes: Names of the row axis and of the column axis: "batch", "position" or "axis n".
        shape: Sizes of these axes of the tensor. A cell covers several elements of long axes.
        cells: A string for each row of cells, a character for each cell.
    """

    axes: tuple[str, str]
    shape: tuple[int, int]
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TapJudgement:
    """The verdicts on one tap of one runner.

    Attributes:
        tap: Name of the tap.
        path: Path of its module.
        kind: Class of its module, or `MODEL_OUTPUT`.
        accumulated: Verdict inside the model; None if there is none, such as where every element depends on a
            discontinuity that the port takes otherwise.
        isolated: Verdict of the module alone on the reference's inputs; None if it cannot run alone, or as
            above.
        gap: Reason why the runner has no such module; empty if it has one.
        batch: Name of the batch with these verdicts, the worst of all.
        min_detectable_error: Smallest relative error that either verdict detects in any batch; NaN in a FAIL.
        lasting_limits: Lasting part of each verdict's limit, by name, in the batch that detects most.
        rows: Compared rows.
        insensitive: Whether the tap passes and detects too little, and more rows could change it.
        by_nature: Whether the tap passes and detects too little in any batch that a run draws.
        error_maps: Maps by "isolated", "accumulated" and "poisoned", of taps that are worth a look.
        notes: Facts about the module's limit that decide nothing, in words.
        row_errors: Errors by row of the module alone, over all batches; None without a PASS.
    """

    tap: str
    path: str
    kind: str
    accumulated: Verdict | None
    isolated: Verdict | None
    gap: str = ""
    batch: str = ""
    min_detectable_error: float = math.nan
    lasting_limits: Mapping[str, float] = field(default_factory=dict)
    rows: Rows = Rows()
    insensitive: bool = False
    by_nature: bool = False
    error_maps: Mapping[str, ErrorMap] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    row_errors: RowErrors | None = None

    @classmethod
    def of(
        cls, tap: str, path: str, kind: str, accumulated: Verdict | None, isolated: Verdict | None = None
    ) -> TapJudgement:
        """The judgement on one batch. Without a verdict it detects no error."""
        named = {"isolated": isolated, "accumulated": accumulated}
        verdicts = {name: verdict for name, verdict in named.items() if verdict is not None}
        detectable = min((verdict.min_detectable_error for verdict in verdicts.values()), default=math.inf)
        passed = all(verdict.passed for verdict in verdicts.values())
        return cls(
            tap,
            path,
            kind,
            accumulated,
            isolated,
            min_detectable_error=detectable if passed else math.nan,
            row_errors=isolated.row_errors if isolated is not None else None,
            lasting_limits={name: verdict.lasting_limit for name, verdict in verdicts.items()},
            rows=next((verdict.rows for verdict in verdicts.values()), Rows()),
        )

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by "isolated" and "accumulated"."""
        named = {"isolated": self.isolated, "accumulated": self.accumulated}
        return {name: verdict for name, verdict in named.items() if verdict is not None}

    @property
    def lasting_limit(self) -> float:
        """The smallest lasting part of a limit: one verdict that detects an error is enough."""
        return min(self.lasting_limits.values(), default=0.0)

    @property
    def passed(self) -> bool:
        return bool(self.gap) or all(verdict.passed for verdict in self.verdicts.values())

    @property
    def is_tolerated(self) -> bool:
        """Whether a tolerance of the case hides a failure."""
        return any(verdict.tolerated for verdict in self.verdicts.values())

    @property
    def status(self) -> Literal["PASS", "INSENSITIVE", "FAIL", "GAP"]:
        if self.gap:
            return "GAP"
        if not self.passed:
            return "FAIL"
        return "INSENSITIVE" if self.insensitive else "PASS"

    @property
    def margin(self) -> float:
        """The larger margin of both verdicts; NaN counts as infinite."""
        margins = [verdict.margin for verdict in self.verdicts.values()]
        return max((math.inf if math.isnan(margin) else margin for margin in margins), default=0.0)


SHAPE = "shape"
"""Beginning of the text of an argument of another shape."""


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """An argument that the port passes otherwise than the reference.

    Attributes:
        name: Path of the argument, its parameter first.
        kind: "value": other elements, or another constant; "absent": a tensor on one side only;
            "signature": a tensor that the port's module has no parameter for; "form": another shape or type;
            "broadcast": another shape with other elements, where one shape broadcasts to the other.
        text: The difference in words.
        is_exact: Whether the elements are integers or booleans.
        explanation: Patterns that explain the tensor, in words.
        failed: The tensor beyond its limit; None of another argument.
    """

    name: str
    kind: Literal["value", "absent", "signature", "form", "broadcast"]
    text: str
    is_exact: bool = False
    explanation: tuple[str, ...] = ()
    failed: FailedTensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CallJudgement:
    """A call that receives other arguments than the reference's, though every module before it is right.

    Attributes:
        call: Tap name of the call.
        parent: Path of the module of the port whose code makes the arguments; empty for that of the entry.
        differing: The arguments that differ, in the order of the signature.
        equal: Names of the other arguments.
        behind: Tap whose tolerated error may reach the arguments, or empty.
    """

    call: str
    parent: str
    differing: tuple[ArgumentDifference, ...]
    equal: tuple[str, ...] = ()
    behind: str = ""

    @property
    def wrong(self) -> ArgumentDifference | None:
        """The first argument with another value, or without one; None if no caller makes a difference.

        A caller has no choice of a module's parameters, and of the form that they ask for.
        """
        return next((own for own in self.differing if own.kind in ("value", "absent")), None)

    @property
    def not_compared(self) -> list[str]:
        """Names of the arguments that the port's module takes in another form, or has no parameter for.

        A name with another shape has both shapes behind it.
        """
        return [
            f"{own.name} ({own.text})" if own.text.startswith(SHAPE) else own.name
            for own in self.differing
            if own.kind in ("form", "signature")
        ]

    @property
    def is_wrong_by_itself(self) -> bool:
        """Whether integers or booleans differ, which needs no other failure."""
        return any(argument.is_exact for argument in self.differing)

    def text(self) -> str:
        """The most telling difference, and the other arguments, in words."""
        telling = self.wrong or self.differing[0]
        others = [argument.name for argument in self.differing if argument is not telling]
        also = f"; also another {', '.join(others)}" if others else ""
        equal = (
            f"; {', '.join(self.equal)} {'is' if len(self.equal) == 1 else 'are'} equal" if self.equal else ""
        )
        return f"receives another {telling.name}: {telling.text}{also}{equal}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The place where a runner diverges first.

    Attributes:
        kind: "none"; "module": a module fails on its own; "amplification": every module passes on its own
            and an error grows inside the model; "between": the code between modules is wrong; "check": a
            check other than the taps fails; "metric": a task metric moves; "insensitive": checks detect too
            little.
        tap: Tap of the module; name of the check; empty for the whole model.
        text: The diagnosis in words.
        amplification: Ratio of the error inside the model to the error alone; None for other kinds.
        explanation: Patterns that explain the wrong tensor, in words.
        batch: Name of the batch.
        code: Path of the module whose code between other modules is wrong, empty for the code of the entry;
            None where no such code is known.
        argument: Name of the argument that this code makes; empty for a result.
        source: File and line of the port's code, of the nearest module that is not a library's; empty if
            unknown.
    """

    kind: Literal["none", "module", "amplification", "between", "check", "metric", "insensitive"] = "none"
    tap: str = ""
    text: str = ""
    amplification: float | None = None
    explanation: tuple[str, ...] = ()
    batch: str = ""
    code: str | None = None
    argument: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class MetricValues:
    """Values of one task metric, its limit and its interval, over all rows of all batches.

    Attributes:
        oracle, reference, port: Values of the metric.
        interval: 95 % paired-bootstrap interval of port - reference; None if it is undefined.
        no_interval: Reason for a missing interval, or empty.
        k, floor: Parts of the limit.
        limit: Largest |port - oracle|, k * |reference - oracle| + floor.
        flagged: Whether the port exceeds the limit and the interval excludes 0.
    """

    oracle: float
    reference: float
    port: float
    interval: tuple[float, float] | None
    no_interval: str
    k: float
    floor: float
    limit: float
    flagged: bool

    @property
    def difference(self) -> float:
        return self.port - self.reference


@dataclass(frozen=True, slots=True)
class MetricJudgement:
    """One task metric of a runner.

    Attributes:
        name: Name of the metric.
        rows: Number of rows.
        reason: Reason why there are no values, or empty.
        values: The values; None for a reason.
    """

    name: str
    rows: int
    reason: str = ""
    values: MetricValues | None = None

    @property
    def flagged(self) -> bool:
        return self.values is not None and self.values.flagged


@dataclass(frozen=True, slots=True)
class RowJudgement:
    """The differences of rows in one kind of trial; see `parity.capture.rows`.

    Attributes:
        kind: Value of the kind; it completes "a row ...".
        rows: Number of compared rows.
        first: First tap whose bits differ; empty if all are equal.
        largest: Largest difference of an element, relative to the largest element of the tap in the oracle;
            infinite for a difference from an oracle of zeros.
        largest_tap: Tap with the largest difference; empty without one.
        excess: Tap with a difference that two results within the limit cannot have, or empty.
        reason: The excess in words, or empty.
    """

    kind: str
    rows: int
    first: str = ""
    largest: float = 0.0
    largest_tap: str = ""
    excess: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunnerJudgement:
    """The verdicts on one runner of a case in one precision.

    Attributes:
        record: Label, measured times and engines of the runner, in its first batch or in the first one
            without a verdict.
        status: Status of the runner at its end.
        reason: Reason of another status than OK.
        verdict: NONE if nothing was compared.
        diagnosis: Place of the first divergence; None if nothing was compared.
        taps: In the order in which the reference's modules finish.
        checks: Verdicts on outputs of the incremental forward, by name.
        padding_leak: First tap that changes with the content of the padding; empty if none does.
        observer_difference: Largest absolute change of an output by tapping the modules.
        metrics: Task metrics, if there are labels.
        rows: Differences of rows by kind of trial; only the second run where rows cannot be separated.
    """

    record: RunnerRecord
    status: Status
    reason: str
    verdict: Literal["PASS", "INSENSITIVE", "FAIL", "NONE"]
    diagnosis: Diagnosis | None = None
    taps: tuple[TapJudgement, ...] = ()
    checks: Mapping[str, Verdict] = field(default_factory=dict)
    padding_leak: str = ""
    observer_difference: float = 0.0
    metrics: tuple[MetricJudgement, ...] = ()
    rows: tuple[RowJudgement, ...] = ()
