"""The shared words of all forms of a report: the module tree, the numbers of a check."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.execution.record import BuildRecord, Status
from parity.report.schema import CaseReport, PrecisionReport, Report, RunnerReport
from parity.report.schema_modules import ModuleReport, RowReport, VerdictReport

PORT = "tripy"
BUILT = Status.BUILT.value


def counted(number: int, what: str, plural: str = "s") -> str:
    """A number of things in words; `plural` is the ending of several."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"


def case_title(case: CaseReport) -> str:
    """A case with its input, the size of the input and its weights."""
    batches = counted(len(case.batches), "batch", "es")
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in case.counts.items())
    return f"{case.case.name}: {case.source}; {batches}: {counts}; weights: {case.weights_source}"


def place(case: CaseReport, precision: PrecisionReport, entry: RunnerReport) -> str:
    """The name of a run in a report, with the name of the failing batch."""
    diagnosis = entry.diagnosis
    # A metric covers all batches.
    has_batch = len(case.batches) > 1 and diagnosis is not None and diagnosis.kind != "metric"
    batch = f", {diagnosis.batch}" if has_batch and entry.verdict == "FAIL" else ""
    return f"{case.case.name}, {precision.precision}, {entry.label}{batch}"


def culprit(entry: RunnerReport) -> ModuleReport | None:
    """The module that the diagnosis names, if it names one."""
    tap = entry.diagnosis.tap if entry.diagnosis is not None else ""
    return next((module for module in entry.modules if module.tap == tap), None)


def gaps(report: Report) -> dict[str, str]:
    """Classes of the reference that a port does not have, with the reasons."""
    modules = (module for _, _, entry in report.runner_reports() for module in entry.modules)
    return {module.kind: module.gap for module in modules if module.gap}


def engine(build: BuildRecord) -> str:
    """An engine's facts in a line."""
    return (
        f"{build.shape}: {build.layers} layers ({build.engine_layers} in the engine), "
        f"{build.bytes / 1e6:.1f} MB, {build.seconds:.1f} s, {'/'.join(build.dtypes)}{_quantised(build)}"
    )


def _quantised(build: BuildRecord) -> str:
    layers = (
        f"{layer.type} of {' x '.join(layer.operands)} ({', '.join(layer.modules) or 'no module alone'})"
        for layer in build.quantised
    )
    text = "; ".join(layers)
    return f"; quantised layers: {text}" if text else ""


def tolerated(report: Report) -> list[str]:
    """The failures that tolerances hide, with the places of their runs."""
    runs = ((place(*run), run[2]) for run in report.runner_reports())
    return [f"{where}: {text}" for where, entry in runs for text in tolerated_in(entry)]


def tolerated_in(entry: RunnerReport) -> list[str]:
    """The failures that tolerances hide in a run, the larger one of each tap."""
    hidden = (
        (module.tap, [verdict for verdict in module.verdicts.values() if verdict.tolerated])
        for module in entry.modules
    )
    return [
        f"{tap}: {max(verdicts, key=lambda verdict: verdict.margin).tolerated}"
        for tap, verdicts in hidden
        if verdicts
    ]


MOST_ROUNDING = 3
"""Largest number of modules in a note on rounding; the pages of the modules have all."""


def notes(report: Report) -> list[str]:
    """Notes at modules, once for all runners and precisions of a case, and those on rounding."""
    noted: dict[str, None] = {}
    for case, precision, entry in report.runner_reports():
        for module in entry.modules:
            noted |= dict.fromkeys(f"{case.case.name}: {module.path}: {note}" for note in module.notes)
        if rounding := _rounding_note(entry):
            noted[f"{place(case, precision, entry)}: {rounding}"] = None
    return list(noted)


def _rounding_note(entry: RunnerReport) -> str:
    """The modules that round more than the reference's, the worst first; empty without one."""
    noted = [module for module in entry.modules if module.rounding is not None and module.rounding.noted]
    noted.sort(key=lambda module: -module.rounding.factor if module.rounding is not None else 0.0)
    listed = [f"{module.tap} {module.rounding.text}" for module in noted[:MOST_ROUNDING] if module.rounding]
    more = f"; and {len(noted) - MOST_ROUNDING} modules more" if len(noted) > MOST_ROUNDING else ""
    return f"{'; '.join(listed)}{more}" if noted else ""


def row_lines(case: CaseReport) -> dict[str, str]:
    """By label of a runner, in words: whether its rows depend on their batch, and its results on the run."""
    told: dict[str, dict[str, list[str]]] = {}
    for precision in case.precisions:
        for entry in precision.runners:
            if entry.rows:
                texts = told.setdefault(entry.label, {})
                texts.setdefault(_rows_text(entry.rows), []).append(precision.precision)
    return {
        label: "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
        for label, texts in told.items()
    }


