"""Error maps of the modules that are worth a look: what fails, and what comes closest to it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from parity.report.schema import ErrorMapReport, ModuleReport, RunnerReport, VerdictReport
from parity.verdict.comparison import Evidence, Results
from parity.verdict.error_map import ErrorMap, error_map

FAILING, PASSING = 8, 3
"""A report stays small: the first modules that fail, with the culprit, and the closest to a limit."""


def with_pictures(report: RunnerReport, evidence: Evidence, results: Results) -> RunnerReport:
    """The report on one batch with error maps of its telling modules, from the tensors that were judged."""
    telling = {module.tap for module in _telling(report.modules)}
    modules = []
    for module in report.modules:
        maps = _maps(module, evidence, results) if module.tap in telling else {}
        if module.tap == report.padding_leak:
            maps |= _changed_by_padding(module.tap, evidence, results)
        modules.append(module.model_copy(update={"maps": maps}))
    return report.model_copy(update={"modules": tuple(modules)})


def with_telling_pictures(report: RunnerReport) -> RunnerReport:
    """The report on all batches, each with its own maps, less those of modules that are not telling."""
    telling = {module.tap for module in _telling(report.modules)} | {report.padding_leak}
    modules = (m if m.tap in telling else m.model_copy(update={"maps": {}}) for m in report.modules)
    return report.model_copy(update={"modules": tuple(modules)})


def _telling(modules: Iterable[ModuleReport]) -> list[ModuleReport]:
    modules = [module for module in modules if module.status != "GAP"]
    failing = [module for module in modules if module.status == "FAIL"]
    passing = [module for module in modules if module.status != "FAIL" and module.margin > 0.0]
    # Modules come in the order in which they finish: the first failures are nearest to their cause.
    return failing[:FAILING] + sorted(passing, key=lambda module: -module.margin)[:PASSING]


def _maps(module: ModuleReport, evidence: Evidence, results: Results) -> dict[str, ErrorMapReport]:
    """By verdict: of those that fail, or else of the one that is closest to its limit."""
    verdicts = {"isolated": module.isolated, "accumulated": module.accumulated}
    given = {name: verdict for name, verdict in verdicts.items() if verdict is not None}
    shown = {name: verdict for name, verdict in given.items() if verdict.status == "FAIL"}
    if not shown and given:
        closest = max(given, key=lambda name: given[name].margin)
        shown = {closest: given[closest]}
    found = {name: _map(module.tap, name, verdict, evidence, results) for name, verdict in shown.items()}
    return {name: picture for name, picture in found.items() if picture is not None}


def _changed_by_padding(tap: str, evidence: Evidence, results: Results) -> dict[str, ErrorMapReport]:
    clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
    if clean is None or poisoned is None or clean.shape != poisoned.shape:
        return {}
    keep = evidence.counted(tap, tuple(clean.shape))
    found = error_map(clean, poisoned, keep, 0.0, evidence.batch_size, evidence.valid)
    return {"poisoned": _report(found)} if found else {}


def _report(found: ErrorMap) -> ErrorMapReport:
    return ErrorMapReport(axes=found.axes, shape=found.shape, cells=found.cells)


def _map(
    tap: str, name: str, verdict: VerdictReport, evidence: Evidence, results: Results
) -> ErrorMapReport | None:
    if name == "isolated":
        oracle, port = evidence.oracle_isolated.get(tap), results.isolated.get(tap)
    else:
        is_output = tap.startswith(f"{evidence.entry}.")
        oracle, port = evidence.oracle.get(tap), (results.untapped if is_output else results.tapped).get(tap)
    if oracle is None or port is None or oracle.shape != port.shape:
        return None
    keep = evidence.counted(tap, tuple(oracle.shape))
    # Where NaN leaves no limit, what the bound allows beside an exact reference.
    limit = verdict.floor if math.isnan(verdict.limit_max) else verdict.limit_max
    found = error_map(oracle, port, keep, limit, evidence.batch_size, evidence.valid)
    return _report(found) if found else None
