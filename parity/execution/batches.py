"""The batches of a case in one precision: which of them run, and in which of them modules run alone."""

from __future__ import annotations

import itertools
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from parity.base.precision import Precision
from parity.execution.case_files import write_inputs
from parity.execution.collect import DEFAULT_BUDGET, Progress, collect
from parity.execution.folder import BatchFolder, CaseFolder, PrecisionFolder
from parity.execution.manifest import write_files
from parity.execution.record import TAKES_NO_MORE, Record
from parity.execution.request import Batch, Request, Steps
from parity.execution.scheduler import Worker
from parity.inputs.arrays import NamedInputs, batches_in, poisoned_inputs
from parity.inputs.prepared import PreparedCase
from parity.timing.roofline import write_rooflines

OVERLAPPING = 2
"""Number of batches of recorded data that run at the same time."""


class BatchCollection:
    """All batches of a case in one precision, on models that are loaded once.

    Modules run alone in every batch of recorded data, and in the first batch of a plan.

    Attributes:
        batches: The batches that run in the precision, in order, without those with more rows.

    Args:
        prepared: The case, its inputs saved.
        precision: The tested precision.
        request: The run.
        folder: Folder of the case.
        worker: The runners' processes.
        progress: Called after each runner.
    """

    def __init__(
        self,
        prepared: PreparedCase,
        precision: Precision,
        request: Request,
        folder: CaseFolder,
        worker: Worker,
        progress: Progress,
    ) -> None:
        self._prepared, self._precision, self._request = prepared, precision, request
        self._folder, self._worker, self._progress = folder, worker, progress
        self._names = request.runners_of(prepared.case)
        self.batches = batches_in(prepared.inputs.batches, precision.name, request.precisions)

    def runs_modules_alone(self, number: int) -> bool:
        """Whether modules run alone in a batch whatever its verdict is."""
        return number == 0 or self._prepared.inputs.batches[number].is_recorded

    def collect_all(self) -> Iterator[BatchFolder]:
        """Run the batches that are not done; the first one is timed. Yields each batch's folder when done.

        Batches of recorded data overlap behind the first one: the reference, which the other runners wait
        for, runs on the next batch meanwhile.

        Raises:
            CannotWrite: The captures cannot be written.
        """
        numbers = range(len(self.batches))
        first = self._done(0)
        # Which runners run on a batch of a plan depends on the batch before.
        overlap = self.batches[0].is_recorded and not (
            self._prepared.case.is_live or self._result(0).is_large
        )
        if overlap:
            yield from self._overlapping(first, numbers[1:])
        else:
            yield first
            yield from map(self._done, numbers[1:])

    def _overlapping(self, first: BatchFolder, numbers: Sequence[int]) -> Iterator[BatchFolder]:
        """Yield a batch that is done and run others, `OVERLAPPING` at a time.

        While the caller judges a batch, one fewer runs: their captures take disk space until they are judged.
        """
        left = iter(numbers)
        with ThreadPoolExecutor(max_workers=OVERLAPPING) as threads:
            pending: deque[Future[BatchFolder]] = deque()
            for number in itertools.islice(left, OVERLAPPING - 1):
                pending.append(threads.submit(self._done, number))
            yield first
            for number in left:
                pending.append(threads.submit(self._done, number))
                yield pending.popleft().result()
            for batch in pending:
                yield batch.result()

    def _done(self, number: int) -> BatchFolder:
        """The folder of a batch, which runs if it is not done."""
        if not self._result(number).files.exists():
            self._collect(number, self.runs_modules_alone(number))
        return self._folder.batch(number)

    def collect_more_rows(self, number: int, batch: NamedInputs, names: Sequence[str]) -> BatchFolder:
        """Run some runners on a further batch with every module alone, if that is not done.

        Args:
            number: Number of the batch behind the plan's.
            batch: The batch, which is saved.
            names: The runners.

        Returns:
            The batch's folder.
        """
        folder = self._folder.batch(number)
        write_inputs(batch.inputs, poisoned_inputs(self._prepared.case, batch.inputs), folder)
        if not self._result(number).files.exists():
            self._run(number, names, modules_alone=True)
        return folder

    def collect_with_modules(self, number: int, appends: bool = False) -> BatchFolder:
        """Run a batch once more, with every module alone, and return its folder.

        Args:
            number: Number of the batch.
            appends: Whether the incremental forward also runs with taps.
        """
        self._collect(number, modules_alone=True, appends_tapped=appends)
        return self._folder.batch(number)

    def _result(self, number: int) -> PrecisionFolder:
        return self._folder.batch(number).precision(self._precision.name)

    def _collect(self, number: int, modules_alone: bool, appends_tapped: bool = False) -> None:
        record = self._run(number, self._names, modules_alone, appends_tapped)
        if not self._prepared.inputs.batches[number].is_recorded:
            # Other batches of a plan tell nothing new of a runner that cannot run here. One that hangs would
            # take its whole time in each.
            self._names = tuple(
                name for name in self._names if record.runners[name].status not in TAKES_NO_MORE
            )

    def _covers(self, number: int) -> bool:
        """Whether a batch measures coverage."""
        in_plan = number < len(self._prepared.inputs.batches)
        return in_plan and self._request.covers(self._precision)

    def _run(
        self, number: int, names: Sequence[str], modules_alone: bool, appends_tapped: bool = False
    ) -> Record:
        case, inputs, result = self._prepared.case, self._prepared.inputs, self._result(number)
        shutil.rmtree(result.path, ignore_errors=True)  # an interrupted run may leave a part
        if number == 0:
            write_rooflines(case, self._precision, inputs.typical, result.roofline)
        name = inputs.batches[number].name if 0 < number < len(inputs.batches) else ""
        steps = Steps(
            modules_alone=modules_alone,
            timed=number == 0,
            row_trials=number == 0,
            magnitudes=number == 0,
            covers=self._covers(number),
            appends_tapped=appends_tapped,
            profiles=self._request.profile if number == 0 else None,
        )
        record = collect(
            Batch(
                case,
                self._precision,
                self._folder.batch(number),
                self._folder.weights,
                name,
                is_only_case=self._request.has_one_case,
            ),
            names,
            self._worker.pool,
            self._worker.scheduler,
            self._progress,
            steps,
            self._request.budget or DEFAULT_BUDGET,
        )
        if self._request.save is not None:
            # Last, since runners import code when they need it.
            write_files(result, self._worker.pool.code())
        return record
