"""Times of the runners of one batch, with nothing else running on the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from parity.base.gpu_state import gpu_state
from parity.execution.commands import Commands
from parity.execution.record import REFERENCE, RunnerFailure, RunnerRecord
from parity.execution.request import Batch
from parity.execution.scheduler import RunnerPool, Scheduler
from parity.timing.measure import Replayed
from parity.timing.rounds import InterleavedRounds, NotTimed, RunnerTimes, TimedRuns

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def prepare_timing(batch: Batch, name: str, pool: RunnerPool, scheduler: Scheduler) -> str:
    """Prepare a loaded runner's timing beside the captures of others. Returns the reason for a failure."""
    calls = batch.folder.precision(batch.precision.name).runner(REFERENCE).tapped
    runner = _TimedProcess(pool, name, batch, calls, scheduler.threads_shared)
    try:
        with scheduler.shared():
            runner.put_in_place()
    except NotTimed as failure:
        return str(failure)
    return ""


def time_runners(
    batch: Batch, records: Mapping[str, RunnerRecord], pool: RunnerPool, scheduler: Scheduler
) -> dict[str, str]:
    """Time loaded runners in interleaved rounds, and save the outputs of their last timed runs.

    Args:
        batch: A batch whose calls the reference has recorded.
        records: Records by runner, which receive the times.
        pool: The processes of the runners.
        scheduler: The machine.

    Returns:
        The state of the GPU before and after timing; empty without a GPU.
    """
    folder = batch.folder.precision(batch.precision.name)
    calls = folder.runner(REFERENCE).tapped
    runners = {name: _TimedProcess(pool, name, batch, calls, scheduler.threads_alone) for name in records}
    tapping = [name for name, record in records.items() if record.taps_modules]
    with scheduler.alone():
        rounds = InterleavedRounds(runners, scheduler.units)
        before = _gpu_state()
        rounds.time_models()
        for name, times in rounds.times.items():
            if not times.failure:
                times.failure = runners[name].save(folder.runner(name).timed)
        rounds.time_modules(tapping)
        rounds.time_replays(tapping)
        after = _gpu_state()
    for name, times in rounds.times.items():
        _add_times(records[name], times)
    return {when: state for when, state in (("before timing", before), ("after timing", after)) if state}


@dataclass(frozen=True)
class _TimedProcess:
    """A runner process as `parity.timing.rounds.TimedRunner`."""

    pool: RunnerPool
    name: str
    batch: Batch
    calls: Path
    threads: int

    def prepare(self) -> None:
        self._ask(Commands.start, self.threads)

    def put_in_place(self) -> None:
        self._ask(Commands.prepare_timing, self.batch.folder.inputs, self.calls)

    def save(self, stem: Path) -> str:
        """Save the outputs of the last timed run. Returns the reason for a failure, or nothing."""
        try:
            self._ask(Commands.save_timed, stem)
        except NotTimed as failure:
            return str(failure)
        return ""

    def time(self, repeats: int) -> TimedRuns:
        return self._ask(Commands.time, self.batch.folder.inputs, repeats)

    def time_calls(self, repeats: int) -> dict[str, list[float]]:
        return self._ask(Commands.time_calls, self.batch.folder.inputs, self.calls, repeats)

    def time_replays(self, repeats: int) -> Replayed:
        return self._ask(Commands.time_replays, self.batch.folder.inputs, repeats)

    def time_call_replays(self, repeats: int) -> dict[str, Replayed]:
        return self._ask(Commands.time_call_replays, self.batch.folder.inputs, self.calls, repeats)

    def _ask(
        self,
        command: Callable[Concatenate[Commands, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        try:
            return self.pool.get(self.name, self.batch.precision).request(command, *arguments, **keywords)
        except RunnerFailure as failure:
            raise NotTimed(str(failure)) from failure


def _gpu_state() -> str:
    return ", ".join(f"{name} {value}" for name, value in gpu_state().items())


def _add_times(record: RunnerRecord, times: RunnerTimes) -> None:
    replays = {"": times.replays, **times.module_replays}
    record.seconds = times.seconds
    record.module_seconds = times.module_seconds
    record.replay_seconds = times.replays.seconds
    record.module_replay_seconds = {tap: replay.seconds for tap, replay in times.module_replays.items()}
    record.replay_reasons = {tap: replay.reason for tap, replay in replays.items() if replay.reason}
    record.peak_bytes = times.peak_bytes
    record.timing_reason = times.failure
