"""The standard streams of a program: open, and no reason to end where they take no more.

A reader may leave, as `head` does, and a disk may be full. The work goes on: its files do not depend on the
streams. Text that a full stdout loses is told at the end, with exit code 2.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

from parity.base.errors import UserError

_NAMES = ("stdin", "stdout", "stderr")
_LEFT = (BrokenPipeError, ConnectionResetError)
"""Errors of a reader that has left."""
_lost: list[UserError] = []
"""The first loss of stdout, if there is any."""


class _Patient(io.FileIO):
    """The descriptor of a stream, whose writer never fails.

    Args:
        number: The descriptor.
        on_loss: It gets the error of a write that the reader did not cause.
    """

    def __init__(self, number: int, on_loss: Callable[[OSError], object]) -> None:
        super().__init__(number, "w", closefd=False)
        self._on_loss = on_loss
        self._is_lost = False

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        """Write all, or drop what the system does not take and all that follows."""
        left = memoryview(content)
        while left and not self._is_lost:
            try:
                # None comes from a pipe that is full and does not block.
                left = left[super().write(left) or self._wait() :]
            except _LEFT:
                self._is_lost = True
            except OSError as error:
                self._is_lost = True
                self._on_loss(error)
        return len(memoryview(content))

    def _wait(self) -> int:
        """Wait until the reader has made room. Returns 0, the bytes of this write."""
        select.select([], [self], [])
        return 0


def guard(remains: Callable[[], str]) -> None:
    """Open the streams of this process that are closed, and let no write to them fail.

    Args:
        remains: Words for the results that the program has at the moment; empty without any.
    """
    open_closed()

    def on_loss(error: OSError) -> None:
        fix = "; ".join(filter(None, ["lead it elsewhere", remains()]))
        _lost.append(UserError("stdout", _place(), f"cannot be written ({error.strerror})", fix))

    _replace("stdout", on_loss)
    # There is no place to tell a loss of stderr.
    _replace("stderr", lambda error: None)


def require_output() -> None:
    """End the program with exit code 2 and one message if stdout has lost text."""
    sys.stdout.flush()
    if _lost:
        refuse(_lost[0])


def refuse(error: UserError) -> NoReturn:
    """End the program with the message of an error and exit code 2, before or behind its command line."""
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)


def open_closed() -> None:
    """Lead streams that are closed nowhere: another file would get their numbers and their text."""
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest number that is free. Processes of runners inherit the streams.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))


def _replace(name: str, on_loss: Callable[[OSError], object]) -> None:
    """Replace a stream by one of the same kind whose writer never fails."""
    before = getattr(sys, name)
    if before is not getattr(sys, f"__{name}__"):
        # It is no stream of the system, such as that of a test.
        return
    patient = _Patient(_NAMES.index(name), on_loss)
    # As `python -u` does: each text is written at once.
    stream = io.TextIOWrapper(
        patient if before.write_through else io.BufferedWriter(patient),
        encoding=before.encoding,
        # No character fails either, such as an ellipsis where the locale is C.
        errors="backslashreplace",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _place() -> str:
    """Where stdout leads."""
    try:
        return os.readlink("/proc/self/fd/1")
    except OSError:
        return "this stream"
