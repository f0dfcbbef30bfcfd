"""Processes of ranks: started, watched, and ended together.

The program that starts them watches. A rank that dies ends all others and becomes a `RankFailure` with its
name. Ranks end with the program, too, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch

from parity.base.errors import check_names
from parity.base.interruption import stay_if_ending, undoing
from parity.execution import fork_server
from tables.local import usable_device
from tables.rank_process import DONE, ENGINES, FAILED, READY, REFUSED, START, Setup, call, rank_process
from tables.store import read_manifest

PATIENCE = 2.0
"""Seconds in which the cause of an error shows: ranks that wait for a dead one report errors of their own."""
_MOMENT = 0.05
"""Seconds between two looks at the ranks while a cause is sought."""


class RankFailure(RuntimeError):
    """A rank died, raised, or gave no answer in time. All ranks have ended.

    Attributes:
        rank: The rank.
        tables: The tables that it held.
    """

    def __init__(self, rank: int, tables: Sequence[str], problem: str) -> None:
        super().__init__(f"rank {rank} (tables: {', '.join(tables) or 'none'}) {problem}")
        self.rank = rank
        self.tables = tuple(tables)


class Ranks:
    """A process for each rank of a store, which runs a program.

    Args:
        folder: The store.
        program: `module:function`, see `Setup`.
        arguments: Values that pickle.
        device: `cpu` (gloo) or `cuda` (NCCL, one GPU a rank).
        thorough: See `tables.shards.open_shard`.
        seconds: Longest time to the answer of a rank, once all have started.
        engine: One of `tables.rank_process.ENGINES`.

    Attributes:
        manifest: The store's manifest.
        processes: Ids of the processes by rank.

    Raises:
        UserError: The device is absent, or a shard is not as the manifest says.
        RankFailure: A rank died.
    """

    def __init__(
        self,
        folder: Path,
        program: str,
        arguments: tuple[Any, ...] = (),
        device: str = "cpu",
        thorough: bool = True,
        seconds: float = 600.0,
        engine: str = "exchange",
    ) -> None:
        check_names("engine", [engine], ENGINES)
        self.manifest = read_manifest(folder)
        count = self.manifest.ranks
        usable_device(device, count)
        self._seconds = seconds
        self._ended: Exception | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tables-", ignore_cleanup_errors=True)
        here = Path(self._folder.name)
        self._logs = [here / f"{rank}.log" for rank in range(count)]
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._take_back = undoing(self._kill)
        threads = max(1, torch.get_num_threads() // count)
        context = fork_server.context()
        try:
            for rank in range(count):
                setup = Setup(
                    *(self.manifest, rank, device, thorough, here / "meeting", self._logs[rank]),
                    *(threads, seconds, program, arguments, engine),
                )
                pipe, end = context.Pipe()
                process = context.Process(
                    target=rank_process, args=(setup, end, fork_server.environment()), daemon=True
                )
                process.start()
                end.close()
                self._pipes.append(pipe)
                self._processes.append(process)
            self.processes = [process.pid for process in self._processes]
            self.answers("the start", READY, max(START, seconds))
        except BaseException:
            self.close()
            raise

    def send(self, rank: int, message: Any) -> None:
        """Send a rank's program a message. Raises `RankFailure` if the rank has died."""
        try:
            self._pipes[rank].send(message)
        except OSError:
            self._fail({}, "a request", range(len(self._pipes)))

    def answers(self, work: str, kind: str = DONE, seconds: float | None = None) -> list[Any]:
        """One answer of each rank, in the order of ranks.

        Args:
            work: Words for the work, in messages.
            kind: First word of the answers that are expected.
            seconds: Longest time to the last answer; that of these ranks by default.

        Raises:
            UserError: A rank refused its input.
            RankFailure: A rank died, raised, or gave no answer in time.
        """
        pending, results = set(range(len(self._pipes))), {}
        limit = self._seconds if seconds is None else seconds
        latest = time.monotonic() + limit
        while pending:
            ready = wait([self._pipes[rank] for rank in pending], max(0.0, latest - time.monotonic()))
            if not ready:
                late = ", ".join(map(str, sorted(pending)))
                problem = f"gave no answer to {work} within {limit:g} s (late ranks: {late})"
                self._end_with(min(pending), problem)
            for rank in [rank for rank in pending if self._pipes[rank] in ready]:
                try:
                    word, payload = self._pipes[rank].recv()
                except (EOFError, OSError):
                    self._fail({}, work, pending)
                stay_if_ending()
                if word != kind:
                    self._fail({rank: (word, payload)}, work, pending)
                results[rank] = payload
                pending.remove(rank)
        return [results[rank] for rank in range(len(self._pipes))]

    def read_into(self, rank: int, rows: torch.Tensor, work: str) -> None:
        """Read the bytes of a contiguous tensor that a rank sends."""
        content = rows.reshape(-1).view(torch.uint8).numpy()
        try:
            self._pipes[rank].recv_bytes_into(content)
        except (EOFError, OSError):
            self._fail({}, work, ())

    def check(self) -> None:
        """Raises `RankFailure` if a rank has died. It takes microseconds."""
        if not all(process.is_alive() for process in self._processes):
            self._fail({}, "an idle moment", range(len(self._pipes)))

    def close(self) -> None:
        """End all ranks. It may be called twice."""
        for pipe in self._pipes:
            pipe.close()
        latest = time.monotonic() + PATIENCE
        for process in self._processes:
            process.join(max(0.0, latest - time.monotonic()))
        self._kill()
        for process in self._processes:
            process.join()
        self._take_back()
        self._folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _kill(self) -> None:
        for process in self._processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()

    def _fail(self, reports: dict[int, tuple[str, Any]], work: str, answering: Collection[int]) -> NoReturn:
        """End all ranks and raise the cause: a refusal, else a death, else the first error.

        Args:
            reports: First words and payloads by rank.
            work: Words for the work.
            answering: Ranks whose pipes hold nothing but an answer. Behind an answer there may be rows.
        """
        listening = set(answering) - reports.keys()
        stay_if_ending()
        if self._ended is not None:
            raise self._ended
        latest = time.monotonic() + PATIENCE
        while time.monotonic() < latest:
            refusal = next((error for word, error in reports.values() if word == REFUSED), None)
            if refusal is not None:
                self._end(refusal)
            dead = self._died_without(reports)
            if dead is not None:
                self._end_with(dead, f"died of {self._death(dead)} during {work}")
            self._collect(reports, listening)
        rank, (_, text) = next(iter(reports.items()), (0, (FAILED, "closed its pipe")))
        self._end_with(rank, f"raised during {work}: {text}")

    def _died_without(self, reports: dict[int, tuple[str, Any]]) -> int | None:
        """A rank that is dead without a report."""
        dead = [rank for rank, process in enumerate(self._processes) if not process.is_alive()]
        return next((rank for rank in dead if rank not in reports), None)

    def _collect(self, reports: dict[int, tuple[str, Any]], listening: set[int]) -> None:
        """Take reports of more ranks, for a moment. Those that answer leave `listening`."""
        if not listening:
            time.sleep(_MOMENT)
            return
        ready = wait([self._pipes[rank] for rank in listening], _MOMENT)
        for rank in sorted(listening):
            if self._pipes[rank] in ready:
                listening.discard(rank)
                with contextlib.suppress(EOFError, OSError):
                    word, payload = self._pipes[rank].recv()
                    if word in (REFUSED, FAILED):
                        reports[rank] = word, payload

    def _end_with(self, rank: int, problem: str) -> NoReturn:
        held = [stored.table.name for stored, _ in self.manifest.on(rank)]
        self._end(RankFailure(rank, held, problem))

    def _end(self, cause: Exception) -> NoReturn:
        """End all ranks and raise the cause, now and at later calls."""
        self._kill()
        self._ended = cause
        raise cause

    def _death(self, rank: int) -> str:
        self._processes[rank].join()
        code = self._processes[rank].exitcode
        is_signal = code is not None and code < 0
        cause = f"signal {signal.Signals(-code).name}" if is_signal else f"exit code {code}"
        last = _last_line(self._logs[rank])
        return cause + (f" (its last line: {last})" if last else "")


def run(
    folder: Path,
    program: str,
    arguments: tuple[Any, ...] = (),
    device: str = "cpu",
    thorough: bool = True,
    seconds: float = 600.0,
    engine: str = "exchange",
) -> list[Any]:
    """Call a function in every rank, such as the dense part behind its lookups.

    Args:
        folder: The store.
        program: `module:function`, called with the rank's tables and the arguments.
        arguments: Values that pickle, the same for every rank.
        device, thorough: As of `Ranks`.
        seconds: Longest time of the function.
        engine: As of `Ranks`. With `exchange` all ranks make the same calls, with `peer` each its own.

    Returns:
        The results, which pickle, in the order of ranks.

    Raises:
        UserError, RankFailure: As of `Ranks`.
    """
    with Ranks(
        folder, f"{call.__module__}:{call.__name__}", (program, arguments), device, thorough, seconds, engine
    ) as ranks:
        return ranks.answers(program)


def _last_line(log: Path) -> str:
    written = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in written.splitlines() if line.strip() and not line.startswith("[Gloo]")]
    return lines[-1] if lines else ""
