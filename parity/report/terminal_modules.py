"""The tables of every module of a report, for a terminal.

Each case has one table. The first rows are whole models, one for each runner. Below are the port's modules in
the model's tree. A cell shows the margin, the error over the limit of the verdict rule: up to 1 passes, 0 is
equal bit for bit. Beside it are the smallest relative error that the check detects, and the median latency
with half its interquartile range. On a GPU there are also replays of a CUDA graph, and their ratio to the
least time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from parity.execution.record import REFERENCE, Status
from parity.report.latencies import LatencyColumns, latency_columns
from parity.report.overview import (
    BUILT,
    PORT,
    by_runner,
    case_title,
    detectable_text,
    module_tree,
    ratio_text,
    row_lines,
)
from parity.report.schema import CaseReport, Report, RunnerReport
from parity.report.schema_modules import LatencyReport, MetricReport, ModuleReport

UNLIMITED = 10_000


def module_tables(report: Report) -> Iterator[RenderableType]:
    """A table for each case, with lines on rows, memory and the GPU below it."""
    yield Text(
        "err/limit: error over limit, up to 1 passes; min. error: smallest error detected", style="dim"
    )
    yield Text()
    for case in report.cases:
        yield _CaseTables(case)
        yield from metrics(case)
        yield from _rows(case)
        yield from _gpu(case)
        yield Text()


def _rows(case: CaseReport) -> Iterator[RenderableType]:
    """Whether rows depend on their batch and results on the run, a line a runner."""
    for label, text in row_lines(case).items():
        yield Text(f"rows: {label}: {text}", style="dim")


def _gpu(case: CaseReport) -> Iterator[RenderableType]:
    """Memory of the runners, and the state of the GPU during timing."""
    for precision in case.precisions:
        peaks = [f"{r.label} {r.peak_bytes / 2**20:.0f} MiB" for r in precision.runners if r.peak_bytes]
        if peaks:
            yield Text(f"{precision.precision}: peak memory: {', '.join(peaks)}", style="dim")
        for when, state in precision.gpu.items():
            yield Text(f"{precision.precision}: GPU {when}: {state}", style="dim")


@dataclass(frozen=True)
class _CaseTables:
    """A case's precisions side by side in one table, or in a table each on a narrow terminal."""

    case: CaseReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(case_title(self.case), style="table.title")
        table = _case_table(self.case)
        if Measurement.get(console, options.update(max_width=UNLIMITED), table).maximum <= options.max_width:
            yield table
            return
        for precision in self.case.precisions:
            yield _case_table(self.case.model_copy(update={"precisions": (precision,)}))


def _case_table(case: CaseReport) -> Table:
    precisions = [precision.precision for precision in case.precisions]
    table = Table(
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    # On a narrow terminal only names give way: names of runners wrap, names of modules are cut.
    table.add_column("whole model by runner,\nthen the port's modules", overflow="ellipsis")
    columns = latency_columns(entry for precision in case.precisions for entry in precision.runners)
    for precision in precisions:
        table.add_column(f"{precision}\nerr/limit", justify="right", no_wrap=True)
        table.add_column("min.\nerror", justify="right", no_wrap=True)
        for heading in columns:
            lines = heading.split() if " " in heading else ["", heading]
            table.add_column("\n".join(lines), justify="right", no_wrap=True)
    for label, entries in by_runner(case):
        cells: list[RenderableType] = []
        for entry in entries:
            cells += _runner_cells(entry, columns)
        table.add_row(Text(label, style="bold"), *cells)
    table.add_section()
    by_precision = [
        {module.tap: module for r in p.runners if r.runner == PORT for module in r.modules}
        for p in case.precisions
    ]
    for depth, name, tap in module_tree(dict.fromkeys(tap for modules in by_precision for tap in modules)):
        cells = []
        if tap:
            for modules in by_precision:
                cells += _module_cells(modules.get(tap), columns)
        table.add_row(Text("  " * depth + name, no_wrap=True, overflow="ellipsis"), *cells)
    return table


def _runner_cells(entry: RunnerReport | None, columns: LatencyColumns) -> list[RenderableType]:
    if entry is None:
        return _untimed(Text("-"), columns)
    if entry.status == BUILT:
        return _untimed(Text(entry.status), columns)
    if entry.verdict == "NONE":
        return _untimed(Text(entry.status, style="yellow"), columns)
    if entry.status == Status.REFUSED.value:
        return _untimed(Text(f"FAIL {entry.status}", style="bold red"), columns)
    if entry.runner == REFERENCE:
        shown = Text("reference") if entry.verdict == "PASS" else Text("FAIL", style="bold red")
    else:
        margin = max((module.margin for module in entry.modules), default=0.0)
        shown = _margin(entry.verdict, margin)
    return [shown, Text(), *_latency_cells(entry.latency, columns)]


def _untimed(shown: Text, columns: LatencyColumns) -> list[RenderableType]:
    return [shown, Text(), Text("-"), *(Text() for _ in range(len(columns) - 1))]


def _latency_cells(latency: LatencyReport | None, columns: LatencyColumns) -> list[RenderableType]:
    """The latency in each column; empty cells without one."""
    return [Text("" if latency is None else text(latency)) for text in columns.values()]


def _module_cells(module: ModuleReport | None, columns: LatencyColumns) -> list[RenderableType]:
    if module is None:
        return _untimed(Text("-"), columns)
    if module.status == "GAP":
        return _untimed(Text("GAP", style="yellow"), columns)
    shown = _margin(module.status, module.margin)
    return [
        shown,
        Text(detectable_text(module.min_detectable_error, module.by_nature)),
        *_latency_cells(module.latency, columns),
    ]


def _margin(status: str, margin: float) -> Text:
    number = ratio_text(margin)
    if status == "PASS":
        return Text(number, style="green")
    if status == "INSENSITIVE":
        return Text(f"INSENSITIVE {number}", style="bold yellow")
    return Text(f"FAIL {number}", style="bold red")


def metrics(case: CaseReport) -> Iterator[RenderableType]:
    """The metrics of each runner beside the reference's; nothing without labels."""
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
    """A row for each metric and precision; padding gives way on a narrow terminal."""

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
                    table.add_row(shown, precision, *_metric_cells(metric), str(metric.rows))
            table.add_section()
        return table


def _metric_cells(metric: MetricReport) -> list[Text]:
    """Reference, runner, difference, interval."""
    if metric.reason:
        return [Text("-")] * 4
    difference = _signed(metric.difference)
    moved = Text(f"FAIL {difference}", style="bold red") if metric.flagged else Text(difference)
    interval = "-" if metric.interval is None else " .. ".join(map(_signed, metric.interval))
    return [Text(f"{metric.reference:.6f}"), Text(f"{metric.port:.6f}"), moved, Text(interval)]


def _signed(value: float) -> str:
    return "0" if value == 0.0 else f"{value:+.1e}"
