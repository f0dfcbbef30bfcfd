"""A small process that waits for the program, and gives the exit code that the program means.

Code of a user, or a C library of it, can end the program's process at any line with exit code 0. So the
program works in a child, which tells its exit code at its orderly end. A child that ends without a word has
no verdict.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from parity.base import streams
from parity.base.errors import UserError
from parity.base.process import die_with_parent

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end the program in order."""
_NO_VERDICT = 2
_KEPT = "a --save folder keeps its whole batches: `resume` goes on"

_LIBRARY = "correct the library that fails"
_FIXES = {
    # The system sends it where memory is short.
    signal.SIGKILL: "free memory, set --memory, or raise the limit of processor time (ulimit -t)",
    signal.SIGXCPU: "raise the limit of processor time (ulimit -t)",
    **dict.fromkeys((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL), _LIBRARY),
}
"""Remedies by the signal that ends the program."""

_teller: tuple[int, int] | None = None
"""Process id of the child, and the descriptor where it tells; None in other processes."""


@contextlib.contextmanager
def supervised() -> Iterator[None]:
    """Run the body in a child of this process, which ends with the exit code of the body.

    Only the child comes back from the first line. There, SIGINT and SIGTERM wait until
    `parity.base.interruption.watch` listens. The process has one thread so far: a fork copies no other.
    """
    global _teller
    # The system gives the numbers of closed streams to the next files.
    streams.open_closed()
    parent = os.getpid()
    # A process that ignores this one does not learn how its child ends.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    heard = {number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, signal.SIGCHLD})
    try:
        reading, writing = os.pipe()
        child = os.fork()
    except OSError as error:
        fix = "raise the limits of open files (ulimit -n) and of processes (ulimit -u)"
        streams.refuse(UserError("machine", "the program", f"cannot start ({error.strerror})", fix))
    if child:
        os.close(writing)
        os._exit(_result(_ended(child, heard), _told(reading)))
    signal.pthread_sigmask(signal.SIG_SETMASK, before | heard)
    die_with_parent(parent)
    os.close(reading)
    _teller = os.getpid(), writing
    try:
        yield
    except SystemExit as error:
        tell(_code(error))
        raise
    except BaseException:
        # Python shows a traceback.
        tell(1)
        raise
    tell(0)


def tell(code: int) -> None:
    """Tell the exit code of the program, which ends now. The last one told is its exit code."""
    if _teller is not None and _teller[0] == os.getpid():
        with contextlib.suppress(OSError):
            os.write(_teller[1], bytes([code & 0xFF]))


def shown_cursor() -> str:
    """Text that shows the cursor of a terminal again, which a moving line of progress hides."""
    return "\x1b[?25h\r\n" if sys.__stderr__ and sys.__stderr__.isatty() else ""


def _code(error: SystemExit) -> int:
    """The exit code that Python gives the process."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _ended(child: int, heard: set[signal.Signals]) -> int:
    """Wait for the end of the child. Returns its exit code, or the negative number of its last signal.

    The child gets the signals that are sent to this process alone. At a terminal it has them twice, which is
    once: its program ends at the first.
    """
    while True:
        number = signal.sigwait({*heard, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            # Its process id stays its own until the line below has taken its end.
            os.kill(child, number)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _told(reading: int) -> int | None:
    """The last exit code that the child has told."""
    os.set_blocking(reading, False)
    try:
        # It tells twice if it is interrupted at its end.
        words = os.read(reading, 100)
    except BlockingIOError:
        # A process that the child has left behind holds the other end.
        return None
    return words[-1] if words else None


def _result(ended: int, told: int | None) -> int:
    """The exit code of the program; a message where its process has not ended in order.

    Args:
        ended: The exit code of the process, or the negative number of the signal that ended it.
        told: The exit code that it has told.
    """
    if ended >= 0 and told is not None:
        return told
    if -ended in SIGNALS and told is not None:
        # Behind its last line Python has no handlers any more, and the signal itself ends the process.
        return 128 - ended
    if ended < 0:
        name = signal.Signals(-ended).name if -ended in set(signal.Signals) else str(-ended)
        fix = _FIXES.get(-ended, "call again")
        error = UserError("machine", "the program", f"is ended by {name}", f"{fix}; {_KEPT}")
    else:
        problem = f"ends the program with exit code {ended} and without a verdict"
        fix = f"let neither the case's code nor a library of it call exit; {_KEPT}"
        error = UserError("case", "its code", problem, fix)
    with contextlib.suppress(OSError):
        os.write(2, f"{shown_cursor()}error: {error}\n".encode())
    return 128 - ended if ended < 0 else _NO_VERDICT