def _rows_text(trials: Sequence[RowReport]) -> str:
    *moved, again = trials
    differing = [trial for trial in moved if trial.first]
    if not moved:
        parts = ["rows cannot be separated"]
    elif not differing:
        parts = ["rows are equal bit for bit in any batch"]
    else:
        largest = ", ".join(f"{trial.kind} by {trial.largest:.0e}" for trial in differing)
        parts = [f"a row differs {largest} of the largest element, first at {differing[0].first}"]
    if again.first:
        parts.append(f"a second run differs by up to {again.largest:.0e}, first at {again.first}")
    else:
        parts.append("a second run is equal bit for bit")
    return ", ".join(parts)


@dataclass(frozen=True)
class Measure:
    """One error of a verdict, of port and reference, with the port's limit."""

    name: str
    port: float
    reference: float
    limit: float

    @property
    def ratio(self) -> float:
        """Error over limit; NaN counts as infinite."""
        if self.port == 0.0:
            return 0.0
        ratio = abs(self.port) / self.limit if self.limit > 0.0 else math.inf
        return math.inf if math.isnan(ratio) else ratio


def measures(verdict: VerdictReport) -> tuple[Measure, ...]:
    """All errors of a verdict, as `parity.verdict.rule` defines them."""
    return (
        Measure("relative L2 error", verdict.err_port_l2, verdict.err_ref_l2, verdict.limit_l2),
        Measure("relative max error", verdict.err_port_max, verdict.err_ref_max, verdict.limit_max),
        Measure("scale error", verdict.scale_error_port, verdict.scale_error_ref, verdict.limit_scale_error),
    )


def verdict_lines(what: str, verdict: VerdictReport) -> str:
    """A verdict in full: the errors, the bound with its derivation, and the worst elements."""
    lines = [f"  {what}: {verdict.status}" + (f" ({verdict.reason})" if verdict.reason else "")]
    if verdict.reason and all(math.isnan(m.port) and math.isnan(m.limit) for m in measures(verdict)):
        # Such as a wrong shape: no element was compared.
        return lines[0]
    lines += [
        f"    {m.name + ':':<19} port {m.port:.3e}, reference {m.reference:.3e}, limit {m.limit:.3e}"
        for m in measures(verdict)
    ]
    lines += [
        f"    {verdict.bound}",
        f"    {verdict.checked} elements compared, {verdict.boundary} left out at a discontinuity"
        + (f", {verdict.ties} chosen otherwise within rounding" if verdict.ties else ""),
    ]
    if verdict.worst:
        lines.append(f"    {'worst at':<24}{'oracle':>16}{'reference':>16}{'port':>16}")
    lines += [
        f"    {str(list(e.index)):<24}{e.oracle:>16.8g}{e.reference:>16.8g}{e.port:>16.8g}"
        for e in verdict.worst
    ]
    return "\n".join(lines)


def printable(text: str) -> str:
    """Text without characters that XML cannot hold, such as the control characters of a log."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


_NOT_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def by_runner(case: CaseReport) -> list[tuple[str, list[RunnerReport | None]]]:
    """The label of each runner and its reports in every precision, None if it did not run."""
    names = dict.fromkeys(entry.runner for p in case.precisions for entry in p.runners)
    rows = []
    for name in names:
        entries = [next((r for r in p.runners if r.runner == name), None) for p in case.precisions]
        rows.append((next(entry.label for entry in entries if entry is not None), entries))
    return rows


def module_tree(taps: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Lines `(depth, name, tap)` of the model's tree, a module above the modules inside it.

    A list and its index are one name. A line without a tap is a container that is never called.
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
"""Index of a module in a list, such as the 0 of `_attention_layers.0`."""


def _lines(
    node: dict[str, Any], names: Mapping[str, str], prefix: str, depth: int
) -> Iterator[tuple[int, str, str]]:
    for name, inner in node.items():
        path = f"{prefix}.{name}" if prefix else name
        yield depth, name, names.get(path, "")
        yield from _lines(inner, names, path, depth + 1)


def ratio_text(ratio: float) -> str:
    """Error over limit in few characters; NaN counts as infinite."""
    if not math.isfinite(ratio):
        return "inf"
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0e}"


def detectable_text(min_detectable_error: float, by_nature: bool = False) -> str:
    """The smallest error that a check detects; empty beside a failure.

    An asterisk says that a note has the reason why no batch of a run detects 1 %.
    """
    if math.isnan(min_detectable_error):
        return ""
    return "all" if min_detectable_error == 0.0 else f"{min_detectable_error:.0e}{'*' * by_nature}"
