"""A report as a page: the data of the templates in this folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import jinja2

from parity.execution.record import REFERENCE
from parity.report import coverage, overview
from parity.report.html import charts
from parity.report.html.axis import Axis
from parity.report.html.heat import heat
from parity.report.latencies import LatencyColumns, latency_columns, milliseconds
from parity.report.outcome import Outcome, outcome
from parity.report.schema import CaseReport, PrecisionReport, Report, RunnerReport
from parity.report.schema_modules import MetricReport, ModuleReport, VerdictReport
from parity.report.streams import stream_lines


@dataclass(frozen=True)
class Line:
    """A line of a module tree: a module, or a container that is never called."""

    depth: int
    above: str
    name: str
    id: str
    module: ModuleReport | None
    culprit: bool


@dataclass(frozen=True)
class Tree:
    """The modules of one runner in one precision, on an axis of their own."""

    id: str
    entry: RunnerReport

    @cached_property
    def axis(self) -> Axis:
        return Axis.over(self.entry.modules)

    @cached_property
    def lines(self) -> list[Line]:
        modules = {module.tap: (number, module) for number, module in enumerate(self.entry.modules)}
        blamed = overview.culprit(self.entry) if self.entry.verdict != "PASS" else None
        lines: list[Line] = []
        names: list[str] = []
        for depth, name, tap in overview.module_tree(modules):
            names = [*names[:depth], name]
            number, module = modules.get(tap, (0, None))
            above = "".join(f"{part}." for part in names[:-1])
            is_culprit = module is not None and module is blamed
            lines.append(Line(depth, above, name, f"{self.id}-{number}", module, is_culprit))
        return lines

    @cached_property
    def latencies(self) -> LatencyColumns:
        return latency_columns([self.entry])

    @cached_property
    def culprit_id(self) -> str:
        """The line that the diagnosis names, or the tree itself."""
        return next((line.id for line in self.lines if line.culprit), self.id)


@dataclass(frozen=True)
class Boundary:
    """A module with elements that are left out at a discontinuity."""

    precision: str
    label: str
    tap: str
    left_out: int
    compared: int


@dataclass(frozen=True)
class Section:
    """One case, its charts drawn or to be drawn."""

    id: str
    case: CaseReport
    drawn: Future[list[charts.Chart]]

    @cached_property
    def title(self) -> str:
        return overview.case_title(self.case).partition(": ")[2]

    @property
    def figures(self) -> list[charts.Chart]:
        return self.drawn.result()

    @cached_property
    def precisions(self) -> list[tuple[PrecisionReport, list[Tree]]]:
        """Each precision with its trees: the port's, and those of other runners that fail."""
        return [
            (
                precision,
                [
                    Tree(f"{self.id}-{precision.precision}-{number}", entry)
                    for number, entry in enumerate(precision.runners)
                    if entry.modules and _has_tree(entry, precision)
                ],
            )
            for precision in self.case.precisions
        ]

    @cached_property
    def metrics(self) -> list[tuple[str, str, MetricReport]]:
        """Precision, runner and metric of all metrics."""
        return [
            (precision.precision, entry.label, metric)
            for precision in self.case.precisions
            for entry in precision.runners
            for metric in entry.metrics
        ]

    @cached_property
    def rows(self) -> dict[str, str]:
        return overview.row_lines(self.case)

    @cached_property
    def boundaries(self) -> list[Boundary]:
        return [
            Boundary(precision.precision, entry.label, module.tap, verdict.boundary, verdict.checked)
            for precision in self.case.precisions
            for entry in precision.runners
            if entry.runner != REFERENCE
            for module in entry.modules
            if (verdict := _most_left_out(module)) is not None and verdict.boundary
        ]


def _figures(case: CaseReport) -> list[charts.Chart]:
    drawn = (charts.growth(case, overview.PORT), charts.latencies(case))
    return [chart for chart in drawn if chart is not None]


def _has_tree(entry: RunnerReport, precision: PrecisionReport) -> bool:
    has_port = any(other.runner == overview.PORT for other in precision.runners)
    shown = entry.runner == overview.PORT or (not has_port and entry.runner != REFERENCE)
    return shown or entry.verdict in ("FAIL", "INSENSITIVE")


def _most_left_out(module: ModuleReport) -> VerdictReport | None:
    return max(module.verdicts.values(), key=lambda verdict: verdict.boundary, default=None)


@dataclass(frozen=True)
class Page:
    """The whole page.

    Attributes:
        report: The report.
        drawing: Draws the charts.
    """

    report: Report
    drawing: ThreadPoolExecutor

    @cached_property
    def outcome(self) -> Outcome:
        return outcome(self.report)

    @cached_property
    def sections(self) -> list[Section]:
        return [
            Section(f"case-{number}", case, self.drawing.submit(_figures, case))
            for number, case in enumerate(self.report.cases)
        ]

    def findings(self) -> Iterator[tuple[str, str, RunnerReport, str]]:
        """Runs that fail or are INSENSITIVE: status, place, report and target of a link."""
        shown = [tree for section in self.sections for _, trees in section.precisions for tree in trees]
        trees = {id(tree.entry): tree for tree in shown}
        for case, precision, entry in self.report.runner_reports():
            if entry.verdict in ("FAIL", "INSENSITIVE"):
                tree = trees.get(id(entry))
                target = tree.culprit_id if tree is not None else ""
                yield entry.verdict, overview.place(case, precision, entry), entry, target

    def failing_streams(self) -> list[str]:
        return list(stream_lines(self.report, "FAIL"))

    def without_verdict(self) -> list[tuple[str, RunnerReport]]:
        """Runners without a verdict, without a latency or without rooflines, except builds."""
        return [
            (place, entry)
            for place, entry in self._places()
            if entry.status != overview.BUILT
            and (entry.verdict == "NONE" or entry.timing_reason or entry.roofline_reason)
        ]

    def engines(self) -> list[tuple[str, RunnerReport, str]]:
        """Runners that built engines, with the reason if these did not run."""
        return [
            (place, entry, entry.reason if entry.status == overview.BUILT else "")
            for place, entry in self._places()
            if entry.builds
        ]

    def _places(self) -> Iterator[tuple[str, RunnerReport]]:
        for case, precision, entry in self.report.runner_reports():
            yield overview.place(case, precision, entry), entry

    def gaps(self) -> dict[str, str]:
        return overview.gaps(self.report)

    def tolerated(self) -> list[str]:
        return overview.tolerated(self.report)

    def notes(self) -> list[str]:
        return overview.notes(self.report)


def render_html(report: Report) -> str:
    """The report as one self-contained HTML page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parity.report.html", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "error": _error,
        "ratio": overview.ratio_text,
        "detectable": overview.detectable_text,
        "ms": milliseconds,
        "engine": overview.engine,
        "heat": heat,
        "measures": overview.measures,
        "by_runner": overview.by_runner,
        "coverage_words": coverage.in_words,
        "file_of": coverage.file_of,
    }
    # The library draws without Python's lock: the tables are written meanwhile.
    drawing = ThreadPoolExecutor(max_workers=1)
    try:
        template = environment.get_template("report.html")
        page = Page(report, drawing)
        return overview.printable(template.render(page=page, report=report, reference=REFERENCE))
    finally:
        drawing.shutdown(cancel_futures=True)


def _error(number: float) -> str:
    """An error, or any small number, with three digits."""
    return "0" if number == 0.0 else f"{number:.2e}" if math.isfinite(number) else str(number)
