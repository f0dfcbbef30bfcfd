"""Running the runners: one batch in one precision becomes a folder of captures and a record.

    <batch>/<precision>/record.json                     labels, statuses, timings
    <batch>/<precision>/<runner>/untapped|tapped|poisoned|isolated|incremental .safetensors + .json

Verdicts are made from these files alone (`parity.judging`), so that a saved run replays identically.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel

from configs import CaseConfig
from parity.inputs import CaseInputs
from parity.precision import Precision
from parity.worker import RunnerFailure, RunnerProcess, Status

REFERENCE = "torch"
ORACLE = "oracle"
WARM_UPS = 3
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_SECONDS = 7, 30, 1.5
MODULE_REPEATS = 7

Progress = Callable[[str], None]


class RunnerRecord(BaseModel):
    """What is known of one runner besides its captures; times in seconds."""

    label: str = ""
    taps_modules: bool = True
    appends: bool = True
    status: Status = Status.OK
    reason: str = ""
    problems: dict[str, str] = {}
    seconds: list[float] = []
    module_seconds: dict[str, list[float]] = {}
    timing_reason: str = ""


class Record(BaseModel):
    """One batch in one precision."""

    precision: str
    runners: dict[str, RunnerRecord]


class Runners:
    """The runner processes of a run: started on demand, replaced when they die.

    Args:
        folder: Where their logs go.
        limit: Seconds that one command may take.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self._folder = folder
        self._limit = limit
        self._processes: dict[tuple, RunnerProcess] = {}
        self._lock = threading.Lock()

    def get(self, name: str, precision: Precision) -> RunnerProcess:
        """The live process of a runner, whose environment fits the precision."""
        # TensorRT and cuBLAS read this once, when they start: only tf32 runs may round factors to tf32.
        environment = {} if precision.name == "tf32" else {"NVIDIA_TF32_OVERRIDE": "0"}
        key = (name, *environment)
        with self._lock:
            process = self._processes.get(key)
            if process is None or not process.alive:
                log = self._folder / f"{name}.log"
                process = RunnerProcess(name, log, self._limit, environment)
                self._processes[key] = process
        return process

    def stop(self) -> None:
        for process in self._processes.values():
            process.stop()


