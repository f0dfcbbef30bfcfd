"""Runners in processes of their own: a crash, a hang or lack of memory is only a row of the report.

The parent sends a `RunnerProcess` commands over a pipe. Tensors travel as files in the run's folder, the same
files that `--save` leaves. The child's own output goes to a log file beside them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

from parity.base.errors import UserError
from parity.base.first_lines import first_line
from parity.base.interruption import raisable, stay_if_ending, undoing
from parity.base.memory import is_allocation_failure
from parity.base.process import leave_out_of_collections, reuse_freed_memory
from parity.capture.spool import CannotWrite
from parity.execution import fork_server, gpu_memory
from parity.execution.commands import Commands
from parity.execution.errors import error_text
from parity.execution.record import RunnerFailure, Status
from parity.runners.base import BuiltOnly, Refused, Unavailable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class RunnerProcess:
    """One runner in a child process.

    Args:
        name: A name in `parity.runners.RUNNERS`.
        log: File that receives the child's stdout and stderr.
        timeout: Time limit of one command in seconds.
        environment: Variables that the child needs before it imports anything, besides this process's own.
    """

    def __init__(self, name: str, log: Path, timeout: float, environment: Mapping[str, str]) -> None:
        self.name = name
        self.timeout = timeout
        self._log = log
        # The log may hold lines of an earlier process of this runner.
        self._log_start = log.stat().st_size if log.exists() else 0
        context = fork_server.context()
        self._pipe, child_end = context.Pipe()
        # The server's environment is that of its start; this process's may have changed since.
        variables = {**fork_server.environment(), **environment}
        self._process = context.Process(
            target=_serve, args=(name, child_end, str(log), variables), daemon=True
        )
        self._process.start()
        child_end.close()
        self._one_command = threading.Lock()
        self._take_back = undoing(self._kill)

    def request(
        self,
        command: Callable[Concatenate[Commands, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        """Run a command in the child, such as `request(Commands.start, 1)`. One command runs at a time.

        Raises:
            RunnerFailure: The command gave no result; the child is gone or idle.
            UserError: Bad input that only the child meets, such as an output that cannot be compared, or a
                folder that cannot be written.
        """
        with self._one_command:
            return self._answered(command.__name__, arguments, keywords)

    def _answered(self, name: str, arguments: tuple, keywords: dict[str, Any]) -> Any:
        try:
            self._pipe.send((name, arguments, keywords))
            if not self._pipe.poll(self.timeout):
                self.stop()
                raise RunnerFailure(
                    Status.TIMED_OUT, f"no answer to '{name}' within {self.timeout:g} s; stopped"
                )
            status, payload = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            stay_if_ending()
            self._process.join(timeout=10)
            raise self._death(name) from None
        # The child may meet the effects of the end before it ends itself.
        stay_if_ending()
        return _payload(status, payload)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def dismiss(self) -> None:
        """Tell the child that no command follows: it cleans up and ends."""
        self._pipe.close()

    def stop(self, patience: float = 0.0) -> None:
        """End the child, if it still runs after `patience` seconds."""
        self._process.join(patience)
        self._kill()
        self._process.join()
        self._take_back()

    def _kill(self) -> None:
        """Kill the child and the processes that it started, such as compilers."""
        if self._process.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

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


class RunnerHere:
    """One runner in this process, for live objects, which no other process can import.

    A crash ends this process, and no command has a time limit.

    Args:
        name: A name in `parity.runners.RUNNERS`.
        log: File that receives the tracebacks of errors.
    """

    alive = True
    _one_command = threading.Lock()

    def __init__(self, name: str, log: Path) -> None:
        self._commands = Commands(name, log.open("a", buffering=1))

    def request(
        self,
        command: Callable[Concatenate[Commands, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Result:
        """Run a command, as `RunnerProcess.request` does. One command runs at a time."""
        with self._one_command:
            commands = self._commands
            return _payload(*_answer(commands, command.__name__, arguments, keywords, commands.log))

    def dismiss(self) -> None:
        """Nothing to tell: the runner ends with its last reference."""

    def stop(self, patience: float = 0.0) -> None:
        """Close the log."""
        self._commands.close()


def _payload(status: Status, payload: Any) -> Any:
    """The result of a command, or its error. Raises `RunnerFailure` or `UserError`."""
    if isinstance(payload, UserError):
        raise payload
    if status != Status.OK:
        raise RunnerFailure(status, payload)
    return payload


def _last_line(log: Path, start: int) -> str:
    """The last line after byte `start`, stack dumps of faulthandler left out."""
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
    # By lines, so that the log of a crashed process is complete.
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    faulthandler.enable()
    reuse_freed_memory()
    fork_server.own_group()
    commands = Commands(name)
    has_started = False
    while True:
        try:
            command, arguments, keywords = pipe.recv()
        except EOFError:
            return
        answer = _answer(commands, command, arguments, keywords)
        # Before the answer: the next command of another process may need it.
        gpu_memory.give_back()
        pipe.send(answer)
        if not has_started:
            # The first command starts the runner, which imports more.
            leave_out_of_collections()
            has_started = True


def _answer(
    commands: Commands, command: str, arguments: tuple, keywords: dict, log: TextIO | None = None
) -> tuple[Status, Any]:
    """The status of a command, and its result or its error. `log` receives tracebacks, or stderr."""
    try:
        return Status.OK, getattr(commands, command)(*arguments, **keywords)
    except Unavailable as error:
        return Status.UNAVAILABLE, str(error)
    except BuiltOnly as error:
        return Status.BUILT, str(error)
    except Refused as error:
        return Status.REFUSED, str(error)
    except CannotWrite as error:
        return Status.UNWRITABLE, error
    except UserError as error:
        traceback.print_exc(file=log)
        return Status.ERROR, error
    except MemoryError:
        return Status.OUT_OF_MEMORY, f"allocation failed during '{command}'"
    except raisable() as error:
        traceback.print_exc(file=log)
        if is_allocation_failure(error):
            return Status.OUT_OF_MEMORY, first_line(error)
        return Status.ERROR, error_text(error)
