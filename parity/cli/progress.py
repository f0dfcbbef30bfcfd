"""Progress on a terminal. Other outputs show none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


@contextlib.contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """A spinner beside the latest step, on stderr."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None, pulse_style="dim"),
        TimeElapsedColumn(),
    )
    with _shown(*columns) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)


@contextlib.contextmanager
def counted() -> Iterator[Callable[[int, int, str], None]]:
    """A bar of completed and expected steps, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _shown(*columns) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, wanted, text: bar.update(task, completed=done, total=wanted, description=text)


def _shown(*columns: object) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
