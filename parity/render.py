"""A report as text for a terminal, drawn by rich.

One table a case. Its first rows are whole models, a row a runner; below them are the port's modules in
the model's tree. A cell shows the margin, which is the error divided by the limit that the verdict rule
derives (up to 1 passes, 0 is bit for bit equal), and the median latency with half its interquartile range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from parity.collect import REFERENCE
from parity.report import (
    BuildReport,
    CaseReport,
    LatencyReport,
    ModuleReport,
    Report,
    RunnerReport,
    VerdictReport,
)
from parity.worker import Status

PORT = "tripy"
UNLIMITED = 10_000
BUILT = Status.BUILT.value


def render(report: Report) -> RenderableType:
    """The whole report: a table a case, the failures in detail, and one sentence at the end."""
    parts: list[RenderableType] = []
    for case in report.cases:
        parts += [_CaseTables(case), Text()]
    parts += list(_failures(report))
    parts.append(summary(report))
    return Group(*parts)


def summary(report: Report) -> Text:
    """The verdict in one sentence."""
    entries = [entry for _, _, entry in report.runner_reports()]
    judged = [entry for entry in entries if entry.verdict != "NONE" and entry.runner != REFERENCE]
    failed = [entry for entry in entries if entry.verdict == "FAIL"]
    built = sum(len(entry.builds) for entry in entries if entry.status == BUILT)
    broken = [entry for entry in entries if entry.verdict == "NONE" and entry.status != BUILT]
    asked = [
        entry for entry in broken if entry.runner in report.requested_runners or entry.status != "UNAVAILABLE"
    ]
    modules = [module for entry in judged for module in entry.modules]
    gaps = sum(module.status == "GAP" for module in modules)
    compared = f"{len(modules) - gaps} module verdicts of {len(judged)} runs"
    notes = f"; {gaps} gaps, each with its reason" if gaps else ""
    notes += f"; {built} engines built and not run" if built else ""
    notes += f"; {len(broken)} runs without a verdict" if broken else ""
    if failed:
        with_verdict = sum(entry.verdict != "NONE" for entry in entries)
        return Text(f"FAIL: {len(failed)} of {with_verdict} runs diverge{notes}.", style="bold red")
    if built and not judged and not asked:
        return Text(f"BUILT: every graph; nothing was compared{notes}.", style="bold green")
    if asked or not judged:
        return Text(f"INCOMPLETE: what ran passes, {compared}{notes}.", style="bold yellow")
    worst = max(modules, key=lambda module: module.margin)
    return Text(
        f"PASS: {compared}; the closest to its limit is {worst.tap} at {worst.margin:.2f}{notes}.",
        style="bold green",
    )


@dataclass(frozen=True)
class _CaseTables:
    """A case's precisions side by side in one table, or in one each where the terminal is too narrow."""

    case: CaseReport

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(_title(self.case), style="table.title")
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
    # Only names may be cut where a terminal is narrow: a column that can wrap gives way first.
    table.add_column("whole model by runner,\nthen the port's modules", overflow="ellipsis")
    for precision in precisions:
        table.add_column(f"{precision}\nerr/limit", justify="right", no_wrap=True)
        table.add_column("\nms", justify="right", no_wrap=True)
    names = list(dict.fromkeys(entry.runner for p in case.precisions for entry in p.runners))
    for name in names:
        entries = [next((r for r in p.runners if r.runner == name), None) for p in case.precisions]
        label = next((entry.label for entry in entries if entry is not None), name)
        cells: list[RenderableType] = []
        for entry in entries:
            cells += _runner_cells(entry)
        table.add_row(_name(label, style="bold"), *cells)
    table.add_section()
    by_precision = [
        {module.tap: module for r in p.runners if r.runner == PORT for module in r.modules}
        for p in case.precisions
    ]
    for depth, name, tap in _tree(dict.fromkeys(tap for modules in by_precision for tap in modules)):
        cells = []
        if tap:
            for modules in by_precision:
                cells += _module_cells(modules.get(tap))
        table.add_row(_name("  " * depth + name), *cells)
    return table


def _name(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _title(case: CaseReport) -> str:
    batches = f"{case.batches} {'batch' if case.batches == 1 else 'batches'}"
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in case.counts.items())
    return f"{case.case.name}: {case.source}; {batches}: {counts}; weights: {case.weights_source}"


