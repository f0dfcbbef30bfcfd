"""The short report for a terminal: a line for each case, a line for each runner, and facts with counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from parity.execution.record import REFERENCE, Status
from parity.report.overview import BUILT, PORT, detectable_text, gaps, notes, place, ratio_text
from parity.report.schema import CaseReport, PrecisionReport, Report, RunnerReport
from parity.report.schema_modules import LatencyReport, ModuleReport
from parity.verdict.judgement import MODEL_OUTPUT
from parity.verdict.magnitudes import BEYOND

MOST_BEYOND = 4
"""Largest number of shown notes on modules that are right on the inputs alone."""
SHORTEST_NAME = 12
"""Width at which a module's name is cut no further."""
_STYLES = {"PASS": "green", "BUILT": "green", "INSENSITIVE": "yellow", "UNAVAILABLE": "yellow"}
_PASSING = ("PASS", BUILT)
_LEAST_SERIOUS = ("FAIL", "INSENSITIVE", "UNAVAILABLE", "PASS", "BUILT")


@dataclass(frozen=True)
class _Line:
    """One case in some of its precisions, over all runners."""

    case: CaseReport
    precisions: Sequence[PrecisionReport]
    needed: Collection[str]

    @property
    def name(self) -> str:
        is_whole = len(self.precisions) == len(self.case.precisions) > 1
        return self.case.case.name if is_whole else f"{self.case.case.name} {self.precisions[0].precision}"

    @property
    def verdict(self) -> str:
        """The most serious verdict or status of a runner."""
        words = {word_of(entry, self.needed) for p in self.precisions for entry in p.runners}
        # Other statuses, such as CRASHED, come first.
        order = {word: place for place, word in enumerate(_LEAST_SERIOUS, start=1)}
        return min(words, key=lambda word: order.get(word, 0), default="NONE")

    @property
    def checks(self) -> list[tuple[str, ModuleReport]]:
        """The compared modules of the judged runners, with their precision."""
        return [
            (p.precision, module)
            for p in self.precisions
            for entry in p.runners
            if entry.runner != REFERENCE
            for module in entry.modules
            if module.status != "GAP"
        ]

    def cells(self) -> list[RenderableType]:
        word = self.verdict
        shown = Text(word, style=_STYLES.get(word, "bold red"))
        if not self.checks:
            return [self.name, shown, "", "", Text(), ""]
        precision, worst = max(self.checks, key=lambda check: check[1].margin)
        of_several = f"{precision} " if len(self.precisions) > 1 else ""
        return [
            self.name,
            shown,
            str(len(self.checks)),
            ratio_text(worst.margin),
            _Cut(worst.tap, of_several),
            _least_detected(self.checks),
        ]


def word_of(entry: RunnerReport, needed: Collection[str]) -> str:
    """A run's verdict, or its status if it has none; BUILT for a runner that nobody needs."""
    if entry.verdict != "NONE":
        return entry.verdict
    is_missed = entry.status == Status.UNAVAILABLE.value and entry.runner not in needed
    return BUILT if is_missed else entry.status


def _least_detected(checks: Sequence[tuple[str, ModuleReport]]) -> str:
    """The largest smallest detected error of a module in a precision; empty beside a failure.

    Outputs of the model do not count, and one call of a module is enough, as for INSENSITIVE.
    """
    best: dict[tuple[str, str], ModuleReport] = {}
    for precision, module in [check for check in checks if check[1].kind != MODEL_OUTPUT] or checks:
        known = best.setdefault((precision, module.path), module)
        if module.min_detectable_error <= known.min_detectable_error:
            best[precision, module.path] = module
    worst = max(best.values(), key=lambda module: module.min_detectable_error, default=None)
    return "" if worst is None else detectable_text(worst.min_detectable_error, worst.by_nature)


@dataclass(frozen=True)
class _Cut:
    """A name on one line, of which a narrow terminal shows the end, or the beginning.

    Attributes:
        name: The name.
        before: Text that stays before the end of the name.
        shows_end: Whether the end is shown.
    """

    name: str
    before: str = ""
    shows_end: bool = True

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        whole = len(self.before) + len(self.name)
        return Measurement(min(whole, len(self.before) + SHORTEST_NAME), whole)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - len(self.before)
        name = self.name
        if len(name) > room:
            name = f"…{name[len(name) - room + 1 :]}" if self.shows_end else f"{name[: room - 1]}…"
        yield Text(f"{self.before}{name}", no_wrap=True, overflow="crop")


