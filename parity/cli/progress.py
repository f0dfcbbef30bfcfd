"""Progress on stderr: one moving line on a terminal; elsewhere a line a step, so that no log is silent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

LONGEST_SILENCE = 8.0
"""Seconds after which a log gets a line though no step has ended."""


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """The latest step, of unknown number."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None, pulse_style="dim"),
        TimeElapsedColumn(),
    )
    with _shown(*columns) as show:
        yield lambda text: show(text, None, None)


@contextlib.contextmanager
def counted() -> Iterator[Callable[[int, int, str], None]]:
    """The latest step, and the numbers of completed and expected steps."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _shown(*columns) as show:
        yield lambda done, wanted, text: show(text, done, wanted)


_Show = Callable[[str, int | None, int | None], None]


@contextlib.contextmanager
def _shown(*columns: object) -> Iterator[_Show]:
    console = Console(stderr=True)
    if not console.is_terminal:
        with _Lines() as lines:
            yield lines.show
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text, done, wanted: bar.update(task, description=text, completed=done, total=wanted)


class _Lines(contextlib.AbstractContextManager["_Lines"]):
    """A line for each step, and a line where a step takes long."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._latest = ""
        self._stepped = threading.Condition()
        self._steps = 0
        self._ended = False
        self._watch = threading.Thread(target=self._break_silence, daemon=True)

    def __enter__(self) -> _Lines:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stepped:
            self._ended = True
            self._stepped.notify_all()
        self._watch.join()

    def show(self, text: str, done: int | None, wanted: int | None) -> None:
        """Print a step. Steps of other threads wait."""
        count = "" if done is None else f"{done}/{wanted} "
        with self._stepped:
            self._latest = f"{count}{text}"
            self._steps += 1
            self._print(self._latest)
            self._stepped.notify_all()

    def _break_silence(self) -> None:
        with self._stepped:
            while not self._ended:
                if not self._stepped.wait(LONGEST_SILENCE):
                    self._print(f"working, after: {self._latest}" if self._latest else "working")

    def _print(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:7.1f} s  {text}", err=True)
