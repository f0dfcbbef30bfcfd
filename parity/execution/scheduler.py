"""The machine's cores, their users, and the processes of runners."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from parity.base.code import Code, imported_code
from parity.base.precision import Precision
from parity.base.process import one_thread, settings_restored
from parity.execution.commands import Commands
from parity.execution.folder import RunFolder
from parity.execution.worker import RunnerHere, RunnerProcess

MAX_WORKERS = 2
"""Largest number of workers on a CPU: each holds models and executables in memory."""
MAX_GPU_WORKERS, CORES_OF_A_GPU_WORKER = 8, 2
"""Largest number of workers beside a GPU, and the cores that each needs: it compiles while the GPU waits."""
JOINING_SECONDS = 0.5
"""Longest time in which a timing waits until half of the workers have one, in seconds. Captures go on."""
JUDGE = "judge"
"""Name of a worker's process that judges, see `Scheduler.judges_apart`."""
JUDGE_TIMEOUT = 1e6
"""Time limit of a verdict on a batch in seconds: none, as in this process."""
PATIENCE = 3.0
"""Time for dismissed processes to clean up, in seconds; a process that still computes is ended after it."""

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Sharing:
    """A division of the machine.

    Attributes:
        workers: Number of pairs of case and precision that run side by side.
        parts: Number of processes of runners that work side by side.
    """

    workers: int
    parts: int