def collect(
    case: CaseConfig,
    precision: Precision,
    names: Iterable[str],
    folder: Path,
    weights: Path,
    runners: Runners,
    timed: bool,
    progress: Progress,
) -> Record:
    """Run the reference, the oracle and `names` on the inputs in `folder`; save captures and the record.

    Captures of different runners are made side by side, as many at a time as there are cores to share;
    timings are taken afterwards, alone on the machine, runner by runner in turns.
    """
    everyone = [REFERENCE, ORACLE, *(name for name in names if name not in (REFERENCE, ORACLE))]
    cores = os.cpu_count() or 1
    side_by_side = min(2, cores)
    slots = threading.Semaphore(side_by_side)
    threads = max(1, cores // side_by_side)
    calls: Future[str] = Future()
    session = _Session(case, precision, folder, weights, runners, slots, threads, calls, progress)
    with ThreadPoolExecutor(max_workers=len(everyone)) as pool:
        records = dict(zip(everyone, pool.map(session.capture, everyone), strict=True))
    if timed:
        _time(records, session, cores)
    record = Record(precision=precision.name, runners=records)
    (folder / precision.name / "record.json").write_text(record.model_dump_json(indent=1))
    return record


class _Session:
    """One batch in one precision while its captures are being made."""

    def __init__(
        self,
        case: CaseConfig,
        precision: Precision,
        folder: Path,
        weights: Path,
        runners: Runners,
        slots: threading.Semaphore,
        threads: int,
        calls: Future[str],
        progress: Progress,
    ) -> None:
        self._case = case
        self.precision = precision
        self._folder = folder
        self._weights = weights
        self._runners = runners
        self._slots = slots
        self._threads = threads
        self.calls = calls
        self._progress = progress
        self.inputs = str(folder / "inputs.safetensors")

    def ask(self, name: str, command: str, *arguments: object) -> object:
        with self._slots:
            return self._runners.get(name, self.precision).request(command, *arguments)

    def capture(self, name: str) -> RunnerRecord:
        record = RunnerRecord()
        try:
            self._capture(name, record)
        except RunnerFailure as failure:
            record.status, record.reason = failure.status, failure.reason
            if name == REFERENCE and not self.calls.done():
                self.calls.set_exception(failure)
        self._progress(f"{self._case.name} {self.precision.name}: {name}")
        return record

    def _capture(self, name: str, record: RunnerRecord) -> None:
        # The reference's name stands in the row of a runner that never gets to say its own.
        record.label = name
        started = self.ask(name, "start", self._threads)
        record.label = started["label"]
        record.taps_modules, record.appends = started["taps_modules"], started["appends"]
        self.ask(name, "load", self._case.model_dump_json(), self.precision.name, str(self._weights))
        stem = self._folder / self.precision.name / name
        if name == REFERENCE:
            self.ask(name, "run_tapped", self.inputs, str(stem / "tapped"), True)
            self.calls.set_result(str(stem / "tapped"))
        elif record.taps_modules:
            self.ask(name, "run_tapped", self.inputs, str(stem / "tapped"), False)
        if record.appends:
            self.ask(name, "run_incremental", self.inputs, str(stem / "incremental"))
        if name != ORACLE:
            self.ask(name, "run", self.inputs, str(stem / "untapped"))
        if record.taps_modules and name != ORACLE:
            poisoned = str(self._folder / "poisoned.safetensors")
            self.ask(name, "run_tapped", poisoned, str(stem / "poisoned"), False)
        if record.taps_modules and name != REFERENCE:
            try:
                calls = self.calls.result()
            except RunnerFailure as failure:
                raise RunnerFailure(Status.ERROR, f"the reference did not run ({failure})") from failure
            record.problems = self.ask(name, "run_isolated", self.inputs, calls, str(stem / "isolated"))


def _time(records: Mapping[str, RunnerRecord], session: _Session, cores: int) -> None:
    """Whole-model runs in turns A, B, A, B, then each runner's modules."""
    alive = {
        name: record for name, record in records.items() if record.status is Status.OK and name != ORACLE
    }
    for name in list(alive):
        _timed(session, alive, name, "start", cores)
        first = _timed(session, alive, name, "time", session.inputs, WARM_UPS)
        if first:
            alive[name].seconds = first[-1:]
    one_round = sum(record.seconds[-1] for record in alive.values() if record.seconds)
    rounds = int(min(MAX_ROUNDS, max(MIN_ROUNDS, ROUNDS_SECONDS / max(one_round, 1e-9))))
    for record in alive.values():
        record.seconds = []
    for _ in range(rounds):
        for name in list(alive):
            alive[name].seconds += _timed(session, alive, name, "time", session.inputs, 1) or []
    for name in list(alive):
        if alive[name].taps_modules and name != "torch_jagged":
            calls = session.calls.result()
            taken = _timed(session, alive, name, "time_calls", calls, MODULE_REPEATS + 1) or {}
            # The first run of each module warms up.
            alive[name].module_seconds = {tap: seconds[1:] for tap, seconds in taken.items()}


def _timed(
    session: _Session, alive: dict[str, RunnerRecord], name: str, command: str, *arguments: object
) -> object:
    """Ask for timings; a runner that fails now keeps its verdicts, and its row says why it has no latency."""
    try:
        return session.ask(name, command, *arguments)
    except RunnerFailure as failure:
        alive.pop(name).timing_reason = str(failure)
        return None


def write_inputs(inputs: CaseInputs, poisoned: CaseInputs, folder: Path) -> None:
    """Save a batch's inputs and their poisoned twin into its folder."""
    from parity.inputs import save

    save(inputs, folder / "inputs.safetensors")
    save(poisoned, folder / "poisoned.safetensors")
