"""The movements between two saved runs as text for a terminal, drawn by rich."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from parity.report.overview import ratio_text
from parity.studies.movement import words
from parity.studies.movement.report import ComparisonReport, RunnerReport

MOST_ROWS = 12
"""Most modules in the table of one runner; `compare.json` has all."""


def render(report: ComparisonReport) -> RenderableType:
    """The differing facts, every runner, and one sentence at the end."""
    parts: list[RenderableType] = [*_facts(report)]
    for runner in report.runners:
        parts += _runner(runner)
    parts += [Text(f"not compared: {note}", style="yellow") for note in report.not_compared]
    style = "bold red" if report.moved else "bold green"
    return Group(*parts, Text(words.outcome(report), style=style))


def _facts(report: ComparisonReport) -> Iterator[RenderableType]:
    if not report.differing:
        yield Text("the environments and the code of both runs are equal")
        yield Text()
        return
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("environment", "old", "new"):
        table.add_column(name, overflow="fold")
    for fact in report.differing:
        table.add_row(*map(Text, (fact.name, fact.old, fact.new)))
    yield table


def _runner(runner: RunnerReport) -> Iterator[RenderableType]:
    yield Text(words.place(runner), style="bold")
    style = "red" if runner.first else "green"
    yield Padding(Text(words.counts(runner), style=style), (0, 0, 0, 2), expand=False)
    for line in words.diagnosis(runner):
        yield Padding(Text(line), (0, 0, 0, 2), expand=False)
    if runner.first:
        yield _table(runner)
    yield Text()


def _table(runner: RunnerReport) -> Table:
    """The results that moved, in execution order."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("moved results,\nin execution order", overflow="fold")
    for name in ("in the model\nover limit", "alone\nover limit", "\norigin", "\nnearer"):
        table.add_column(name, justify="right", no_wrap=True)
    for module in runner.moved[:MOST_ROWS]:
        ratios = ("-" if one is None else ratio_text(one.ratio) for one in (module.inside, module.alone))
        nearer = module.telling.nearer if module.telling is not None else ""
        table.add_row(*map(Text, (module.tap, *ratios, module.origin, nearer or "-")))
    left = len(runner.moved) - MOST_ROWS
    if left > 0:
        table.add_row(Text(f"and {left} more in compare.json", style="dim"))
    return table
