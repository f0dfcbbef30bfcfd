"""The end of a program by SIGINT or SIGTERM: one path, at any moment.

A thread of its own waits for the signals, since a long call of a library delays Python's handlers. It undoes
whatever the program registers here, says what remains, and ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CURSOR = "\x1b[?25h\r\n"
"""Shows the cursor again, which a moving line of progress hides."""

_NOTHING = "this call has saved nothing: the same command begins anew"

_undo: dict[object, Callable[[], object]] = {}
_remains: list[tuple[str, Callable[[], bool]]] = []
_ends = threading.Event()
_stderr = 2
"""Descriptor of the program's stderr."""


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


def watch() -> None:
    """Wait for the signals from now on, in a thread. A signal that is ignored stays so, as under nohup."""
    global _stderr
    _open_closed_streams()
    # Compilers lead descriptor 2 elsewhere for a moment.
    _stderr = os.dup(2)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    threading.Thread(target=_wait, args=(reading,), name="interruption", daemon=True).start()


def _open_closed_streams() -> None:
    """Lead standard streams that are closed nowhere: another file would get their numbers and their text."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest number that is free. Processes of runners inherit the streams.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))


def _wait(reading: int) -> None:
    number = 0
    while number not in SIGNALS:
        number = os.read(reading, 1)[0]
    _end(number)


def _end(number: int) -> None:
    _ends.set()
    _undo_all()
    with contextlib.suppress(OSError):
        remains = "; ".join(text for text, does in _remains if does())
        text = f"interrupted by {signal.Signals(number).name}; {remains or _NOTHING}\n"
        os.write(_stderr, f"{_CURSOR if sys.__stderr__ and sys.__stderr__.isatty() else ''}{text}".encode())
    _undo_all()
    os._exit(128 + number)


def _undo_all() -> None:
    for function in reversed(list(_undo.values())):
        # The process ends whatever happens; each part of its end has its own try.
        with contextlib.suppress(Exception):
            function()
