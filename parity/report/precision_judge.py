"""All batches of a case in one precision: verdicts batch by batch, and metrics over all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cases.registry import get_family
from configs import CaseConfig
from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.execution.folder import BatchFolder, CaseFolder
from parity.execution.record import REFERENCE, read_record
from parity.inputs.arrays import load
from parity.report.schema import DiagnosisReport, MetricReport, RunnerReport
from parity.timing.roofline import with_limits
from parity.verdict.judging import judge_batch, merge_batches

if TYPE_CHECKING:
    from parity.verdict.task_metrics.evaluation import Evaluation


class PrecisionJudge:
    """Judges a case from its captures, which may be removed as soon as their batch has been added.

    Args:
        case: The case that was run.
        precision: The tested precision.
        folder: The case's folder, for its exported weights.
        labels_digests: One for each batch; none if there are no labels, and then there are no metrics.

    Attributes:
        gpu: The GPU's state before and after timing, of the first batch, which is the one that is timed.
    """

    def __init__(
        self, case: CaseConfig, precision: Precision, folder: CaseFolder, labels_digests: Sequence[str]
    ) -> None:
        self._case = case
        self._precision = precision
        self._weights = folder.weights
        self._labels_digests = labels_digests
        self._judged: list[Mapping[str, RunnerReport]] = []
        self.gpu: dict[str, str] = {}
        self._evaluation: Evaluation | None = None

    def add(self, batch: BatchFolder) -> None:
        """Judge the next batch, in its folder. Raises `UserError`: a file of it is missing or damaged."""
        number = len(self._judged)
        folder = batch.precision(self._precision.name)
        reports = with_limits(judge_batch(self._case, folder, number), folder)
        self._judged.append(reports)
        self.gpu = self.gpu or read_record(folder.record).gpu
        answered = [name for name, report in reports.items() if report.verdict != "NONE"]
        # Without the reference there is no measure, and nobody has a verdict.
        if self._labels_digests and REFERENCE in answered:
            if load(batch.labels).digest != self._labels_digests[number]:
                raise UserError("labels", str(batch.labels), "are not those of the run", "save again")
            self._evaluating().add(batch, [name for name in answered if name != REFERENCE])

    def _evaluating(self) -> Evaluation:
        if self._evaluation is None:
            # SciPy and scikit-learn take a second to import, which runs without labels need not wait for.
            from parity.verdict.task_metrics.evaluation import Evaluation

            family = get_family(self._case.family)
            task = family.task(self._case.model, self._weights, self._precision)
            self._evaluation = Evaluation(task, self._precision)
        return self._evaluation

    def reports(self) -> tuple[RunnerReport, ...]:
        """A report for each runner, over all batches."""
        return tuple(self._with_metrics(report) for report in merge_batches(self._judged))

    def _with_metrics(self, report: RunnerReport) -> RunnerReport:
        if self._evaluation is None or report.verdict == "NONE" or report.runner == REFERENCE:
            return report
        metrics = self._evaluation.report(report.runner)
        flagged = [metric for metric in metrics if metric.flagged]
        update: dict[str, object] = {"metrics": metrics}
        if flagged and report.verdict != "FAIL":
            # A module that diverges says more about the cause, and keeps its place.
            text = _moved(flagged)
            found = DiagnosisReport(kind="metric", tap="", text=text, amplification=None, batch=0)
            update |= {"verdict": "FAIL", "diagnosis": found}
        return report.model_copy(update=update)


def _moved(flagged: Sequence[MetricReport]) -> str:
    """What to tell the user of a port that passes tensor by tensor."""
    first, *others = flagged
    low, high = first.interval or ()
    also = f"; also {', '.join(metric.name for metric in others)}" if others else ""
    return (
        f"every module is within its limit, and {first.name} moves from {first.reference:.6g} to "
        f"{first.port:.6g}: {abs(first.port - first.oracle):.2g} off the oracle's {first.oracle:.6g}, limit "
        f"{first.limit:.2g} (k = {first.k:.3g}, floor = {first.floor:.2g}), and the 95 % interval of "
        f"port - reference is {low:+.2g} to {high:+.2g}, without 0 ({first.rows} rows){also}"
    )