def sharings() -> list[Sharing]:
    """The possible divisions of this machine; the one with most workers is first."""
    cores = os.cpu_count() or 1
    workers = parts = min(MAX_WORKERS, cores)
    if torch.cuda.is_available():
        workers = max(workers, min(MAX_GPU_WORKERS, cores // CORES_OF_A_GPU_WORKER))
        # The model's data is on the GPU: a core is all that a runner needs.
        parts = cores
    return [Sharing(count, max(1, parts * count // workers)) for count in range(workers, 0, -1)]


class Scheduler:
    """Shares the cores among captures, and gives timings all of them.

    Timings that wait follow one another, so that captures of other workers make way once for several.

    Args:
        units: Number of pairs of case and precision of the run.
        sharing: Division of the machine; None for the one with most workers.

    Attributes:
        units: The same.
        workers: Number of pairs of case and precision that run side by side.
        judges_apart: Whether each worker has a process that judges. In this process one thread has the
            interpreter at a time, and verdicts of so many workers would wait for one another.
        cores_of_a_worker: Cores of the machine for each worker that has a unit.
        threads_shared: Threads of a process that shares the cores.
        threads_alone: Threads of a process that has all cores.
    """

    def __init__(self, units: int = 1, sharing: Sharing | None = None) -> None:
        # PyTorch's own number, which OMP_NUM_THREADS sets. Tests run in a process a core. Threads for all
        # cores in each process would wait for one another.
        threads = torch.get_num_threads()
        division = sharing or sharings()[0]
        self.units = units
        self.workers, self._parts = division.workers, division.parts
        self.judges_apart = self.workers > MAX_WORKERS
        self.cores_of_a_worker = max(1, (os.cpu_count() or 1) // max(1, min(self.workers, units)))
        self._times_gpu = torch.cuda.is_available()
        self.threads_shared = max(1, threads // self._parts)
        self.threads_alone = threads
        self._changed = threading.Condition()
        self._users = 0
        self._first_waiting = 0
        self._waiting = 0
        self._is_taken = self._is_closed = False
        self._recording = threading.Lock()

    @contextlib.contextmanager
    def shared(self, first: bool = False) -> Iterator[None]:
        """Use a part of the machine. None begins once users wait for all of it, see `JOINING_SECONDS`.

        Args:
            first: Whether it precedes all users that are not first and wait for a part.
        """
        with self._changed:
            self._first_waiting += first
            try:
                self._changed.wait_for(lambda: self._has_part() and (first or not self._first_waiting))
            finally:
                self._first_waiting -= first
                self._changed.notify_all()
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _many_wait(self) -> bool:
        return self._waiting >= max(1, self.workers // 2)

    def _has_part(self) -> bool:
        """Whether a part of the machine is free."""
        return self._users < self._parts and not (self._is_taken or self._is_closed)

    def without_gpu(self) -> contextlib.AbstractContextManager[None]:
        """Use a part of the machine for the oracle without the GPU, which goes on beside timings of a GPU.

        Of all runners the oracle takes longest, and at the end of a run a core would wait for it.
        """
        return contextlib.nullcontext() if self._times_gpu else self.shared(first=True)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Use a part of the machine for a run of unknown memory, which others wait for; one at a time."""
        with self._recording, self.shared(first=True):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other user is inside, and admit none in the body."""
        is_free = lambda: self._users == 0 and not self._is_taken  # noqa: E731
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or self._many_wait() or is_free(), JOINING_SECONDS)
            self._is_closed = True
            self._changed.wait_for(is_free)
            self._waiting -= 1
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._is_closed &= self._waiting > 0
                self._changed.notify_all()


class RunnerPool:
    """The runner processes of one worker: started on demand, replaced when they die.

    Args:
        folder: Folder of their logs.
        timeout: Time limit of one command in seconds.
        here: Whether the runners are in this process, for live cases.
    """

    def __init__(self, folder: Path, timeout: float, here: bool = False) -> None:
        self._folder = folder
        self._timeout = timeout
        self._here = here
        self._processes: dict[tuple, RunnerProcess | RunnerHere] = {}
        self._lock = threading.Lock()
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def turn(self, name: str) -> threading.Lock:
        """The lock of a runner for all its captures of one batch."""
        with self._lock:
            return self._turns[name]

    def get(self, name: str, precision: Precision) -> RunnerProcess | RunnerHere:
        """The live process of a runner, or of `JUDGE`, whose environment fits the precision."""
        # TensorRT and cuBLAS read this once, when they start: only tf32 runs may round factors to tf32.
        environment = {} if precision.name == "tf32" else {"NVIDIA_TF32_OVERRIDE": "0"}
        key = (name, *environment)
        with self._lock:
            process = self._processes.get(key)
            if process is None or not process.alive:
                self._folder.mkdir(parents=True, exist_ok=True)
                log = self._folder / f"{name}.log"
                if self._here:
                    process = RunnerHere(name, log)
                else:
                    timeout = JUDGE_TIMEOUT if name == JUDGE else self._timeout
                    process = RunnerProcess(name, log, timeout, environment)
                self._processes[key] = process
        return process

    def code(self) -> list[dict[str, Code]]:
        """The code in each live process of a runner, see `parity.base.code.imported_code`."""
        target = f"{imported_code.__module__}:{imported_code.__name__}"
        with self._lock:
            live = [
                process for (name, *_), process in self._processes.items() if name != JUDGE and process.alive
            ]
        return [process.request(Commands.call, target) for process in live]

    def dismiss(self) -> None:
        """Tell the processes that no command follows."""
        for process in self._processes.values():
            process.dismiss()

    def stop(self) -> None:
        """End the processes, and the processes that runners started, such as compilers."""
        self.dismiss()
        latest = time.monotonic() + PATIENCE
        for process in self._processes.values():
            process.stop(max(0.0, latest - time.monotonic()))


@dataclass(frozen=True)
class Worker:
    """One of the workers of a run: its runner processes, and the machine that all workers share."""

    pool: RunnerPool
    scheduler: Scheduler


def side_by_side(
    work: Callable[[Unit, Worker], Result],
    units: Sequence[Unit],
    folder: RunFolder,
    timeout: float,
    here: bool = False,
    sharing: Sharing | None = None,
) -> list[Result]:
    """Do all units of a run, as many side by side as there are workers.

    Args:
        work: Does one unit. A worker has one unit at a time.
        units: The units.
        folder: Folder of the run, for logs.
        timeout: Time limit of one command of a runner in seconds.
        here: Whether the runners are in this process. Then there is one worker.
        sharing: Division of the machine; None for the one with most workers.

    Returns:
        The results, in the order of the units.
    """
    scheduler = Scheduler(len(units), sharing)
    count = 1 if here else scheduler.workers
    workers = [Worker(RunnerPool(folder.worker(n), timeout, here), scheduler) for n in range(count)]
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    left = len(units)
    counting = threading.Lock()

    def do(unit: Unit) -> Result:
        nonlocal left
        worker = free.get()
        with counting:
            left -= 1
        try:
            return work(unit, worker)
        finally:
            if not left:
                # No unit waits: its processes clean up while other workers go on.
                worker.pool.dismiss()
            free.put(worker)

    try:
        # Runners in this process need its threads.
        with settings_restored() if here else one_thread(), ThreadPoolExecutor(max_workers=count) as threads:
            return list(threads.map(do, units))
    finally:
        # All clean up at the same time.
        for worker in workers:
            worker.pool.dismiss()
        for worker in workers:
            worker.pool.stop()
