"""The end of a program by SIGINT or SIGTERM: one path, at any moment.

A thread of its own waits for the signals, since a long call of a library delays Python's handlers. It undoes
whatever the program registers here, says what remains, and ends the process. Another thread stays where it is
once an effect of the end reaches it: it saves nothing of it, shows no traceback, and gives no exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import posix
import reprlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from parity.base import streams
from parity.base.errors import UserError
from parity.base.supervision import SIGNALS, shown_cursor, tell

_NOTHING = "this call has saved nothing: the same command begins anew"

_undo: dict[object, Callable[[], object]] = {}
_remains: list[tuple[str, Callable[[], bool]]] = []
_ends = threading.Event()
_stderr = 2
"""Descriptor of the program's stderr."""
_leave = os._exit
_is_ours = False
"""Whether this process is the program or one of its own processes, and not somebody else's."""


def undoing(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function at an interruption, later ones first. Returns a function that takes that back.

    It is called twice: other threads work until the process ends, and may do once more what it undoes.
    """
    key = object()
    _undo[key] = function

    def take_back() -> None:
        _undo.pop(key, None)

    return take_back


@contextlib.contextmanager
def undone(function: Callable[[], object]) -> Iterator[None]:
    """Call a function behind the body, or at an interruption in it.

    The thread of a body that fails while the program ends stays here: the end may be the cause.
    """
    take_back = undoing(function)
    try:
        yield
    except BaseException:
        stay_if_ending()
        raise
    finally:
        function()
        take_back()


@contextlib.contextmanager
def remaining(text: str, does: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Tell, at an interruption in the body, what remains of the work, if it does."""
    entry = text, does
    _remains.append(entry)
    try:
        yield
    finally:
        _remains.remove(entry)


def stay_if_ending() -> None:
    """Keep this thread here while the program ends: it would take the effects of the end for failures."""
    if _ends.is_set():
        threading.Event().wait()


def raisable() -> tuple[type[BaseException], ...]:
    """Types of the errors that are a mistake of the user's code, for `except`.

    In the program and its processes these are all, since signals raise nothing there. In somebody else's
    process, such as pytest's, Ctrl-C and kinds that are no `Exception` are for others. An exit is a mistake
    everywhere: it would end the process as if all were well.
    """
    return (BaseException,) if _is_ours else (Exception, SystemExit)


def own_process() -> None:
    """Say that this process is the program's own, see `raisable`."""
    global _is_ours
    _is_ours = True


def watch() -> None:
    """Wait for the signals from now on, in a thread. A signal that is ignored stays so, as under nohup."""
    own_process()
    _keep_for_the_program(os.getpid())
    streams.guard(_what_remains)
    sys.excepthook = _unless_ending(sys.excepthook)
    threading.excepthook = _unless_ending(threading.excepthook)
    # The first one of all runs last.
    atexit.register(stay_if_ending)
    try:
        _listen()
    except (OSError, RuntimeError) as error:
        # No descriptor is left, or no thread.
        fix = "raise the limits of open files (ulimit -n) and of processes (ulimit -u)"
        streams.refuse(UserError("machine", "the program", f"cannot start ({error})", fix))


def _listen() -> None:
    global _stderr
    # Compilers lead descriptor 2 elsewhere for a moment.
    _stderr = os.dup(2)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    # In a child they have waited for this moment; see `parity.base.supervision`.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_wait, args=(reading,), name="interruption", daemon=True).start()


def _keep_for_the_program(program: int) -> None:
    """Let functions that end or replace a process raise `SystemExit` in the program.

    A user's code gives the program no exit code, such as 0 without any verdict. Processes that the program
    forks end as ever. `os` has the functions of `posix` under the same names.
    """

    def kept(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if os.getpid() == program:
                raise SystemExit(f"{function.__name__}({', '.join(map(reprlib.repr, arguments))})")
            return function(*arguments, **keywords)

        return call

    for name in ("_exit", "execv", "execve"):
        function = kept(getattr(posix, name))
        setattr(posix, name, function)
        setattr(os, name, function)


def _unless_ending(tell: Callable[..., object]) -> Callable[..., Any]:
    def hook(*error: Any) -> None:
        stay_if_ending()
        tell(*error)

    return hook


def _wait(reading: int) -> None:
    number = 0
    while number not in SIGNALS:
        number = os.read(reading, 1)[0]
    _end(number)


def _end(number: int) -> None:
    _ends.set()
    _undo_all()
    with contextlib.suppress(OSError):
        text = f"interrupted by {signal.Signals(number).name}; {_what_remains() or _NOTHING}\n"
        os.write(_stderr, f"{shown_cursor()}{text}".encode())
    _undo_all()
    tell(128 + number)
    _leave(128 + number)


def _what_remains() -> str:
    return "; ".join(text for text, does in list(_remains) if does())


def _undo_all() -> None:
    for function in reversed(list(_undo.values())):
        # The process ends whatever happens; each part of its end has its own try.
        with contextlib.suppress(Exception):
            function()
