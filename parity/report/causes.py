"""Root causes of failures, and the failures that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.report.overview import module_tree, ratio_text
from parity.report.schema import CaseReport, PrecisionReport, Report, RunnerReport
from parity.report.schema_modules import ModuleReport

MOST_BESIDE = 12
"""Largest number of passing modules in the tree around a culprit."""


def downstream(entry: RunnerReport) -> dict[str, str]:
    """The origin of each failure that follows from another one, by tap or name of a check.

    A root cause is a module that fails alone while every module inside it passes alone, or the place that the
    diagnosis names. A module around a root cause fails because of it. A module that fails inside the model
    alone, after the first root cause, receives its error.
    """
    diagnosis = entry.diagnosis
    if entry.verdict != "FAIL" or diagnosis is None or diagnosis.kind in ("none", "metric"):
        return {}
    alone = [module for module in entry.modules if _fails_alone(module)]
    roots = [module for module in alone if not any(_is_inside(other, module) for other in alone)]
    first = next((module for module in entry.modules if module.tap == diagnosis.tap), None)
    origins = {}
    for module in alone:
        inner = next((root for root in roots if _is_inside(root, module)), None)
        if inner is not None and module.tap != diagnosis.tap:
            origins[module.tap] = inner.tap
    if diagnosis.kind == "check" or first is None:
        return origins
    behind = entry.modules[entry.modules.index(first) :]
    cause = f"the code of {diagnosis.code or 'the entry'}" if diagnosis.kind == "between" else first.tap
    for module in behind:
        is_cause = module is first and diagnosis.kind != "between"
        if module.status == "FAIL" and not is_cause and not _fails_alone(module):
            origins[module.tap] = cause
    failing_checks = [name for name, verdict in entry.checks.items() if verdict.status == "FAIL"]
    return origins | dict.fromkeys(failing_checks, cause)


def _fails_alone(module: ModuleReport) -> bool:
    return module.isolated is not None and module.isolated.status == "FAIL"


def _is_inside(inner: ModuleReport, outer: ModuleReport) -> bool:
    return inner.path.startswith(f"{outer.path}.")


@dataclass(frozen=True)
class Failure:
    """Runs of a case that fail in the same place.

    Attributes:
        case: The case.
        runs: The runs with their precisions; the first one stands for all in a short report.
    """

    case: CaseReport
    runs: Sequence[tuple[PrecisionReport, RunnerReport]]

    def others(self) -> str:
        """The runs after the first one, by runner, in words; empty without any."""
        by_label: dict[str, list[str]] = {}
        for precision, entry in self.runs[1:]:
            by_label.setdefault(entry.label, []).append(precision.precision)
        return "; ".join(f"{label}: {', '.join(names)}" for label, names in by_label.items())


def failures(report: Report) -> list[Failure]:
    """The failures of a report, the runs with the same diagnosis in one."""
    places: dict[tuple[str, str, str], list[tuple[CaseReport, PrecisionReport, RunnerReport]]] = {}
    for case, precision, entry in report.runner_reports():
        if entry.verdict == "FAIL" and (diagnosis := entry.diagnosis) is not None:
            # A diagnosis without a tap has its text alone.
            where = diagnosis.tap or diagnosis.text
            key = (case.case.name, diagnosis.kind, where)
            places.setdefault(key, []).append((case, precision, entry))
    return [
        Failure(runs[0][0], [(precision, entry) for _, precision, entry in runs]) for runs in places.values()
    ]


def tree_around(entry: RunnerReport) -> Iterator[tuple[int, str, str]]:
    """The part of the tree around the culprit: `(depth, name, state in words)`.

    It holds the modules around the culprit, beside it and directly inside it.
    """
    modules = {module.tap: module for module in entry.modules}
    culprit = entry.diagnosis.tap if entry.diagnosis is not None else ""
    lines = list(module_tree(modules))
    place = next((number for number, (_, _, tap) in enumerate(lines) if tap == culprit), None)
    if place is None:
        return
    origins = downstream(entry)
    shown = _around([depth for depth, _, _ in lines], place)
    passing = [n for n in shown if (tap := lines[n][2]) and modules[tap].status == "PASS" and tap != culprit]
    left_out = set(passing[MOST_BESIDE:])
    for number in shown:
        depth, name, tap = lines[number]
        if number not in left_out:
            yield depth, name, _state(modules[tap], culprit, origins) if tap else ""
    if left_out:
        yield lines[place][0], f"{len(left_out)} more", "pass"


def _around(depths: Sequence[int], place: int) -> list[int]:
    """Numbers of the lines around a place, beside it and directly inside it, in order."""
    depth = depths[place]
    around: list[int] = []
    for number in range(place - 1, -1, -1):
        if depths[number] < (depths[around[-1]] if around else depth):
            around.append(number)
    parent = around[0] if around else -1
    inside = parent + 1
    end = next((n for n in range(inside, len(depths)) if depths[n] < depth), len(depths))
    beside = [n for n in range(inside, end) if depths[n] == depth]
    after = next((n for n in range(place + 1, end) if depths[n] <= depth), end)
    children = [n for n in range(place + 1, after) if depths[n] == depth + 1]
    return sorted({*around, *beside, *children})


def _state(module: ModuleReport, culprit: str, origins: dict[str, str]) -> str:
    margin = ratio_text(module.margin)
    mark = " <- culprit" if module.tap == culprit else ""
    if module.status == "FAIL":
        how = "alone" if _fails_alone(module) else "in the model"
        if module.tap in origins:
            mark = f", downstream of {origins[module.tap]}" if mark else ", downstream"
        return f"FAIL {margin} times its limit {how}{mark}"
    if module.status == "GAP":
        return f"GAP{mark}"
    return f"{'' if module.status == 'PASS' else 'INSENSITIVE '}{margin}{mark}"
