"""The comparison of two reports on the same cases: regressions, improvements, and parts without a comparison.

The rule
--------
**Errors** are deterministic. The same program on the same inputs, weights and libraries gives the same bits.
Every difference therefore comes from a change of code or libraries. Not every difference is a regression:

* One more rounding beside each existing one doubles the variance, since independent roundings add in squares.
  Up to GROWTH = sqrt(2) an error has the same size.
* Another order of operations gives new rounding errors of all m elements, from the same variance. The norm
  then lies between two quantiles, in all but a share CHANCE of all cases: of the chi distribution for the
  Euclidean norm, of the largest of m normal variables for the other. Up to their ratio an error is unchanged.
  Errors with one cause in many elements vary more, so a regression may be reported where there is none.

An error has grown if its factor in either norm exceeds both bounds. An error of zero that is no longer zero
has grown. The scale error is left to the verdict: roundings cancel in it, and the remainder has no size to
compare.

**Latencies** vary from run to run. A latency has grown if the medians are further apart than both
interquartile ranges together,

    median_new - median_old > iqr_old + iqr_new.

Two samples of one distribution exceed this in 1 of 2,000 comparisons of 7 runs, and less often with more
runs. Fewer than MIN_RUNS runs have no quartiles. A machine may be busier in one run than in the other. The
reference shows this, since interleaved rounds time it with the others. Its own latencies are not judged.
Another latency has changed only if its ratio to the reference's has, from quartile to quartile. Single
modules are timed one after the other. Their comparison shows the cause of a change of the whole model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from scipy.special import chdtri, ndtri

from parity.base.errors import UserError
from parity.execution.record import REFERENCE
from parity.report.latencies import milliseconds
from parity.report.schema import (
    CaseReport,
    PrecisionReport,
    Report,
    RunnerReport,
    StreamReport,
)
from parity.report.schema_modules import LatencyReport, ModuleReport, VerdictReport

GROWTH = math.sqrt(2.0)
CHANCE = 1e-4
MIN_RUNS = 4
_STANDING = {"PASS": 0, "INSENSITIVE": 1, "GAP": 2, "BUILT": 2, "UNAVAILABLE": 3}
_WORST = 4
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        place: Case, precision and runner.
        what: Module, check or metric.
        old, new: Both values in words.
        factor: Ratio of the new value to the old one; None for a verdict.
    """

    kind: Literal["verdict", "error", "latency", "missing"]
    place: str
    what: str
    old: str
    new: str
    factor: float | None = None


@dataclass
class Changes:
    """All differences between two reports.

    Attributes:
        worse: Regressions.
        better: Improvements, by the same rules.
        added: Parts of the new report only.
        not_comparable: Cases that are not compared, with the reason.
        notes: Other remarks.
        errors: Number of compared errors.
        moved: Number of compared errors that differ in any bit.
        latencies: Number of compared latencies.
    """

    worse: list[Change] = field(default_factory=list)
    better: list[Change] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: int = 0
    moved: int = 0
    latencies: int = 0


def compare_reports(old: Report, new: Report) -> Changes:
    """The changes from `old` to `new`.

    Raises:
        UserError: No case of the one report can be compared with one of the other.
    """
    changes = Changes()
    same_machine = _same_machine(old, new, changes)
    pairs = list(
        _pairs({c.case.name: c for c in old.cases}, {c.case.name: c for c in new.cases}, "case", "", changes)
    )
    comparable = [(name, a, b) for name, a, b in pairs if _comparable(name, a, b, changes)]
    # A precision of one report alone is a part that is gone or added, if the case has another in both.
    shared = {name: _shared_precisions(name, a, b, changes) for name, a, b in comparable}
    comparable = [(name, a, b) for name, a, b in comparable if shared[name] is None or shared[name]]
    if not comparable:
        reasons = "; ".join(changes.not_comparable) or "they have no case in common"
        raise UserError(
            "compare", "these reports", f"cannot be compared: {reasons}", "give two runs of the same cases"
        )
    for name, a, b in comparable:
        for stream, before, after in _pairs(_streams(a), _streams(b), "stream", name, changes):
            _compare_standing(name, f"stream {stream}", before.status, after.status, changes)
        precisions = _by_precision(a), _by_precision(b)
        for precision, p, q in _pairs(*precisions, "precision", name, changes):
            if precision not in (shared[name] or ()):
                continue
            where = f"{name}, {precision}"
            runners = {r.runner: r for r in p.runners}, {r.runner: r for r in q.runners}
            control = _Control(*(_latencies(report.get(REFERENCE)) for report in runners))
            for runner, r, s in _pairs(*runners, "runner", where, changes):
                timed = same_machine and r.label == s.label and runner != REFERENCE
                _compare_runner(f"{where}, {s.label}", r, s, control if timed else None, changes)
    changes.worse.sort(key=lambda change: _KINDS.index(change.kind))
    return changes


