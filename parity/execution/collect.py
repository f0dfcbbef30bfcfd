"""One batch in one precision becomes a folder of captures and a record (`parity.execution.folder`).

Verdicts use these files alone, so that a saved run replays identically.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import torch

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.capture.slices import MemoryBudget
from parity.capture.spool import CannotWrite
from parity.capture.store import is_saved
from parity.execution.bounds import OPTION as MEMORY
from parity.execution.bounds import require_memory
from parity.execution.commands import Commands, WorkingBytes
from parity.execution.folder import RunnerFolder
from parity.execution.record import (
    ORACLE,
    REFERENCE,
    BuildRecord,
    MagnitudeRecord,
    Record,
    RowTrialRecord,
    RunnerFailure,
    RunnerRecord,
    Status,
)
from parity.execution.request import Batch, Steps
from parity.execution.scheduler import RunnerPool, Scheduler
from parity.execution.timings import prepare_timing, time_runners
from parity.runners.forms import FORMS

LONGEST_TIMED = 10.0
"""Longest run of the reference that is timed, in seconds: medians and spreads take dozens of runs."""
LARGEST_TIMED = 2**33
"""Largest memory of a run of the reference that is timed on a GPU, in bytes. Several graphs hold it."""
DEFAULT_BUDGET = MemoryBudget()

Progress = Callable[[str], None]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def collect(
    batch: Batch,
    names: Iterable[str],
    pool: RunnerPool,
    scheduler: Scheduler,
    progress: Progress,
    steps: Steps,
    budget: MemoryBudget = DEFAULT_BUDGET,
) -> Record:
    """Run the reference, the oracle and other runners on a batch; save captures and the record.

    Captures of different runners are taken side by side, as many at a time as the machine has room for.
    Timings follow in interleaved rounds, alone on the machine, then profiles.

    Args:
        batch: The batch.
        names: The other runners.
        pool: Their processes.
        scheduler: The machine.
        progress: Called after each runner.
        steps: What is done with the batch.
        budget: Memory that runs may take.

    Raises:
        CannotWrite: The captures cannot be written.
        UserError: The batch needs more memory than the user allows; or its case, the run's only one, has bad
            input that a runner meets. Of several cases, that is the runner's error in the record.
    """
    everyone = [REFERENCE, ORACLE, *(name for name in names if name not in (REFERENCE, ORACLE))]
    collection = _Collection(batch, pool, scheduler, progress, budget, steps)
    with ThreadPoolExecutor(max_workers=len(everyone)) as threads:
        captured = threads.map(collection.capture, everyone)
        records = dict(zip(everyone, captured, strict=True))
    gpu = collection.time(records) if steps.timed else {}
    if steps.profiles is not None:
        collection.profile(records, steps.profiles)
    record = Record(precision=batch.precision.name, runners=records, gpu=gpu)
    write_new(collection.folder.record, record.model_dump_json(indent=1).encode())
    return record


class _Collection:
    """The captures, times and traces of one batch."""

    def __init__(
        self,
        batch: Batch,
        pool: RunnerPool,
        scheduler: Scheduler,
        progress: Progress,
        budget: MemoryBudget,
        steps: Steps,
    ) -> None:
        self.folder = batch.folder.precision(batch.precision.name)
        self._batch = batch
        self._pool = pool
        self._scheduler = scheduler
        self._progress = progress
        self._budget = budget
        self._steps = steps
        self._reference_seconds = 0.0
        self._reference_bytes = 0
        self._oracle_uses_gpu = False
        self._calls = self.folder.runner(REFERENCE).tapped
        # Memory of the whole batch, known when the reference has run; or the reference's failure.
        self._recorded: Future[WorkingBytes] = Future()

    def capture(self, name: str) -> RunnerRecord:
        """Take all captures of one runner, and prepare its timing."""
        with self._pool.turn(name):
            return self._captured(name)

    def _captured(self, name: str) -> RunnerRecord:
        record = RunnerRecord()
        try:
            self._capture(name, record)
        except RunnerFailure as failure:
            record.status, record.reason = failure.status, failure.reason
            self._fail_waiting(name, failure)
        except UserError as error:
            self._fail_waiting(name, RunnerFailure(Status.ERROR, str(error)))
            is_of_run = isinstance(error, CannotWrite) or error.field == MEMORY
            if self._batch.is_only_case or is_of_run:
                raise self._told(error, name) from error
            # The other cases of the run have verdicts of their own.
            record.status, record.reason = Status.ERROR, str(error)
        if self._steps.timed and name in self._working({name: record}) and not self._why_untimed():
            record.timing_reason = prepare_timing(self._batch, name, self._pool, self._scheduler)
        self._progress(f"{self._batch.case.name} {self._batch.precision.name}: {name}")
        return record

    def _told(self, error: UserError, name: str) -> UserError:
        """A runner's error with its place in a run, which may be of many cases."""
        case, batch = self._batch.case, self._batch.name
        is_told = case.is_live or case.name in str(error)
        place = [] if is_told else [f"{case.name} {self._batch.precision.name}, {name}"]
        place += [f"batch {batch}"] if batch else []
        return error.at(", ".join(place)) if place and not isinstance(error, CannotWrite) else error

    def _fail_waiting(self, name: str, failure: RunnerFailure) -> None:
        """Pass the reference's failure to the runners that wait for its calls."""
        if name == REFERENCE and not self._recorded.done():
            self._recorded.set_exception(failure)

    def _capture(self, name: str, record: RunnerRecord) -> None:
        # A runner that fails before it has told its label has its name in the report.
        record.label = name
        abilities = self._ask(name, Commands.start, self._scheduler.threads_shared)
        record.label = abilities.label
        record.taps_modules, record.appends = abilities.taps_modules, abilities.appends
        batch, folder = self._batch, self.folder.runner(name)
        case = batch.case if batch.case.is_live else batch.case.reference
        record.sources = self._ask(name, Commands.load, case, batch.precision, batch.weights)
        inputs = batch.folder.inputs
        if abilities.builds:
            builds = self._ask(name, Commands.build, inputs, folder.path)
            record.builds = [BuildRecord(**facts) for facts in builds]
        needed = self._record_calls() if name == REFERENCE else self._wait_for_calls()
        if name == ORACLE:
            self._oracle_uses_gpu = self._request(name, Commands.place_oracle, inputs)
            record.label = self._ask(name, Commands.start, self._scheduler.threads_shared).label
        if name != REFERENCE and record.taps_modules:
            with _step(record, "the run with taps"):
                self._ask(name, Commands.run_tapped, inputs, folder.tapped, self._budget, self._calls)
        if record.appends:
            room = partial(self._room_for, needed.appending)
            with _step(record, "the appends"):
                self._ask_in(room, name, Commands.run_incremental, inputs, folder.incremental)
                if self._steps.appends_tapped:
                    # They tell the place of a known failure, and are no verdict on the port.
                    with suppress(RunnerFailure):
                        self._ask_in(room, name, Commands.run_appending, inputs, folder.appending)
        if name != ORACLE:
            room = partial(self._room_for, needed.forward)
            with _step(record, "the run"):
                seconds = self._ask_in(room, name, Commands.run, inputs, folder.untapped)
                if name == REFERENCE:
                    self._reference_seconds = seconds
            if record.taps_modules and batch.folder.poisoned.exists():
                self._run_poisoned(record, name, folder, needed)
            if self._steps.row_trials:
                self._run_row_trials(record, name, folder, needed)
        if record.taps_modules and name != REFERENCE and self._steps.modules_alone:
            arguments = (inputs, self._calls, folder.isolated, self._budget)
            record.problems = self._ask(name, Commands.run_isolated, *arguments)
            if self._steps.magnitudes and abilities.measures_coverage and name not in FORMS:
                with _step(record, "the run at other magnitudes"):
                    found = self._ask(name, Commands.run_magnitudes, inputs, self._calls)
                    record.magnitudes = [MagnitudeRecord(**vars(trial)) for trial in found]
        # Engines are built of the graphs of another runner.
        if self._steps.covers and abilities.measures_coverage and not abilities.builds:
            self._cover(record, name, folder)

    def _cover(self, record: RunnerRecord, name: str, folder: RunnerFolder) -> None:
        """Measure what the batch asks of the port. A failure is no verdict on the port."""
        try:
            self._ask(name, Commands.coverage, self._batch.folder.inputs, self._calls, folder.coverage)
        except CannotWrite:
            raise
        except (RunnerFailure, UserError) as failure:
            told = failure.reason if isinstance(failure, RunnerFailure) else str(failure)
            is_told = told in record.reason
            model = "reference" if name == REFERENCE else "port"
            record.coverage_reason = f"the {model} does not run" if is_told else str(failure)

    def _record_calls(self) -> WorkingBytes:
        """Run the reference with taps, which the other runners wait for."""
        arguments = (self._batch.folder.inputs, self._calls, self._budget)
        needed = self._ask_in(self._scheduler.recording, REFERENCE, Commands.record, *arguments)
        require_memory(self._budget, needed.largest)
        self._reference_bytes = needed.forward
        self._recorded.set_result(needed)
        return needed

    def _wait_for_calls(self) -> WorkingBytes:
        try:
            return self._recorded.result()
        except RunnerFailure as failure:
            # Nothing can be judged without the reference. Where it is unavailable, nothing is broken.
            unavailable = failure.status is Status.UNAVAILABLE
            status = Status.UNAVAILABLE if unavailable else Status.ERROR
            raise RunnerFailure(status, f"the reference did not run ({failure})") from failure

    def _run_poisoned(
        self, record: RunnerRecord, name: str, folder: RunnerFolder, needed: WorkingBytes
    ) -> None:
        # The reference always runs the whole batch.
        calls = None if name == REFERENCE else self._calls
        room = partial(self._room_for, needed.forward) if name == REFERENCE else self._scheduler.shared
        clean = folder.tapped if is_saved(folder.tapped) else None
        arguments = (self._batch.folder.poisoned, folder.poisoned, self._budget, calls, clean)
        with _step(record, "the run with garbage in the padding"):
            self._ask_in(room, name, Commands.run_tapped, *arguments)

    def _run_row_trials(
        self, record: RunnerRecord, name: str, folder: RunnerFolder, needed: WorkingBytes
    ) -> None:
        # The reference, and a runner without taps, always run the whole batch.
        in_parts = record.taps_modules and name != REFERENCE
        calls = self._calls if in_parts else None
        room = self._scheduler.shared if in_parts else partial(self._room_for, needed.forward)
        captured = folder.tapped if record.taps_modules else folder.untapped
        arguments = (self._batch.folder.inputs, captured, self._budget, calls)
        with _step(record, "the run of other batches of the rows"):
            trials = self._ask_in(room, name, Commands.run_row_trials, *arguments)
            record.row_trials = [RowTrialRecord(**vars(trial)) for trial in trials]

    def _part(self, name: str) -> AbstractContextManager[None]:
        """The part of the machine for a command of a runner."""
        is_beside = name == ORACLE and not self._oracle_uses_gpu
        return self._scheduler.without_gpu() if is_beside else self._scheduler.shared()

    def _room_for(self, needed: int) -> AbstractContextManager[None]:
        """The part of the machine for a run of the whole batch that takes so many bytes."""
        # On a GPU only a bound of the user is about the memory that such a run takes of the host.
        counts = not self._has_gpu() or math.isfinite(self._budget.memory)
        alone = counts and needed > self._budget.alone_bytes
        return self._scheduler.alone() if alone else self._scheduler.shared()

    def _ask(
        self,
        name: str,
        command: Callable[Concatenate[Commands, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        return self._ask_in(partial(self._part, name), name, command, *arguments, **keywords)

    def _ask_in(
        self,
        room: Callable[[], AbstractContextManager[None]],
        name: str,
        command: Callable[Concatenate[Commands, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        """A command in a part of the machine; where others left it no memory of the GPU, again alone."""
        process = self._pool.get(name, self._batch.precision)
        try:
            with room():
                return process.request(command, *arguments, **keywords)
        except RunnerFailure as failure:
            if failure.status is not Status.OUT_OF_MEMORY or not (self._has_gpu() and process.alive):
                raise
        with self._scheduler.alone():
            return process.request(command, *arguments, **keywords)

    def _request(
        self,
        name: str,
        command: Callable[Concatenate[Commands, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        return self._pool.get(name, self._batch.precision).request(command, *arguments, **keywords)

    def time(self, records: dict[str, RunnerRecord]) -> dict[str, str]:
        """Time every runner that works, unless `_why_untimed`. Returns the state of the GPU."""
        if reason := self._why_untimed():
            for record in records.values():
                record.timing_reason = reason
            return {}
        prepared = {
            name: record for name, record in self._working(records).items() if not record.timing_reason
        }
        return time_runners(self._batch, prepared, self._pool, self._scheduler)

    def _has_gpu(self) -> bool:
        return torch.cuda.is_available()

    def _why_untimed(self) -> str:
        """The reason why nothing is timed, or an empty text."""
        if self._reference_seconds > LONGEST_TIMED:
            return (
                f"one run of the reference takes {self._reference_seconds:.0f} s, and nothing is timed "
                f"that takes more than {LONGEST_TIMED:.0f} s"
            )
        if self._has_gpu() and self._reference_bytes > LARGEST_TIMED:
            return (
                f"one run of the reference holds {self._reference_bytes / 2**30:.0f} GiB, and nothing is "
                f"timed on a GPU that holds more than {LARGEST_TIMED / 2**30:.0f} GiB"
            )
        return ""

    def _working(self, records: dict[str, RunnerRecord]) -> dict[str, RunnerRecord]:
        return {
            name: record for name, record in records.items() if record.status is Status.OK and name != ORACLE
        }

    def profile(self, records: dict[str, RunnerRecord], folder: Path) -> None:
        """Write a trace of every runner that works, alone on the machine."""
        folder.mkdir(parents=True, exist_ok=True)
        batch = self._batch
        with self._scheduler.alone():
            for name in self._working(records):
                path = folder / f"{batch.case.name}.{batch.precision.name}.{name}.json"
                try:
                    self._request(name, Commands.profile, batch.folder.inputs, self._calls, path)
                except RunnerFailure as failure:
                    raise UserError(
                        "--profile", str(path), f"cannot be made: {failure}", f"run without {name}"
                    ) from failure


@contextmanager
def _step(record: RunnerRecord, name: str) -> Iterator[None]:
    """One of several steps: after an error the others still tell which module is to blame."""
    try:
        yield
    except RunnerFailure as failure:
        if failure.status is not Status.ERROR:
            raise
        record.status = Status.ERROR
        record.reason = record.reason or f"{name} raises {failure.reason}"
    except UserError as error:
        # Behind a step that failed, its capture is missing.
        if record.status is Status.OK or isinstance(error, CannotWrite):
            raise
