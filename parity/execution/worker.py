"""Runners in processes of their own, so that one that crashes, hangs or eats all memory is only a row.

The parent talks to a `RunnerProcess` by commands over a pipe; tensors travel as files in the run's
folder, the same files that `--save` keeps. The child's own output goes to a log file beside them.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from parity.capture.spool import CannotWrite
from parity.execution.commands import Commands, first_line, is_allocation_failure
from parity.execution.record import RunnerFailure, Status


class RunnerProcess:
    """One runner in a child process.

    Args:
        name: A name in `parity.runners.RUNNERS`.
        log: File that receives the child's stdout and stderr.
        limit: Seconds that one command may take.
        environment: Variables that the child needs before it imports anything, beside this process's own.
    """

    def __init__(self, name: str, log: Path, limit: float, environment: Mapping[str, str]) -> None:
        self.name = name
        self.limit = limit
        self._log = log
        # The log may hold what an earlier process of this runner wrote.
        self._log_start = log.stat().st_size if log.exists() else 0
        # Forked from a server that has only imported torch: as clean as a new process, without the seconds
        # that the import takes. CUDA is not touched before the fork.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        self._pipe, child_end = context.Pipe()
        # The server's environment is the one that it was started in, which may have changed since.
        variables = {**os.environ, **environment}
        self._process = context.Process(
            target=_serve, args=(name, child_end, str(log), variables), daemon=True
        )
        self._process.start()
        child_end.close()

    def request(self, command: str, *arguments: Any) -> Any:
        """Run one of `Commands` in the child.

        Raises:
            RunnerFailure: The child is gone or idle after it.
            CannotWrite: The folder cannot be written.
        """
        try:
            self._pipe.send((command, arguments))
            if not self._pipe.poll(self.limit):
                self.stop()
                raise RunnerFailure(
                    Status.TIMED_OUT, f"no answer to '{command}' within {self.limit:g} s; stopped"
                )
            status, payload = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(timeout=10)
            raise self._death(command) from None
        if status is Status.UNWRITABLE:
            raise payload
        if status != Status.OK:
            raise RunnerFailure(status, payload)
        return payload

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def dismiss(self) -> None:
        """Tell the child that nothing more is asked of it: it cleans up behind itself and ends."""
        self._pipe.close()

    def stop(self, patience: float = 0.0) -> None:
        """End the child, if it still runs after `patience` seconds."""
        self._process.join(patience)
        self._process.kill()
        self._process.join()

    def _death(self, command: str) -> RunnerFailure:
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            reason = f"killed during '{command}', most likely by the system for lack of memory"
            return RunnerFailure(Status.OUT_OF_MEMORY, reason)
        cause = (
            f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        )
        last = _last_line(self._log, self._log_start)
        return RunnerFailure(Status.CRASHED, f"{cause} during '{command}'" + (f": {last}" if last else ""))


def _last_line(log: Path, start: int) -> str:
    """The last line behind byte `start` that is not part of a stack dump of faulthandler."""
    written = log.read_bytes()[start:].decode(errors="replace") if log.exists() else ""
    before_dump = written.split("Fatal Python error:")[0]
    return next((line.strip() for line in reversed(before_dump.splitlines()) if line.strip()), "")


def _serve(name: str, pipe: Connection, log: str, environment: dict[str, str]) -> None:
    """The child: redirect output, then answer commands until the parent is gone."""
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    # By lines: what a process that crashes has printed is in its log.
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    faulthandler.enable()
    # An interrupt at the terminal reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands = Commands(name)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(commands, command, arguments))


def _answer(commands: Commands, command: str, arguments: tuple) -> tuple[Status, Any]:
    from parity.runners.base import BuiltOnly, Refused, Unavailable

    try:
        return Status.OK, getattr(commands, command)(*arguments)
    except Unavailable as error:
        return Status.UNAVAILABLE, str(error)
    except BuiltOnly as error:
        return Status.BUILT, str(error)
    except Refused as error:
        return Status.REFUSED, str(error)
    except CannotWrite as error:
        return Status.UNWRITABLE, error
    except MemoryError:
        return Status.OUT_OF_MEMORY, f"allocation failed during '{command}'"
    except Exception as error:  # noqa: BLE001, whatever a runner raises becomes its row
        traceback.print_exc()
        if is_allocation_failure(error):
            return Status.OUT_OF_MEMORY, first_line(error)
        return Status.ERROR, f"{type(error).__name__}: {first_line(error)}"
