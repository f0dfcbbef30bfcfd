"""One batch in one precision becomes a folder of captures and a record (`parity.execution.folder`).

Verdicts use these files alone (`parity.verdict.judging`), so that a saved run replays identically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.gpu_state import gpu_state
from parity.base.precision import Precision
from parity.capture.slices import Limits
from parity.capture.spool import CannotWrite
from parity.capture.store import is_saved
from parity.case import Case
from parity.execution.folder import BatchFolder, CaseFolder, RunnerFolder
from parity.execution.record import (
    ORACLE,
    REFERENCE,
    BuildRecord,
    Record,
    RunnerFailure,
    RunnerRecord,
    Status,
)
from parity.execution.scheduler import Machine, Runners
from parity.inputs.arrays import CaseInputs, save
from parity.timing import rounds as latency

LONGEST_TIMED = 10.0
"""Seconds of the reference's run from which on nobody is timed: medians and spreads take dozens of runs."""
DEFAULT_LIMITS = Limits()

Progress = Callable[[str], None]


def collect(
    case: Case,
    precision: Precision,
    names: Iterable[str],
    folder: BatchFolder,
    weights: Path,
    runners: Runners,
    machine: Machine,
    timed: bool,
    progress: Progress,
    limits: Limits = DEFAULT_LIMITS,
    profile: Path | None = None,
) -> Record:
    """Run the reference, the oracle and `names` on the inputs in `folder`; save captures and the record.

    Captures of different runners are made side by side, as many at a time as the machine has room for;
    timings are taken afterwards, alone on the machine, runner by runner in turns; then profiles, where a
    folder for them is given.

    Raises:
        CannotWrite: The captures cannot be written.
    """
    everyone = [REFERENCE, ORACLE, *(name for name in names if name not in (REFERENCE, ORACLE))]
    session = _Session(case, precision, folder, weights, runners, machine, progress, limits)
    with ThreadPoolExecutor(max_workers=len(everyone)) as pool:
        records = dict(zip(everyone, pool.map(session.capture, everyone), strict=True))
    if timed:
        session.time(records)
    if profile is not None:
        session.profile(records, profile)
    record = Record(precision=precision.name, runners=records, gpu=session.gpu)
    write_new(folder.precision(precision.name).record, record.model_dump_json(indent=1).encode())
    return record


