"""Sharing one machine: runner processes, and who may use the cores when."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from parity.base.precision import Precision
from parity.execution.worker import RunnerProcess

MAX_LANES = 2
"""Cases and precisions worked on side by side: each keeps models and executables in memory."""
PATIENCE = 3.0
"""Seconds in which dismissed processes may clean up: one that still computes is ended behind them."""


class Machine:
    """Lets captures share the cores, and timings have them alone."""

    def __init__(self) -> None:
        # As many as PyTorch takes by itself, or as OMP_NUM_THREADS says: where tests run in a process a core,
        # threads for all cores in each of them would wait for one another.
        threads = torch.get_num_threads()
        self.lanes = min(MAX_LANES, os.cpu_count() or 1)
        self.threads_shared = max(1, threads // self.lanes)
        self.threads_alone = threads
        self._slots = threading.Semaphore(self.lanes)
        self._taking_all = threading.Lock()
        self._measuring = threading.Lock()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use a part of the machine."""
        with self._slots:
            yield

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Use a part of the machine for what takes nobody knows how much memory, one such at a time."""
        with self._measuring, self.shared():
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nothing runs, and keep it so."""
        with self._taking_all, contextlib.ExitStack() as held:
            for _ in range(self.lanes):
                held.enter_context(self._slots)
            yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Numerical libraries of this process take one thread: the other cores are the runners'.

    Threads that wait for one another on busy cores take ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


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
                self._folder.mkdir(parents=True, exist_ok=True)
                log = self._folder / f"{name}.log"
                process = RunnerProcess(name, log, self._limit, environment)
                self._processes[key] = process
        return process

    def stop(self) -> None:
        """End the processes, and what runners have started themselves, such as compilers' processes."""
        for process in self._processes.values():
            process.dismiss()
        latest = time.monotonic() + PATIENCE
        for process in self._processes.values():
            process.stop(max(0.0, latest - time.monotonic()))
