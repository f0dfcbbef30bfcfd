"""A report's first sentence: the verdict of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parity.execution.record import REFERENCE
from parity.report.overview import BUILT, counted
from parity.report.schema import Report
from parity.verdict.magnitudes import BEYOND
from parity.verdict.sensitivity import INSENSITIVE_ABOVE


@dataclass(frozen=True)
class Outcome:
    """A run's verdict: one word, and the rest of its sentence."""

    word: Literal["PASS", "FAIL", "INSENSITIVE", "BUILT", "INCOMPLETE"]
    text: str

    def __str__(self) -> str:
        return f"{self.word}: {self.text}"


def outcome(report: Report) -> Outcome:
    """The verdict in one sentence."""
    entries = [entry for _, _, entry in report.runner_reports()]
    judged = [entry for entry in entries if entry.verdict != "NONE" and entry.runner != REFERENCE]
    failed = [entry for entry in entries if entry.verdict == "FAIL"]
    insensitive = [entry for entry in entries if entry.verdict == "INSENSITIVE"]
    built = sum(len(entry.builds) for entry in entries if entry.status == BUILT)
    broken = [entry for entry in entries if entry.verdict == "NONE" and entry.status != BUILT]
    needed = report.needed_runners
    missing = [entry for entry in broken if entry.runner in needed or entry.status != "UNAVAILABLE"]
    modules = [module for entry in judged for module in entry.modules]
    gaps = sum(module.status == "GAP" for module in modules)
    limited = sum(module.by_nature for module in modules)
    beyond = sum(note.startswith(BEYOND) for module in modules for note in module.notes)
    compared = f"{counted(len(modules) - gaps, 'module verdict')} of {counted(len(judged), 'run')}"
    notes = f"; {counted(gaps, 'gap')}, each with its reason" if gaps else ""
    notes += f"; {counted(limited, 'check')} cannot detect 1 % in any batch of a run" if limited else ""
    notes += f"; {counted(beyond, 'check')} would not pass beyond the inputs" if beyond else ""
    notes += f"; {counted(built, 'engine')} built and not run" if built else ""
    notes += f"; {counted(len(broken), 'run')} without a verdict" if broken else ""
    changed = ", ".join(report.changed_code)
    notes += f"; the captures are of other code than today's {changed}" if changed else ""
    streams = sum(len(case.streams) for case in report.cases)
    failing_streams = len(report.failing_streams())
    if failed or failing_streams:
        with_verdict = sum(entry.verdict != "NONE" for entry in entries)
        runs = _share(len(failed), with_verdict, "run", "diverge")
        fails = [_share(failing_streams, streams, "stream", "fail")] if failing_streams else []
        # What fails comes first.
        parts = [runs, *fails] if failed else [*fails, runs]
        return Outcome("FAIL", f"{'; '.join(parts)}{notes}.")
    compared += f" and {counted(streams, 'stream')}" if streams else ""
    if built and not judged and not missing:
        return Outcome("BUILT", f"every graph; nothing was compared{notes}.")
    if missing or not judged:
        ran = f"all that ran passes, {compared}" if judged or streams else "nothing was judged"
        return Outcome("INCOMPLETE", f"{ran}{notes}.")
    if insensitive:
        checks = sum(module.status == "INSENSITIVE" for entry in insensitive for module in entry.modules)
        return Outcome(
            "INSENSITIVE",
            f"nothing diverges, {compared}, but {checks} of these checks do not detect "
            f"an error of {INSENSITIVE_ABOVE:.0%}{notes}.",
        )
    worst = max(modules, key=lambda module: module.margin)
    closest = f"the closest to its limit is {worst.tap} at {worst.margin:.2f}"
    return Outcome("PASS", f"{compared}; {closest}{notes}.")


def _share(number: int, total: int, what: str, does: str) -> str:
    """How many of a run's parts do something: "1 of 2 streams fails"."""
    return f"{number or 'none'} of {counted(total, what)} {does if number > 1 else does + 's'}"