class _Session:
    """One batch in one precision while its captures are being made."""

    def __init__(
        self,
        case: Case,
        precision: Precision,
        folder: BatchFolder,
        weights: Path,
        runners: Runners,
        machine: Machine,
        progress: Progress,
        limits: Limits,
    ) -> None:
        self._limits = limits
        # What the whole batch takes, known when the reference has run.
        self._forward_bytes = self._appending_bytes = 0
        self._reference_seconds = 0.0
        self._case = case
        self._precision = precision
        self._folder = folder.precision(precision.name)
        self._weights = weights
        self._runners = runners
        self._machine = machine
        self._progress = progress
        self._inputs = str(folder.inputs)
        self.gpu: dict[str, str] = {}
        # Set to the stem of the reference's capture with its calls, or to the reference's failure.
        self._calls: Future[str] = Future()

    def _ask(self, name: str, command: str, *arguments: object) -> Any:
        with self._machine.shared():
            return self._request(name, command, *arguments)

    def _asking(self, needed: int) -> Callable[..., Any]:
        """How to ask for what runs the whole batch at once and takes so many bytes."""
        return self._ask_alone if needed > self._limits.alone_bytes else self._ask

    def _ask_alone(self, name: str, command: str, *arguments: object) -> Any:
        with self._machine.alone():
            return self._request(name, command, *arguments)

    def _request(self, name: str, command: str, *arguments: object) -> Any:
        return self._runners.get(name, self._precision).request(command, *arguments)

    def capture(self, name: str) -> RunnerRecord:
        record = RunnerRecord()
        try:
            self._capture(name, record)
        except RunnerFailure as failure:
            record.status, record.reason = failure.status, failure.reason
            self._release(name, failure)
        except CannotWrite as error:
            self._release(name, RunnerFailure(Status.ERROR, str(error)))
            raise
        self._progress(f"{self._case.name} {self._precision.name}: {name}")
        return record

    def _release(self, name: str, failure: RunnerFailure) -> None:
        """Lets go those who wait for the reference's calls, which will not come."""
        if name == REFERENCE and not self._calls.done():
            self._calls.set_exception(failure)

    def _capture(self, name: str, record: RunnerRecord) -> None:
        # The reference's name stands in the row of a runner that never gets to say its own.
        record.label = name
        started = self._ask(name, "start", self._machine.threads_shared, self._limits)
        record.label = started["label"]
        record.taps_modules, record.appends = started["taps_modules"], started["appends"]
        self._ask(
            name, "load", self._case.reference.model_dump_json(), self._precision.name, str(self._weights)
        )
        folder = self._folder.runner(name)
        if started["builds"]:
            built = self._ask(name, "build", self._inputs, str(folder.path))
            record.builds = [BuildRecord(**facts) for facts in built]
        tapped = str(folder.tapped)
        calls = self._measured(tapped) if name == REFERENCE else self._recorded()
        if name != REFERENCE and record.taps_modules:
            self._try(self._ask, record, name, "run_tapped", self._inputs, tapped, False, calls)
        if record.appends:
            ask = self._asking(self._appending_bytes)
            self._try(ask, record, name, "run_incremental", self._inputs, str(folder.incremental))
        whole = self._asking(self._forward_bytes)
        if name != ORACLE:
            seconds = self._try(whole, record, name, "run", self._inputs, str(folder.untapped))
            if name == REFERENCE:
                self._reference_seconds = seconds or 0.0
        if record.taps_modules and name != ORACLE and self._folder.batch.poisoned.exists():
            self._run_poisoned(record, name, folder, None if name == REFERENCE else calls)
        if record.taps_modules and name != REFERENCE:
            record.problems = self._ask(name, "run_isolated", self._inputs, calls, str(folder.isolated))

    def _measured(self, tapped: str) -> str:
        """Run the reference with taps, which tells the others what they will be asked, and what it takes."""
        with self._machine.measuring():
            self._request(REFERENCE, "run_tapped", self._inputs, tapped, True)
            self._forward_bytes, self._appending_bytes = self._request(REFERENCE, "working_bytes", tapped)
        self._calls.set_result(tapped)
        return tapped

    def _recorded(self) -> str:
        """The stem of the reference's capture with its calls, as soon as it is there."""
        try:
            return self._calls.result()
        except RunnerFailure as failure:
            # Without a measure nothing can be judged; where it is unavailable, nothing has broken.
            unavailable = failure.status is Status.UNAVAILABLE
            status = Status.UNAVAILABLE if unavailable else Status.ERROR
            raise RunnerFailure(status, f"the reference did not run ({failure})") from failure

    def _run_poisoned(self, record: RunnerRecord, name: str, folder: RunnerFolder, calls: str | None) -> None:
        clean = str(folder.tapped) if is_saved(folder.tapped) else None
        ask = self._asking(self._forward_bytes) if name == REFERENCE else self._ask
        arguments = (str(self._folder.batch.poisoned), str(folder.poisoned), False, calls, clean)
        self._try(ask, record, name, "run_tapped", *arguments)

    def _try(self, ask: Callable, record: RunnerRecord, name: str, command: str, *arguments: object) -> Any:
        """One step of several: after an exception the others still tell which module is to blame."""
        try:
            return ask(name, command, *arguments)
        except RunnerFailure as failure:
            if failure.status is not Status.ERROR:
                raise
            record.status = Status.ERROR
            record.reason = record.reason or f"{command}: {failure.reason}"
            return None

    def time(self, records: dict[str, RunnerRecord]) -> None:
        """Time every runner that works, with nothing else running."""
        if self._reference_seconds > LONGEST_TIMED:
            for record in records.values():
                record.timing_reason = (
                    f"one run of the reference takes {self._reference_seconds:.0f} s, and nothing is timed "
                    f"that takes more than {LONGEST_TIMED:.0f} s"
                )
            return
        able = [name for name, record in records.items() if record.status is Status.OK and name != ORACLE]
        with self._machine.alone():
            turns = latency.Turns(able, self._runners, self._precision, self._machine.threads_alone)
            self._note_gpu("before timing")
            turns.time_models(self._inputs)
            turns.save_outputs({name: str(self._folder.runner(name).timed) for name in able})
            tapped = [name for name in able if records[name].taps_modules]
            if tapped:
                turns.time_modules(tapped, self._calls.result())
                turns.time_replays(self._inputs, tapped, self._calls.result())
            self._note_gpu("after timing")
        for name in able:
            _keep_times(records[name], name, turns)

    def _note_gpu(self, when: str) -> None:
        state = gpu_state()
        if state:
            self.gpu[when] = ", ".join(f"{what} {value}" for what, value in state.items())

    def profile(self, records: dict[str, RunnerRecord], folder: Path) -> None:
        """Write a trace of every runner that works, with nothing else running."""
        folder.mkdir(parents=True, exist_ok=True)
        able = [name for name, record in records.items() if record.status is Status.OK and name != ORACLE]
        with self._machine.alone():
            for name in able:
                path = folder / f"{self._case.name}.{self._precision.name}.{name}.json"
                runner = self._runners.get(name, self._precision)
                try:
                    runner.request("profile", self._inputs, self._calls.result(), str(path))
                except RunnerFailure as failure:
                    raise UserError(
                        "--profile", str(path), f"cannot be made: {failure}", f"run without {name}"
                    ) from failure