def _tree(taps: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Taps as the lines `(depth, name, tap)` of the model's tree, modules above the modules inside them.

    A list and its index are one name; a line without a tap is a container that is never called.
    """
    root: dict[str, Any] = {}
    names: dict[str, str] = {}
    for tap in taps:
        node, path = root, ""
        for part in _INDEX.sub(r"#\1", tap).replace("[", ".[").split("."):
            name = part.replace("#", ".")
            path = f"{path}.{name}" if path else name
            node = node.setdefault(name, {})
        names[path] = tap
    yield from _lines(root, names, "", 0)


_INDEX = re.compile(r"\.(\d+)(?=[.@\[]|$)")
"""The index of a module in a list, such as the 0 of `_attention_layers.0`."""


def _lines(
    node: dict[str, Any], names: Mapping[str, str], prefix: str, depth: int
) -> Iterator[tuple[int, str, str]]:
    for name, inner in node.items():
        path = f"{prefix}.{name}" if prefix else name
        yield depth, name, names.get(path, "")
        yield from _lines(inner, names, path, depth + 1)


def _runner_cells(entry: RunnerReport | None) -> list[RenderableType]:
    if entry is None:
        return [Text("-"), Text("-")]
    if entry.status == BUILT:
        return [Text(entry.status), Text("-")]
    if entry.verdict == "NONE":
        return [Text(entry.status, style="yellow"), Text("-")]
    if entry.status == Status.REFUSED.value:
        return [Text(f"FAIL {entry.status}", style="bold red"), Text("-")]
    if entry.runner == REFERENCE:
        shown = Text("reference") if entry.verdict == "PASS" else Text("FAIL", style="bold red")
    else:
        margin = max((module.margin for module in entry.modules), default=0.0)
        shown = _margin(entry.verdict, margin)
    return [shown, Text(_milliseconds(entry.latency))]


def _module_cells(module: ModuleReport | None) -> list[RenderableType]:
    if module is None:
        return [Text("-"), Text("-")]
    if module.status == "GAP":
        return [Text("GAP", style="yellow"), Text("-")]
    return [_margin(module.status, module.margin), Text(_milliseconds(module.latency))]


def _margin(status: str, margin: float) -> Text:
    number = "inf" if math.isinf(margin) else f"{margin:.2f}" if margin < 100 else f"{margin:.0e}"
    if status == "PASS":
        return Text(number, style="green")
    return Text(f"FAIL {number}", style="bold red")


def _milliseconds(latency: LatencyReport | None) -> str:
    if latency is None:
        return ""
    spread = (latency.p75 - latency.p25) / 2 / latency.median
    milliseconds = latency.median * 1e3
    # Three significant digits, down to a tenth of a microsecond.
    digits = min(4, max(0, 2 - math.floor(math.log10(milliseconds))))
    return f"{milliseconds:.{digits}f} ±{spread:.0%}"


def _failures(report: Report) -> Iterator[RenderableType]:
    for case, precision, entry in report.runner_reports():
        where = f"{case.case.name}, {precision.precision}, {entry.label}"
        if entry.builds:
            how = f" (not run: {entry.reason})" if entry.status == BUILT else ""
            yield Text(f"BUILT{how}: {where}: {'; '.join(map(_engine, entry.builds))}")
        if entry.verdict == "NONE" and entry.status != BUILT:
            yield Text(f"{entry.status}: {where}: {entry.reason}", style="yellow")
        elif entry.verdict == "FAIL" and entry.diagnosis is not None:
            found = entry.diagnosis
            batch = f", batch {found.batch}" if case.batches > 1 else ""
            yield Text(f"FAIL: {where}{batch}: {found.text}", style="bold red")
            module = next((m for m in entry.modules if m.tap == found.tap), None)
            if module is not None:
                yield from _module_detail(module)
            elif found.tap in entry.checks:
                yield Text(verdict_lines(found.tap, entry.checks[found.tap]))
            yield Text()
        if entry.timing_reason:
            yield Text(f"no latency: {where}: {entry.timing_reason}", style="yellow")
    gaps = {
        module.kind: module.gap
        for _, _, entry in report.runner_reports()
        for module in entry.modules
        if module.gap
    }
    for kind, reason in gaps.items():
        yield Text(f"GAP: {kind}: {reason}", style="yellow")


def _engine(build: BuildReport) -> str:
    return (
        f"{build.shape}: {build.layers} layers ({build.engine_layers} in the engine), "
        f"{build.bytes / 1e6:.1f} MB, {build.seconds:.1f} s, {'/'.join(build.dtypes)}"
    )


def _module_detail(module: ModuleReport) -> Iterator[RenderableType]:
    verdicts = (("alone", module.isolated), ("in the model", module.accumulated))
    failing = [(name, v) for name, v in verdicts if v is not None and v.status == "FAIL"]
    for name, verdict in failing[:1]:
        yield Text(verdict_lines(f"{module.tap} {name}", verdict))


def verdict_lines(what: str, verdict: VerdictReport) -> str:
    """A verdict in full: both errors, the bound and where it comes from, and the worst elements."""
    lines = [
        f"  {what}: {verdict.status}" + (f" ({verdict.reason})" if verdict.reason else ""),
        f"    relative L2 error:  port {verdict.err_port_l2:.3e}, reference {verdict.err_ref_l2:.3e}, "
        f"limit {verdict.limit_l2:.3e}",
        f"    relative max error: port {verdict.err_port_max:.3e}, reference {verdict.err_ref_max:.3e}, "
        f"limit {verdict.limit_max:.3e}",
        f"    {verdict.bound}",
        f"    {verdict.checked} elements compared, {verdict.boundary} left out at a discontinuity",
    ]
    if verdict.worst:
        lines.append(f"    {'worst at':<24}{'oracle':>16}{'reference':>16}{'port':>16}")
    lines += [
        f"    {str(list(e.index)):<24}{e.oracle:>16.8g}{e.reference:>16.8g}{e.port:>16.8g}"
        for e in verdict.worst
    ]
    return "\n".join(lines)


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
