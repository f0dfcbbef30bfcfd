"""The comparison of two reports as text for a terminal, drawn by rich."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from parity.report.differences import Change, Changes
from parity.report.overview import counted


def render_changes(changes: Changes) -> RenderableType:
    """Regressions, improvements, notes, and one sentence at the end."""
    parts: list[RenderableType] = []
    for title, listed in (("worse", changes.worse), ("better", changes.better)):
        if listed:
            parts += [_table(title, listed), Text()]
    if changes.added:
        parts.append(Text(f"only in the new report: {', '.join(changes.added)}"))
    parts += [Text(f"not comparable: {reason}", style="yellow") for reason in changes.not_comparable]
    parts += [Text(note, style="yellow") for note in changes.notes]
    parts.append(summary(changes))
    return Group(*parts)


def summary(changes: Changes) -> Text:
    """The result of the comparison, in one sentence."""
    compared = f"{counted(changes.errors, 'error')} compared, {changes.moved} of them changed"
    compared += "; 1 latency" if changes.latencies == 1 else f"; {changes.latencies} latencies"
    compared += f" compared; {counted(len(changes.better), 'improvement')}"
    if changes.worse:
        return Text(f"WORSE: {counted(len(changes.worse), 'regression')}; {compared}.", style="bold red")
    if changes.not_comparable:
        return Text(f"INCOMPLETE: no regression in the comparable parts; {compared}.", style="bold yellow")
    return Text(f"NO REGRESSION: {compared}.", style="bold green")


def _table(title: str, changes: Iterable[Change]) -> Table:
    """A line for each change, below its case, precision and runner. Long names wrap."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(title, overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("old", "new", "new/old"):
        table.add_column(name, justify="right", no_wrap=True)
    place = ""
    for change in changes:
        if change.place != place:
            place = change.place
            table.add_row(Text(place, style="bold"))
        factor = "" if change.factor is None else _factor(change.factor)
        # Names are plain text, not markup.
        table.add_row(Padding(Text(change.what), (0, 0, 0, 2)), change.kind, change.old, change.new, factor)
    return table


def _factor(factor: float) -> str:
    return "inf" if math.isinf(factor) else f"{factor:.2f}" if factor < 100 else f"{factor:.0e}"