def case_table(report: Report, by_precision: bool, most: int | None = None) -> Table:
    """A line for each case and precision, or for each case whose precisions all pass.

    Args:
        report: The report.
        by_precision: Whether every precision has a line of its own.
        most: Largest number of lines. Passing ones far from their limits then share the last line.
    """
    timed = _timed_runners(report)[:2]
    table = _table()
    table.add_column("\ncase", no_wrap=True)
    table.add_column("\nverdict", no_wrap=True)
    table.add_column("\nchecks", justify="right", no_wrap=True)
    table.add_column("err/\nlimit", justify="right", no_wrap=True)
    table.add_column("\nworst, at")
    table.add_column("min.\nerror", justify="right", no_wrap=True)
    # A line of several precisions shows the latency in the first one.
    several = "" if by_precision else f"{_precisions(report)[0]} "
    for name in timed:
        table.add_column(f"{name}\n{several}ms", justify="right", no_wrap=True)
    lines = [line for case in report.cases for line in _lines(case, report.needed_runners, by_precision)]
    joined = _least_close(lines, len(lines) - most + 1) if most is not None and most < len(lines) else []
    for line in lines:
        if line not in joined:
            table.add_row(*line.cells(), *(_milliseconds(line.precisions[0], name) for name in timed))
    if joined:
        table.add_row(*_joined(joined))
    return table


def _least_close(lines: Sequence[_Line], number: int) -> list[_Line]:
    """The passing lines whose worst checks are farthest from their limits; no single one."""
    passing = [line for line in lines if line.verdict in _PASSING]
    passing.sort(key=lambda line: max((module.margin for _, module in line.checks), default=0.0))
    return passing[:number] if number > 1 else passing[:2]


def _joined(lines: Sequence[_Line]) -> list[RenderableType]:
    """The cells of a line for several."""
    checks = [check for line in lines for check in line.checks]
    cells: list[RenderableType] = [f"{len(lines)} others", Text("PASS", style=_STYLES["PASS"])]
    if not checks:
        return cells
    precision, worst = max(checks, key=lambda check: check[1].margin)
    place = _Cut(worst.tap, f"{precision} ")
    return [*cells, str(len(checks)), ratio_text(worst.margin), place, _least_detected(checks)]


def _table() -> Table:
    return Table(header_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))


def _lines(case: CaseReport, needed: Collection[str], by_precision: bool) -> Iterator[_Line]:
    whole = _Line(case, case.precisions, needed)
    if by_precision or whole.verdict not in _PASSING:
        for precision in case.precisions:
            yield _Line(case, [precision], needed)
    else:
        yield whole


def _timed_runners(report: Report) -> list[str]:
    """Names of the runners with a latency, the reference and the port first."""
    timed = {entry.runner for _, _, entry in report.runner_reports() if entry.latency is not None}
    return sorted(timed, key=lambda name: (name != REFERENCE, name != PORT, name))


def _milliseconds(precision: PrecisionReport, runner: str) -> str:
    latencies = [entry.latency for entry in precision.runners if entry.runner == runner]
    return _range([latency.median for latency in latencies if latency is not None])


def _precisions(report: Report) -> list[str]:
    return list(dict.fromkeys(p.precision for case in report.cases for p in case.precisions))


def _range(seconds: Sequence[float]) -> str:
    """The shortest and the longest time in ms."""
    if not seconds:
        return ""
    # Two digits, and never as a power of ten.
    low, high = (f"{float(f'{limit * 1e3:.2g}'):g}" for limit in (min(seconds), max(seconds)))
    return low if low == high else f"{low}-{high}"


def runner_table(report: Report, graphs: bool) -> Table:
    """A line for each runner: its verdicts with their numbers, and its latencies over all cases.

    Args:
        report: The report.
        graphs: Whether replays of CUDA graphs, and runners without any verdict, have lines of their own.
    """
    precisions = _precisions(report)
    table = _table()
    table.add_column("runner")
    table.add_column("runs", no_wrap=True)
    for name in precisions:
        table.add_column(f"{name} ms", justify="right", no_wrap=True)
    of_runner: dict[str, list[tuple[str, RunnerReport]]] = {}
    for _, precision, entry in report.runner_reports():
        of_runner.setdefault(entry.label, []).append((precision.precision, entry))
    for label, entries in of_runner.items():
        if not graphs and all(entry.verdict == "NONE" for _, entry in entries):
            continue  # a fact below the tables has their number and the reason
        words = [entry.verdict if entry.verdict != "NONE" else entry.status for _, entry in entries]
        counted = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        style = "" if set(words) <= set(_STYLES) else "bold red"
        times = _times(entries, precisions, lambda latency: latency)
        table.add_row(_Cut(label, shows_end=False), Text(counted, style=style), *times)
        if graphs and any(entry.latency and entry.latency.replay for _, entry in entries):
            table.add_row("  as a CUDA graph", "", *_times(entries, precisions, lambda t: t.replay))
    return table


