"""Task metrics as text for a terminal, drawn by rich: a table a case, under that of its modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from parity.report.schema import CaseReport, MetricReport, RunnerReport

UNLIMITED = 10_000


def metrics_table(case: CaseReport) -> Iterator[RenderableType]:
    """Every runner's metrics beside the reference's; nothing where there are no labels."""
    entries = [(p.precision, entry) for p in case.precisions for entry in p.runners if entry.metrics]
    if not entries:
        return
    by_label: dict[str, dict[str, RunnerReport]] = {}
    for precision, entry in entries:
        by_label.setdefault(entry.label, {})[precision] = entry
    yield _MetricsTable(by_label)
    for precision, entry in entries:
        for metric in entry.metrics:
            reason = metric.reason or metric.no_interval
            if reason:
                what = metric.name if metric.reason else f"interval of {metric.name}"
                where = f"{case.case.name}, {precision}, {entry.label}"
                yield Text(f"no {what}: {where}: {reason}", style="yellow")


@dataclass(frozen=True)
class _MetricsTable:
    """Rows are metrics, and under each its precisions; names are folded where the terminal is narrow."""

    by_label: dict[str, dict[str, RunnerReport]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        needed = Measurement.get(console, options.update(max_width=UNLIMITED), table).maximum
        if needed > options.max_width:
            table.padding = 0
        yield table

    def _table(self) -> Table:
        table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column("task metric,\nby runner")
        table.add_column("", no_wrap=True)
        for name in ("\nreference", "\nrunner", "\ndifference", "95 % interval\nof the difference", "\nrows"):
            table.add_column(name, justify="right", no_wrap=True)
        for label, entries in self.by_label.items():
            table.add_row(Text(label, style="bold"))
            first = next(iter(entries.values()))
            for number, name in enumerate(metric.name for metric in first.metrics):
                for precision, entry in entries.items():
                    metric = entry.metrics[number]
                    shown = f"  {name}" if entry is first else ""
                    table.add_row(shown, precision, *_cells(metric), str(metric.rows))
            table.add_section()
        return table


def _cells(metric: MetricReport) -> list[Text]:
    """Reference, runner, difference, interval."""
    if metric.reason:
        return [Text("-")] * 4
    difference = _signed(metric.difference)
    moved = Text(f"FAIL {difference}", style="bold red") if metric.flagged else Text(difference)
    interval = "-" if metric.interval is None else " .. ".join(map(_signed, metric.interval))
    return [Text(f"{metric.reference:.6f}"), Text(f"{metric.port:.6f}"), moved, Text(interval)]


def _signed(value: float) -> str:
    return "0" if value == 0.0 else f"{value:+.1e}"