_KINDS = ("verdict", "missing", "error", "latency")
"""Kinds of a change, the gravest first."""


def _streams(case: CaseReport) -> dict[str, StreamReport]:
    """Streams by precision and library; the device may change."""
    return {f"{stream.precision} {stream.library}": stream for stream in case.streams}


def _by_precision(case: CaseReport) -> dict[str, PrecisionReport]:
    return {precision.precision: precision for precision in case.precisions}


def _same_machine(old: Report, new: Report, changes: Changes) -> bool:
    """Whether latencies are comparable; adds a note if not."""
    names = {*old.environment, *new.environment}
    differing = sorted(name for name in names if old.environment.get(name) != new.environment.get(name))
    if differing:
        listed = ", ".join(
            f"{name} {old.environment.get(name, 'none')} and {new.environment.get(name, 'none')}"
            for name in differing
        )
        changes.notes.append(f"latencies are not comparable: the environments differ in {listed}")
    return not differing


def _comparable(name: str, old: CaseReport, new: CaseReport, changes: Changes) -> bool:
    """Whether errors are comparable; adds the reason if not."""
    differing = [
        what
        for what, a, b in (
            ("configuration", old.case, new.case),
            ("weights", old.weights_digest, new.weights_digest),
        )
        if a != b
    ]
    if differing:
        changes.not_comparable.append(f"{name}: not the same {' and '.join(differing)}")
    return not differing


def _shared_precisions(name: str, old: CaseReport, new: CaseReport, changes: Changes) -> set[str] | None:
    """Precisions that ran the same batches in both reports; adds the reason for the others.

    Later precisions of a run have fewer batches than its first one, so that the batches of a precision depend
    on its place in the run.

    Returns:
        None for a case without a precision in either report, which has streams alone.
    """
    before, after = _by_precision(old), _by_precision(new)
    if not before and not after:
        return None
    both = [precision for precision in before if precision in after]
    if not both:
        names = f"{', '.join(before) or 'none'} and {', '.join(after) or 'none'}"
        changes.not_comparable.append(f"{name}: no precision in common ({names})")
        return set()
    shared = {x for x in both if _batches(old, x) == _batches(new, x)}
    differing = [precision for precision in both if precision not in shared]
    if differing:
        inputs = [[batch.digest for batch in case.batches] for case in (old, new)]
        where = f"{name}, {', '.join(differing)}: not the same batches"
        changes.not_comparable.append(where if inputs[0] == inputs[1] else f"{name}: not the same inputs")
    return shared


def _batches(case: CaseReport, precision: str) -> list[tuple[str, str, str]]:
    """What the batches of a precision ask. A batch without precisions has all of the case's."""
    return [
        (batch.name, batch.purpose, batch.digest)
        for batch in case.batches
        if precision in batch.precisions or not batch.precisions
    ]


def _pairs(
    old: Mapping[str, _Part], new: Mapping[str, _Part], kind: str, place: str, changes: Changes
) -> Iterator[tuple[str, _Part, _Part]]:
    """Parts of both reports. A part that is gone is a regression, since nothing shows that it is right."""
    for name, part in old.items():
        if name in new:
            yield name, part, new[name]
        else:
            changes.worse.append(Change("missing", place or name, f"{kind} {name}", "there", "gone"))
    where = f"{place}: " if place else ""
    changes.added += [f"{where}{kind} {name}" for name in new if name not in old]


@dataclass(frozen=True)
class _Control:
    """The reference's latencies in both reports, by module."""

    old: Mapping[str, LatencyReport]
    new: Mapping[str, LatencyReport]

    def explains(self, what: str, faster: LatencyReport, slower: LatencyReport, was_faster: bool) -> bool:
        """Whether the reference's latency changed as much."""
        a, b = self.old.get(what), self.new.get(what)
        if a is None or b is None:
            return False
        beside_faster, beside_slower = (a, b) if was_faster else (b, a)
        return slower.p25 / beside_slower.p75 <= faster.p75 / beside_faster.p25


def _latencies(entry: RunnerReport | None) -> dict[str, LatencyReport]:
    if entry is None:
        return {}
    latencies = {WHOLE: entry.latency, **{module.tap: module.latency for module in entry.modules}}
    return {name: latency for name, latency in latencies.items() if latency is not None}


WHOLE = "whole model"
"""Name of the whole model beside the names of modules and checks."""