def _keep_times(record: RunnerRecord, name: str, turns: latency.Turns) -> None:
    record.seconds = turns.seconds[name]
    record.module_seconds = turns.module_seconds[name]
    replays = {"": turns.replays[name], **turns.module_replays[name]}
    record.replay_seconds = replays[""].seconds
    record.module_replay_seconds = {tap: each.seconds for tap, each in replays.items() if tap}
    record.replay_reasons = {tap: each.reason for tap, each in replays.items() if each.reason}
    record.peak_bytes = turns.peak_bytes[name]
    record.timing_reason = turns.failures.get(name, "")


def write_polygraphy(
    case: Case, precision: Precision, folder: CaseFolder, runners: Runners, machine: Machine
) -> None:
    """Save what `polygraphy run` needs to go on from here, or the reason why it cannot be had.

    Args:
        case: The case, all of whose batches have been collected in this precision.
        precision: The precision.
        folder: The case's folder, which holds the batches and the weights.
        runners: The processes, one of which does the work.
        machine: The machine to share.
    """
    arguments = (case.reference.model_dump_json(), precision.name, str(folder.weights), str(folder.path))
    try:
        with machine.shared():
            runners.get(REFERENCE, precision).request("write_polygraphy", *arguments)
    except RunnerFailure as failure:
        readme = folder.onnx(precision.name) / "README.txt"
        readme.parent.mkdir(parents=True, exist_ok=True)
        readme.write_text(f"No ONNX model and no files for Polygraphy, or not all of them: {failure}\n")


def write_inputs(
    inputs: CaseInputs, poisoned: CaseInputs | None, folder: BatchFolder, labels: CaseInputs | None = None
) -> None:
    """Save a batch's inputs, and their poisoned twin and their labels if they have any, into its folder."""
    save(inputs, folder.inputs)
    if poisoned is not None:
        save(poisoned, folder.poisoned)
    if labels is not None:
        save(labels, folder.labels)
