"""A replayed run beside the report that the run saved: both are of the same cases and verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.base.errors import UserError
from parity.report.schema import Report

_ROUNDING = 1e-6
"""Relative difference between numbers of equal captures, which threads may sum in another order."""
_WORDS = {"diagnosis", "reason", "bound", "worst", "notes", "error_maps", "rounding", "tolerated"}
"""Fields of a runner that follow from its other fields, or that a search finds. No verdict needs them."""
_THREADS = {"threads", "cores"}
"""Facts of an environment that move no verdict."""


def check_replayed(
    saved: Report, replayed: Report, environment: Mapping[str, str], path: Path, is_same_code: bool
) -> None:
    """Refuse a run whose files say something else than its own report.

    Args:
        saved, replayed: The report that the run saved, and the one of its captures.
        environment: Machine and libraries of the run. Others may give other numbers.
        path: File of the saved report.
        is_same_code: Whether the code that judges is the run's. Other code may find other verdicts.

    Raises:
        UserError: The reports have other cases, batches, precisions or runners, or a verdict passes that did
            not; or nothing fails and any result differs, with the run's code and environment.
    """
    if _facts(saved) != _facts(replayed):
        problem = "has other cases, batches, precisions or runners than the run's captures"
        raise UserError("replay", str(path), problem, "restore the run's files, or run again")
    if not is_same_code:
        return
    before, after = _verdicts(saved), _verdicts(replayed)
    for place in before:
        if before[place] != "PASS" and after[place] == "PASS":
            problem = f"has {before[place]} for {', '.join(place)}, and the captures pass"
            raise UserError("replay", str(path), problem, "restore the run's files, or run again")
    # A runner that fails says enough by itself.
    fails = any(runner.verdict == "FAIL" for _, _, runner in replayed.runner_reports())
    if fails or _comparable(environment) != _comparable(replayed.environment):
        return
    place = next(_differences(_results(saved), _results(replayed), ""), None)
    if place is not None:
        problem = f"has another {place} than the run's captures and records give"
        raise UserError("replay", str(path), problem, "restore the run's files, or run again")


def _comparable(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _THREADS}


def _facts(report: Report) -> list[object]:
    cases = [case.model_dump(exclude={"precisions", "streams"}) for case in report.cases]
    return [cases, report.requested_runners, list(_verdicts(report))]


def _verdicts(report: Report) -> dict[tuple[str, str, str], str]:
    """Verdicts by case, precision and runner, in the order of the report."""
    return {
        (case.case.name, precision.precision, runner.runner): runner.verdict
        for case in report.cases
        for precision in case.precisions
        for runner in precision.runners
    }


def _results(report: Report) -> dict[str, Any]:
    """All results by their place, and the coverage."""
    results: dict[str, Any] = {
        f"{case.case.name}, {precision.precision}, {runner.runner}": runner.model_dump()
        for case, precision, runner in report.runner_reports()
    }
    return results | {"coverage": None if report.coverage is None else report.coverage.model_dump()}


def _differences(saved: Any, replayed: Any, place: str) -> Iterator[str]:
    """Places of the values that differ."""
    if isinstance(saved, dict) and isinstance(replayed, dict):
        if saved.keys() != replayed.keys():
            yield place
        for name in sorted((saved.keys() & replayed.keys()) - _WORDS):
            yield from _differences(saved[name], replayed[name], f"{place}, {name}".removeprefix(", "))
    elif isinstance(saved, tuple) and isinstance(replayed, tuple):
        if len(saved) != len(replayed):
            yield place
        for one, other in zip(saved, replayed, strict=False):
            name = f"{place}, {one['tap']}" if isinstance(one, dict) and "tap" in one else place
            yield from _differences(one, other, name)
    elif not _same(saved, replayed):
        yield place


def _same(saved: Any, replayed: Any) -> bool:
    if isinstance(saved, float) and isinstance(replayed, float):
        both_nan = math.isnan(saved) and math.isnan(replayed)
        return both_nan or math.isclose(saved, replayed, rel_tol=_ROUNDING, abs_tol=_ROUNDING**2)
    return bool(saved == replayed)