def _times(
    entries: Sequence[tuple[str, RunnerReport]],
    precisions: Sequence[str],
    of: Callable[[LatencyReport], LatencyReport | None],
) -> Iterator[str]:
    for name in precisions:
        timed = [of(entry.latency) for precision, entry in entries if precision == name and entry.latency]
        yield _range([latency.median for latency in timed if latency is not None])


def facts(report: Report) -> Iterator[Text]:
    """Reasons of missing results, once for all runs that share one, and the numbers of facts left out."""
    yield Text(f"largest min. error: {_by_precision(report)}", style="dim")
    missing: dict[tuple[str, str, str], list[str]] = {}
    for case, precision, entry in report.runner_reports():
        for word, reason in _reasons(entry):
            missing.setdefault((word, entry.label, reason), []).append(place(case, precision, entry))
    for (word, label, reason), places in missing.items():
        where = places[0] if len(places) == 1 else f"{len(places)} runs of {label}"
        overflow: OverflowMethod = "ellipsis" if word == BUILT else "fold"
        yield Text(f"{word}: {where}: {reason}", style="yellow", no_wrap=word == BUILT, overflow=overflow)
    if text := _rows(report):
        yield Text(text, style="dim")
    if streams := [stream for case in report.cases for stream in case.streams]:
        margin = ratio_text(max(max(stream.cache_margin, stream.output_margin) for stream in streams))
        passed = sum(not stream.failed for stream in streams)
        yield Text(f"streams: {passed} of {len(streams)} PASS; worst err/limit {margin}", style="dim")
    if text := _metrics(report):
        yield Text(text, style="dim")
    noted = notes(report)
    beyond = [note for note in noted if BEYOND in note]
    yield from (Text(note, style="yellow") for note in beyond[:MOST_BEYOND])
    left_out = {"reasons of gaps": len(gaps(report)), "notes": len(noted)}
    listed = ", ".join(f"{name} ({number})" for name, number in left_out.items() if number)
    yield Text(f"-v and report.html show: every module{f', {listed}' if listed else ''}", style="dim")


def _by_precision(report: Report) -> str:
    checks = [check for case in report.cases for check in _Line(case, case.precisions, ()).checks]
    return ", ".join(
        f"{name} {_least_detected([check for check in checks if check[0] == name]) or '-'}"
        for name in _precisions(report)
    )


def _reasons(entry: RunnerReport) -> Iterator[tuple[str, str]]:
    """Words for missing results, with the reasons."""
    if entry.verdict == "NONE":
        yield entry.status, entry.reason
    if entry.timing_reason:
        yield "no latency", entry.timing_reason
    if reason := entry.replay_reasons.get(""):
        yield "no replay", reason
    if entry.roofline_reason:
        yield "no rooflines", entry.roofline_reason


def _rows(report: Report) -> str:
    """The numbers of runs whose rows depend on their batch, and whose second run differs."""
    tried = [entry.rows for _, _, entry in report.runner_reports() if entry.rows]
    if not tried:
        return ""
    separated = [rows for rows in tried if len(rows) > 1]
    equal = sum(not any(trial.first for trial in rows[:-1]) for rows in separated)
    repeated = sum(not rows[-1].first for rows in tried)
    rows = f"rows equal in any batch: {equal} of {len(separated)} runs; " if separated else ""
    return f"{rows}second run equal: {repeated} of {len(tried)} runs"


def _metrics(report: Report) -> str:
    metrics = [metric for _, _, entry in report.runner_reports() for metric in entry.metrics]
    if not metrics:
        return ""
    flagged = sum(metric.flagged for metric in metrics)
    missing = sum(bool(metric.reason) for metric in metrics)
    without = f", {missing} without a number" if missing else ""
    return f"task metrics: {len(metrics) - flagged - missing} as the reference's, {flagged} moved{without}"
