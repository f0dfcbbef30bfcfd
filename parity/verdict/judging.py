"""Verdicts from captures: all runners of a case in one precision, batch by batch.

Verdicts follow from the files of a run alone. A replayed run therefore gives the same verdicts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.case import Case
from parity.coverage.questions import Coverage
from parity.coverage.sizes import asked_sizes
from parity.execution.folder import BatchFolder, CaseFolder
from parity.execution.record import REFERENCE, read_record
from parity.inputs.arrays import NamedInputs, load
from parity.timing.roofline import Rooflines, read_rooflines
from parity.verdict.batch import JudgesBatch, judge_batch
from parity.verdict.judgement import Diagnosis, MetricJudgement, RunnerJudgement
from parity.verdict.merging import is_lost_for_good, merge_batches
from parity.verdict.sensitivity import batches_needed, most_further

if TYPE_CHECKING:
    from parity.verdict.task_metrics.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class PrecisionJudgement:
    """The verdicts on all runners of a case in one precision.

    Attributes:
        precision: Name of the precision.
        runners: By name, over all batches.
        gpu: State of the GPU before and after timing; empty without a GPU.
        rooflines: Least times on the GPU; None without a GPU.
        coverage: Coverage of the port by all batches; None where it is not measured.
    """

    precision: str
    runners: Mapping[str, RunnerJudgement]
    gpu: Mapping[str, str]
    rooflines: Rooflines | None
    coverage: Coverage | None


class PrecisionJudge:
    """Judges a case in one precision from its captures.

    Args:
        case: The case.
        precision: The tested precision.
        folder: Folder of the case, for its exported weights.
        names: Names of the batches that are known at the start, in order.
        recorded: Whether they are recorded data.
        labels_digests: Digest of each batch's labels; empty without labels, and then there are no metrics.
        judge_batch: Judges one batch.
        further: Number of the largest further batch with more rows among these batches; 0 without one.
        keep: Whether captures stay when their batch is judged.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        folder: CaseFolder,
        names: Sequence[str],
        recorded: bool,
        labels_digests: Sequence[str],
        judge_batch: JudgesBatch = judge_batch,
        further: int = 0,
        keep: bool = True,
    ) -> None:
        self._judge_batch = judge_batch
        self._keep = keep
        self._case = case
        self._precision = precision
        self._weights = folder.weights
        self._names = list(names)
        self._further = further
        self._recorded = recorded
        self._labels_digests = labels_digests
        self._batches: list[Mapping[str, RunnerJudgement]] = []
        self._gpu: Mapping[str, str] = {}
        self._rooflines: Rooflines | None = None
        self._evaluation: Evaluation | None = None
        self._coverage = Coverage()
        self._most_further = 0

    def judge(self, batches: Iterable[BatchFolder]) -> None:
        """Judge batches as they come, each one while the next one is made, unless its captures are many.

        Args:
            batches: Folders of batches that are done.

        Raises:
            UserError: See `add`.
        """
        with ThreadPoolExecutor(max_workers=1) as thread:
            judged: Future[None] | None = None
            for batch in batches:
                if judged is not None:
                    judged.result()
                is_large = not self._keep and batch.precision(self._precision.name).is_large
                judged = thread.submit(self._take, batch)
                if is_large:
                    judged.result()
            if judged is not None:
                judged.result()

    def _take(self, batch: BatchFolder) -> None:
        self.add(batch)
        self._done_with(batch)

    def _done_with(self, batch: BatchFolder) -> None:
        if not self._keep:
            shutil.rmtree(batch.precision(self._precision.name).path)

    def add(self, batch: BatchFolder) -> None:
        """Judge the next batch.

        Raises:
            UserError: A file in the batch's folder is missing or damaged.
        """
        number = len(self._batches)
        if not (number or self._recorded):
            self._most_further = most_further(self._case.batch_size_of(load(batch.inputs).arrays))
        folder = batch.precision(self._precision.name)
        diagnosed = {name for before in self._batches for name, j in before.items() if j.verdict == "FAIL"}
        judgements = self._judge_batch(self._case, folder, self._names[number], diagnosed)
        self._batches.append(judgements)
        for name in judgements:
            if (path := folder.runner(name).coverage).exists():
                self._coverage.update(Coverage.read(path))
        self._gpu = self._gpu or read_record(folder.record).gpu
        self._rooflines = self._rooflines or read_rooflines(folder.roofline)
        compared = [name for name, judgement in judgements.items() if judgement.verdict != "NONE"]
        # Without the reference no runner has a verdict.
        if self._labels_digests and REFERENCE in compared:
            if load(batch.labels).digest != self._labels_digests[number]:
                raise UserError("labels", str(batch.labels), "are not those of the run", "save again")
            self._evaluate().add(batch, [name for name in compared if name != REFERENCE])

    def first_failure(self) -> int | None:
        """Number of the first batch in which a runner fails; None if none does."""
        failing = (
            number
            for number, judgements in enumerate(self._batches)
            if any(judgement.verdict == "FAIL" for judgement in judgements.values())
        )
        return next(failing, None)

    def fails_in_appends(self, number: int) -> bool:
        """Whether the first failure of a runner in a batch is an output of the incremental forward."""
        judgements = self._batches[number].values()
        return any(own.verdict == "FAIL" and own.diagnosis.tap in own.checks for own in judgements)

    def batches_needed(self) -> dict[str, int]:
        """Runners with a check that could not notice 1 % so far, and could with more rows.

        The value estimates the number of further batches, each `GROWTH` times as large, that are enough.
        """
        left = self._most_further - self._further
        return {
            name: max(
                batches_needed(tap.min_detectable_error, tap.lasting_limit)
                for tap in runner.taps
                if tap.insensitive
            )
            for name, runner in self._merged().items()
            if runner.verdict == "INSENSITIVE" and not is_lost_for_good(runner, max(0, left))
        }

    def add_more_rows(self, drawn: NamedInputs, batch: BatchFolder) -> None:
        """Judge a further batch, which only some runners ran.

        Args:
            drawn: The batch.
            batch: Its folder.

        Raises:
            UserError: See `add`.
        """
        self._names.append(drawn.name)
        self._further = drawn.further
        self._take(batch)

    def judge_again(self, number: int, batch: BatchFolder) -> None:
        """Judge a batch without labels once more, from captures of all modules alone."""
        folder = batch.precision(self._precision.name)
        self._batches[number] = self._judge_batch(self._case, folder, self._names[number], ())
        self._done_with(batch)

    def _evaluate(self) -> Evaluation:
        if self._evaluation is None:
            # SciPy's statistics and scikit-learn take a second to import, which only labels need.
            from parity.verdict.task_metrics.evaluation import Evaluation

            task = self._case.task(self._weights, self._precision)
            self._evaluation = Evaluation(task, self._precision)
        return self._evaluation

    def judgement(self) -> PrecisionJudgement:
        """The verdicts over all batches so far."""
        runners = {name: self._with_metrics(name, runner) for name, runner in self._merged().items()}
        coverage = asked_sizes(self._coverage) if self._coverage.seen else None
        return PrecisionJudgement(self._precision.name, runners, self._gpu, self._rooflines, coverage)

    def _merged(self) -> dict[str, RunnerJudgement]:
        return merge_batches(self._batches, self._further, self._recorded, self._most_further)

    def _with_metrics(self, name: str, runner: RunnerJudgement) -> RunnerJudgement:
        if self._evaluation is None or runner.verdict == "NONE" or name == REFERENCE:
            return runner
        metrics = self._evaluation.judge(name)
        flagged = [metric for metric in metrics if metric.flagged]
        if not flagged or runner.verdict == "FAIL":
            # A module that diverges says more about the cause and remains the diagnosis.
            return replace(runner, metrics=metrics)
        diagnosis = Diagnosis("metric", text=_moved(flagged))
        return replace(runner, metrics=metrics, verdict="FAIL", diagnosis=diagnosis)


def _moved(flagged: Sequence[MetricJudgement]) -> str:
    """The diagnosis of a port whose tensors pass and whose metrics move."""
    first, *others = flagged
    values = first.values
    assert values is not None
    assert values.interval is not None
    low, high = values.interval
    also = f"; also {', '.join(metric.name for metric in others)}" if others else ""
    return (
        f"every module is within its limit, and {first.name} moves from {values.reference:.6g} to "
        f"{values.port:.6g}: {abs(values.port - values.oracle):.2g} off the oracle's {values.oracle:.6g}, "
        f"limit {values.limit:.2g} (k = {values.k:.3g}, floor = {values.floor:.2g}), and the 95 % interval "
        f"of port - reference is {low:+.2g} to {high:+.2g}, without 0 ({first.rows} rows){also}"
    )
