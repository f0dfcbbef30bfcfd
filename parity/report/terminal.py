"""A report as text for a terminal, drawn by rich.

One table a case. Its first rows are whole models, a row a runner; below them are the port's modules in
the model's tree. A cell shows the margin, which is the error divided by the limit that the verdict rule
derives (up to 1 passes, 0 is bit for bit equal), the smallest relative error that the check would have
noticed, and the median latency with half its interquartile range. Of a GPU: the same as the replay of a CUDA
graph, and how many times the GPU's limit that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from parity.execution.record import REFERENCE, Status
from parity.report.overview import (
    BUILT,
    PORT,
    LatencyColumns,
    by_runner,
    case_title,
    culprit,
    detectable_text,
    engine,
    gaps,
    latency_columns,
    module_tree,
    outcome,
    place,
    ratio_text,
    verdict_lines,
)
from parity.report.schema import CaseReport, LatencyReport, ModuleReport, Report, RunnerReport
from parity.report.terminal_metrics import metrics_table

UNLIMITED = 10_000
_LEGEND = """\
err/limit: error over limit, up to 1 passes; min. error: smallest error detected
"""


def render(report: Report) -> RenderableType:
    """The whole report: a table a case, the failures in detail, and one sentence at the end."""
    parts: list[RenderableType] = [Text(_LEGEND, style="dim")]
    for case in report.cases:
        parts += [_CaseTables(case), *metrics_table(case), *_gpu(case), Text()]
    parts += list(_failures(report))
    parts.append(summary(report))
    return Group(*parts)


def _gpu(case: CaseReport) -> Iterator[RenderableType]:
    """Memory of the runners, and the state of the GPU that they were timed in."""
    for precision in case.precisions:
        peaks = [f"{r.label} {r.peak_bytes / 2**20:.0f} MiB" for r in precision.runners if r.peak_bytes]
        if peaks:
            yield Text(f"{precision.precision}: peak memory: {', '.join(peaks)}", style="dim")
        for when, state in precision.gpu.items():
            yield Text(f"{precision.precision}: GPU {when}: {state}", style="dim")


_STYLES = {"PASS": "green", "BUILT": "green", "FAIL": "red", "INSENSITIVE": "yellow", "INCOMPLETE": "yellow"}


def summary(report: Report) -> Text:
    """The verdict in one sentence."""
    found = outcome(report)
    return Text(str(found), style=f"bold {_STYLES[found.word]}")


@dataclass(frozen=True)
class _CaseTables:
    """A case's precisions side by side in one table, or in one each where the terminal is too narrow."""

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
    # Only names give way where a terminal is narrow: runners' are wrapped, modules' are cut.
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
    """Empty for what cannot be timed alone."""
    return [Text("" if latency is None else text(latency)) for text in columns.values()]


def _module_cells(module: ModuleReport | None, columns: LatencyColumns) -> list[RenderableType]:
    if module is None:
        return _untimed(Text("-"), columns)
    if module.status == "GAP":
        return _untimed(Text("GAP", style="yellow"), columns)
    shown = _margin(module.status, module.margin)
    return [
        shown,
        Text(detectable_text(module.min_detectable_error)),
        *_latency_cells(module.latency, columns),
    ]


def _margin(status: str, margin: float) -> Text:
    number = ratio_text(margin)
    if status == "PASS":
        return Text(number, style="green")
    if status == "INSENSITIVE":
        return Text(f"INSENSITIVE {number}", style="bold yellow")
    return Text(f"FAIL {number}", style="bold red")


def _failures(report: Report) -> Iterator[RenderableType]:
    for case, precision, entry in report.runner_reports():
        where = place(case, precision, entry)
        if entry.builds:
            how = f" (not run: {entry.reason})" if entry.status == BUILT else ""
            yield Text(f"BUILT{how}: {where}: {'; '.join(map(engine, entry.builds))}")
        if entry.verdict == "NONE" and entry.status != BUILT:
            yield Text(f"{entry.status}: {where}: {entry.reason}", style="yellow")
        elif entry.verdict == "FAIL" and entry.diagnosis is not None:
            found = entry.diagnosis
            yield Text(f"FAIL: {where}: {found.text}", style="bold red")
            yield from (Text(f"  explanation: {reason}", style="bold") for reason in found.explanation)
            module = culprit(entry)
            if module is not None:
                yield from _module_detail(module)
            elif found.tap in entry.checks:
                yield Text(verdict_lines(found.tap, entry.checks[found.tap]))
            yield Text()
        elif entry.verdict == "INSENSITIVE" and entry.diagnosis is not None:
            yield Text(f"INSENSITIVE: {where}: {entry.diagnosis.text}", style="bold yellow")
        if entry.timing_reason:
            yield Text(f"no latency: {where}: {entry.timing_reason}", style="yellow")
        if reason := entry.replay_reasons.get(""):
            yield Text(f"no replay: {where}: {reason}", style="yellow")
        if entry.limit_reason:
            yield Text(f"no limits: {where}: {entry.limit_reason}", style="yellow")
    for kind, reason in gaps(report).items():
        yield Text(f"GAP: {kind}: {reason}", style="yellow")


def _module_detail(module: ModuleReport) -> Iterator[RenderableType]:
    verdicts = (("alone", module.isolated), ("in the model", module.accumulated))
    failing = [(name, v) for name, v in verdicts if v is not None and v.status == "FAIL"]
    for name, verdict in failing[:1]:
        yield Text(verdict_lines(f"{module.tap} {name}", verdict))


def render_list(
    cases: Iterable[tuple[str, bool, str]],
    runners: Iterable[tuple[str, bool, str]],
    precisions: Iterable[tuple[str, bool, str]],
) -> Group:
    """What can be run: `(name, whether by default, description)` of cases, runners and precisions."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("default")
    table.add_column("description")
    for title, rows in (("--case", cases), ("--runners", runners), ("--precision", precisions)):
        table.add_row(Text(title, style="bold"), "", "")
        for name, default, description in rows:
            table.add_row(f"  {name}", "yes" if default else "", description)
        table.add_section()
    return Group(table)
