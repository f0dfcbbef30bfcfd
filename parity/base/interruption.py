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

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CURSOR = "\x1b[?25h\r\n"
"""Shows the cursor again, which a moving line of progress hides."""

_NOTHING = "nothing is saved: the same command begins anew"

_undo: dict[object, Callable[[], object]] = {}
_remains: list[str] = []
_ends = threading.Event()


def undoing(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function at an interruption, later ones first. Returns a function that takes that back."""
    key = object()
    _undo[key] = function

    def take_back() -> None:
        _undo.pop(key, None)

    return take_back


@contextlib.contextmanager
def undone(function: Callable[[], object]) -> Iterator[None]:
    """Call a function behind the body, or at an interruption in it."""
    take_back = undoing(function)
    try:
        yield
    finally:
        function()
        take_back()


@contextlib.contextmanager
def remaining(text: str) -> Iterator[None]:
    """Tell, at an interruption in the body, what remains of the work."""
    _remains.append(text)
    try:
        yield
    finally:
        _remains.remove(text)


def stay_if_ending() -> None:
    """Keep this thread here while the program ends: it would take the effects of the end for failures."""
    if _ends.is_set():
        threading.Event().wait()


def watch() -> None:
    """Wait for the signals from now on, in a thread. A signal that is ignored stays so, as under nohup."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    threading.Thread(target=_wait, args=(reading,), name="interruption", daemon=True).start()


def _wait(reading: int) -> None:
    number = 0
    while number not in _SIGNALS:
        number = os.read(reading, 1)[0]
    _end(number)


def _end(number: int) -> None:
    _ends.set()
    for function in reversed(list(_undo.values())):
        # The process ends whatever happens; each part of its end has its own try.
        with contextlib.suppress(Exception):
            function()
    with contextlib.suppress(OSError):
        text = f"interrupted by {signal.Signals(number).name}; {'; '.join(_remains) or _NOTHING}\n"
        os.write(2, f"{_CURSOR if sys.__stderr__ and sys.__stderr__.isatty() else ''}{text}".encode())
    os._exit(128 + number)
