"""A report as text for a terminal, drawn by rich.

A short report has a line for each case, or for each case and precision while they fit on a screen, a line for
each runner, and the failures. A verbose one has every module of every case, and every note.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from parity.report import coverage
from parity.report.causes import Failure, failures, tree_around
from parity.report.outcome import outcome
from parity.report.overview import (
    BUILT,
    culprit,
    engine,
    gaps,
    notes,
    place,
    tolerated,
    verdict_lines,
)
from parity.report.schema import Report, RunnerReport
from parity.report.schema_modules import ModuleReport
from parity.report.streams import stream_lines
from parity.report.terminal_cases import case_table, facts, runner_table
from parity.report.terminal_modules import module_tables

SCREEN = 40
"""Lines of a screen, which a short report without a failure fits; one of them is the report's path."""
_STYLES = {"PASS": "green", "BUILT": "green", "FAIL": "red", "INSENSITIVE": "yellow", "INCOMPLETE": "yellow"}


def render(report: Report, verbose: bool = False) -> RenderableType:
    """The report with its failures in detail, and one sentence at the end.

    Args:
        report: The report.
        verbose: Whether it shows every module and every note.
    """
    tables = module_tables(report) if verbose else [_Tables(report)]
    stated = _every_fact(report) if verbose else facts(report)
    detailed = [part for failure in failures(report) for part in _failure(failure)]
    detailed += [Text(f"FAIL: {line}", style="bold red") for line in stream_lines(report, "FAIL")]
    return Group(*tables, *stated, *_tolerated(report), *_insensitive(report), *detailed, *_closing(report))


@dataclass(frozen=True)
class _Tables:
    """The tables of a short report, as detailed as a screen has room for."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report = self.report
        rest = Group(*facts(report), *_closing(report))
        room = SCREEN - 1 - len(console.render_lines(rest, options))
        for by_precision, graphs in ((True, True), (False, True), (False, False)):
            cases, runners = case_table(report, by_precision), runner_table(report, graphs)
            excess = len(console.render_lines(Group(cases, runners), options)) - room
            if excess <= 0:
                break
        else:
            cases = case_table(report, by_precision, max(1, cases.row_count - excess))
        yield from (cases, runners)


def _closing(report: Report) -> Iterator[Text]:
    """A line on the questions that no input asks of the port, and the verdict."""
    if report.coverage is not None:
        page = "; see report.html#coverage" if report.coverage.unasked else ""
        if report.coverage.questions:
            yield Text(f"{coverage.in_words(report.coverage)}{page}", style="yellow" if page else "dim")
        for reason in report.coverage.reasons:
            yield Text(f"no coverage: {reason}", style="yellow")
    yield summary(report)


def summary(report: Report) -> Text:
    """The verdict in one sentence."""
    sentence = outcome(report)
    return Text(str(sentence), style=f"bold {_STYLES[sentence.word]}")


def _failure(failure: Failure) -> Iterator[RenderableType]:
    """The culprit of the first run, its numbers, and the tree around it."""
    precision, entry = failure.runs[0]
    diagnosis = entry.diagnosis
    assert diagnosis is not None
    yield Text(f"FAIL: {place(failure.case, precision, entry)}: {diagnosis.text}", style="bold red")
    if diagnosis.source:
        # A path on one line can be clicked and copied.
        yield Text(f"  source: {diagnosis.source}", no_wrap=True, overflow="ignore")
    yield from (Text(f"  explanation: {text}", style="bold") for text in diagnosis.explanation)
    module = culprit(entry)
    if module is not None:
        yield from _module_detail(module)
    elif diagnosis.tap in entry.checks:
        yield Text(verdict_lines(diagnosis.tap, entry.checks[diagnosis.tap]))
    yield from _tree(entry)
    if others := failure.others():
        yield Text(f"  the same fails in {others}")
    yield Text()


def _module_detail(module: ModuleReport) -> Iterator[RenderableType]:
    failing = [(name, verdict) for name, verdict in module.verdicts.items() if verdict.status == "FAIL"]
    for name, verdict in failing[:1]:
        yield Text(verdict_lines(f"{module.tap} {name}", verdict))


def _tree(entry: RunnerReport) -> Iterator[RenderableType]:
    """The modules around the culprit, with their states."""
    lines = [(f"{'  ' * depth}{name}", state) for depth, name, state in tree_around(entry)]
    width = max((len(name) for name, _ in lines), default=0)
    for name, state in lines:
        style = "red" if state.startswith("FAIL") else ""
        yield Text(f"    {name:<{width}}  {state}".rstrip(), style=style, no_wrap=True, overflow="ellipsis")


def _tolerated(report: Report) -> Iterator[RenderableType]:
    for text in tolerated(report):
        yield Text(f"TOLERATED: {text}", style="bold red")


def _insensitive(report: Report) -> Iterator[RenderableType]:
    for case, precision, entry in report.runner_reports():
        if entry.verdict == "INSENSITIVE" and entry.diagnosis is not None:
            where = place(case, precision, entry)
            yield Text(f"INSENSITIVE: {where}: {entry.diagnosis.text}", style="bold yellow")


def _every_fact(report: Report) -> Iterator[RenderableType]:
    """Builds and reasons of missing results, a line a run, gaps and notes."""
    for case, precision, entry in report.runner_reports():
        where = place(case, precision, entry)
        if entry.builds:
            how = f" (not run: {entry.reason})" if entry.status == BUILT else ""
            yield Text(f"BUILT{how}: {where}: {'; '.join(map(engine, entry.builds))}")
        if entry.verdict == "NONE" and entry.status != BUILT:
            yield Text(f"{entry.status}: {where}: {entry.reason}", style="yellow")
        if entry.timing_reason:
            yield Text(f"no latency: {where}: {entry.timing_reason}", style="yellow")
        if reason := entry.replay_reasons.get(""):
            yield Text(f"no replay: {where}: {reason}", style="yellow")
        if entry.roofline_reason:
            yield Text(f"no rooflines: {where}: {entry.roofline_reason}", style="yellow")
    yield from (Text(f"stream: {line}", style="dim") for line in stream_lines(report, "PASS"))
    for kind, reason in gaps(report).items():
        yield Text(f"GAP: {kind}: {reason}", style="yellow")
    for note in notes(report):
        yield Text(f"note: {note}", style="yellow")


def render_list(
    cases: Iterable[tuple[str, bool, str]],
    runners: Iterable[tuple[str, bool, str]],
    precisions: Iterable[tuple[str, bool, str]],
) -> Group:
    """All that can run: `(name, whether by default, description)` of cases, runners and precisions."""
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