def _compare_runner(
    place: str, old: RunnerReport, new: RunnerReport, control: _Control | None, changes: Changes
) -> None:
    _compare_standing(place, WHOLE, _standing(old), _standing(new), changes)
    if old.label != new.label:
        changes.notes.append(f"{place}: was {old.label}, hence no comparison of latencies")
    is_slower_or_faster = _compare_latency(place, WHOLE, old.latency, new.latency, control, changes)
    if old.verdict == "NONE" or new.verdict == "NONE":
        return
    modules = {m.tap: m for m in old.modules}, {m.tap: m for m in new.modules}
    for tap, a, b in _pairs(*modules, "module", place, changes):
        _compare_module(place, tap, a, b, control if is_slower_or_faster else None, changes)
    for name, a, b in _pairs(old.checks, new.checks, "check", place, changes):
        _compare_standing(place, name, a.status, b.status, changes)
        _compare_errors(place, name, a, b, changes)
    metrics = {m.name: m for m in old.metrics}, {m.name: m for m in new.metrics}
    for name, a, b in _pairs(*metrics, "metric", place, changes):
        standings = ("FAIL" if metric.flagged else "PASS" for metric in (a, b))
        _compare_standing(place, name, *standings, changes)


def _standing(entry: RunnerReport) -> str:
    return entry.status if entry.verdict == "NONE" else entry.verdict


def _compare_standing(place: str, what: str, old: str, new: str, changes: Changes) -> None:
    before, after = (_STANDING.get(standing, _WORST) for standing in (old, new))
    if before != after:
        into = changes.worse if after > before else changes.better
        into.append(Change("verdict", place, what, old, new))


def _compare_module(
    place: str, tap: str, old: ModuleReport, new: ModuleReport, control: _Control | None, changes: Changes
) -> None:
    _compare_standing(place, tap, old.status, new.status, changes)
    verdicts = (_verdicts(old), _verdicts(new))
    for name, a, b in _pairs(*verdicts, "verdict on", f"{place}, {tap}", changes):
        _compare_errors(place, name, a, b, changes)
    _compare_latency(place, tap, old.latency, new.latency, control, changes)


def _verdicts(module: ModuleReport) -> dict[str, VerdictReport]:
    named = ((f"{module.tap} alone", module.isolated), (f"{module.tap} in the model", module.accumulated))
    return {name: verdict for name, verdict in named if verdict is not None}


def _compare_errors(place: str, what: str, old: VerdictReport, new: VerdictReport, changes: Changes) -> None:
    """Compare both norms; the larger change stands for the verdict."""
    pairs = ((old.err_port_l2, new.err_port_l2), (old.err_port_max, new.err_port_max))
    unchanged = unchanged_up_to(min(old.checked, new.checked))
    norms = [
        (a, b, up_to)
        for (a, b), up_to in zip(pairs, unchanged, strict=True)
        # Two that are no numbers are equal: only a FAIL has them.
        if math.isfinite(a) or math.isfinite(b)
    ]
    if not norms:
        return
    changes.errors += 1
    changes.moved += any(a != b for a, b, _ in norms)
    for into, factor_of in ((changes.worse, _factor), (changes.better, lambda a, b: _factor(b, a))):
        grown = [(a, b) for a, b, up_to in norms if factor_of(a, b) > up_to]
        if grown:
            a, b = max(grown, key=lambda pair: factor_of(*pair))
            into.append(Change("error", place, what, f"{a:.2e}", f"{b:.2e}", _factor(a, b)))


@functools.cache
def unchanged_up_to(elements: int) -> tuple[float, float]:
    """Factors up to which the Euclidean and the largest error of this number of elements are unchanged."""
    tail, count = CHANCE / 2, max(1, elements)
    l2 = math.sqrt(chdtri(count, tail) / chdtri(count, 1 - tail))
    largest = ndtri((1 + (1 - tail) ** (1 / count)) / 2) / ndtri((1 + tail ** (1 / count)) / 2)
    return max(GROWTH, l2), max(GROWTH, float(largest))


def _factor(old: float, new: float) -> float:
    """Growth of an error; an error that is no number is infinite."""
    old, new = (math.inf if math.isnan(error) else error for error in (old, new))
    if old == 0.0 or math.isinf(new):
        return math.inf if new > old else 1.0
    return new / old


def _compare_latency(
    place: str,
    what: str,
    old: LatencyReport | None,
    new: LatencyReport | None,
    control: _Control | None,
    changes: Changes,
) -> bool:
    if control is None or old is None or new is None or min(old.runs, new.runs) < MIN_RUNS:
        return False
    changes.latencies += 1
    faster, slower = sorted((old, new), key=lambda latency: latency.median)
    ranges = (old.p75 - old.p25) + (new.p75 - new.p25)
    if slower.median - faster.median <= ranges or control.explains(what, faster, slower, faster is old):
        return False
    into = changes.worse if slower is new else changes.better
    shown = (f"{milliseconds(latency)} ms" for latency in (old, new))
    into.append(Change("latency", place, what, *shown, new.median / old.median))
    return True
