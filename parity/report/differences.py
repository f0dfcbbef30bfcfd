"""Two reports of the same cases: what got worse, what got better, and what cannot be compared.

What a difference means
-----------------------
**Errors** are deterministic: the same program on the same inputs, weights and libraries gives the same bits,
so that repeating a run explains no difference at all, and every one comes from a change of code or libraries.
Not every one is a loss:

* One more rounding beside each one that there was doubles the variance, since independent roundings add in
  squares: up to GROWTH = sqrt(2) an error has the size that it had.
* Another order of operations draws the rounding errors of all m elements anew from the same variance. Each
  draw's norm lies between two quantiles, of the chi distribution for the Euclidean norm and of the largest of
  m normal variables for the other, but for 1 in 1 / CHANCE draws. Up to their ratio nothing has changed.
  (Elements whose errors have one cause are fewer draws: such a change may be called worse and be none.)

An error has grown when its factor in either norm exceeds both; what was equal to the oracle and is no longer
has grown by any factor. The scale error is left to the verdict: roundings cancel in it, and the
remainder has no size to compare.

**Latencies** vary from run to run. A latency has grown when the medians are further apart than both
interquartile ranges together,

    median_new - median_old > iqr_old + iqr_new,

which two samples of one distribution do in 1 of 2,000 comparisons of 7 runs, and less often with more runs.
Fewer than MIN_RUNS runs have no quartiles to speak of. A machine, though, may be busy on one day and idle on
the next. The reference, timed in turns with the others, tells: its latencies are not judged, and others have
changed only if their ratio to the reference's did, too, from quartile to quartile. Single modules are timed
one after the other and not in turns; they are compared to find the cause where a whole model has changed.
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
from parity.report import overview
from parity.report.schema import (
    CaseReport,
    LatencyReport,
    ModuleReport,
    PrecisionReport,
    Report,
    RunnerReport,
    VerdictReport,
)

GROWTH = math.sqrt(2.0)
CHANCE = 1e-4
MIN_RUNS = 4
_STANDING = {"PASS": 0, "INSENSITIVE": 1, "GAP": 2, "BUILT": 2, "UNAVAILABLE": 3}
_WORST = 4
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Change:
    """One thing that differs: where, in which respect, and both values in words.

    `factor` is how much larger the new value is; None for what is no size.
    """

    kind: Literal["verdict", "error", "latency", "missing"]
    place: str
    what: str
    old: str
    new: str
    factor: float | None = None


@dataclass
class Changes:
    """All that differs between two reports.

    Attributes:
        worse: Regressions.
        better: The same rules the other way round.
        added: What only the new report has.
        not_comparable: Why something that both have was not compared.
        notes: What a reader should know besides.
        errors: Errors that were compared, and how many of them are not bit for bit the same.
        latencies: Latencies that were compared.
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
    """What changed from `old` to `new`.

    Raises:
        UserError: No case of the one report can be compared with one of the other.
    """
    found = Changes()
    same_machine = _same_machine(old, new, found)
    pairs = list(
        _pairs({c.case.name: c for c in old.cases}, {c.case.name: c for c in new.cases}, "case", "", found)
    )
    comparable = [(name, a, b) for name, a, b in pairs if _comparable(name, a, b, found)]
    if not comparable:
        reasons = "; ".join(found.not_comparable) or "they have no case in common"
        raise UserError(
            "--compare", "these reports", f"cannot be compared: {reasons}", "give two runs of the same cases"
        )
    for name, a, b in comparable:
        precisions = _by_precision(a), _by_precision(b)
        for precision, p, q in _pairs(*precisions, "precision", name, found):
            where = f"{name}, {precision}"
            runners = {r.runner: r for r in p.runners}, {r.runner: r for r in q.runners}
            control = _Control(*(_latencies(each.get(REFERENCE)) for each in runners))
            for runner, r, s in _pairs(*runners, "runner", where, found):
                timed = same_machine and r.label == s.label and runner != REFERENCE
                _compare_runner(f"{where}, {s.label}", r, s, control if timed else None, found)
    found.worse.sort(key=lambda change: _KINDS.index(change.kind))
    return found


_KINDS = ("verdict", "missing", "error", "latency")
"""Gravest first."""


def _by_precision(case: CaseReport) -> dict[str, PrecisionReport]:
    return {precision.precision: precision for precision in case.precisions}


def _same_machine(old: Report, new: Report, found: Changes) -> bool:
    """Whether latencies mean the same; says what differs if not."""
    names = {*old.environment, *new.environment}
    differing = sorted(name for name in names if old.environment.get(name) != new.environment.get(name))
    if differing:
        listed = ", ".join(
            f"{name} {old.environment.get(name, 'none')} and {new.environment.get(name, 'none')}"
            for name in differing
        )
        found.notes.append(f"latencies are not comparable: the environments differ in {listed}")
    return not differing


def _comparable(name: str, old: CaseReport, new: CaseReport, found: Changes) -> bool:
    """Whether errors mean the same; says what differs if not."""
    differing = [
        what
        for what, a, b in (
            ("configuration", old.case, new.case),
            ("weights", old.weights_digest, new.weights_digest),
            ("inputs", old.inputs_digests, new.inputs_digests),
        )
        if a != b
    ]
    if differing:
        found.not_comparable.append(f"{name}: not the same {' and '.join(differing)}")
    return not differing


def _pairs(
    old: Mapping[str, _Part], new: Mapping[str, _Part], kind: str, place: str, found: Changes
) -> Iterator[tuple[str, _Part, _Part]]:
    """What both have. What disappeared is a regression: nothing shows any more that it is right."""
    for name, part in old.items():
        if name in new:
            yield name, part, new[name]
        else:
            found.worse.append(Change("missing", place or name, f"{kind} {name}", "there", "gone"))
    where = f"{place}: " if place else ""
    found.added += [f"{where}{kind} {name}" for name in new if name not in old]


@dataclass(frozen=True)
class _Control:
    """The reference's latencies in both reports, by module."""

    old: Mapping[str, LatencyReport]
    new: Mapping[str, LatencyReport]

    def explains(self, what: str, faster: LatencyReport, slower: LatencyReport, was_faster: bool) -> bool:
        """Whether the reference's latency of the same changed as much."""
        a, b = self.old.get(what), self.new.get(what)
        if a is None or b is None:
            return False
        beside_faster, beside_slower = (a, b) if was_faster else (b, a)
        return slower.p25 / beside_slower.p75 <= faster.p75 / beside_faster.p25


def _latencies(entry: RunnerReport | None) -> dict[str, LatencyReport]:
    if entry is None:
        return {}
    given = {_WHOLE: entry.latency, **{module.tap: module.latency for module in entry.modules}}
    return {name: latency for name, latency in given.items() if latency is not None}


_WHOLE = "whole model"


def _compare_runner(
    place: str, old: RunnerReport, new: RunnerReport, control: _Control | None, found: Changes
) -> None:
    _compare_standing(place, _WHOLE, _standing(old), _standing(new), found)
    if old.label != new.label:
        found.notes.append(f"{place}: was {old.label}, hence no comparison of latencies")
    changed = _compare_latency(place, _WHOLE, old.latency, new.latency, control, found)
    if old.verdict == "NONE" or new.verdict == "NONE":
        return
    modules = {m.tap: m for m in old.modules}, {m.tap: m for m in new.modules}
    for tap, a, b in _pairs(*modules, "module", place, found):
        _compare_module(place, tap, a, b, control if changed else None, found)
    for name, a, b in _pairs(old.checks, new.checks, "check", place, found):
        _compare_standing(place, name, a.status, b.status, found)
        _compare_errors(place, name, a, b, found)
    metrics = {m.name: m for m in old.metrics}, {m.name: m for m in new.metrics}
    for name, a, b in _pairs(*metrics, "metric", place, found):
        standings = ("FAIL" if metric.flagged else "PASS" for metric in (a, b))
        _compare_standing(place, name, *standings, found)


def _standing(entry: RunnerReport) -> str:
    return entry.status if entry.verdict == "NONE" else entry.verdict


def _compare_standing(place: str, what: str, old: str, new: str, found: Changes) -> None:
    before, after = (_STANDING.get(standing, _WORST) for standing in (old, new))
    if before != after:
        into = found.worse if after > before else found.better
        into.append(Change("verdict", place, what, old, new))


def _compare_module(
    place: str, tap: str, old: ModuleReport, new: ModuleReport, control: _Control | None, found: Changes
) -> None:
    _compare_standing(place, tap, old.status, new.status, found)
    verdicts = (_verdicts(old), _verdicts(new))
    for name, a, b in _pairs(*verdicts, "verdict on", f"{place}, {tap}", found):
        _compare_errors(place, name, a, b, found)
    _compare_latency(place, tap, old.latency, new.latency, control, found)


def _verdicts(module: ModuleReport) -> dict[str, VerdictReport]:
    named = ((f"{module.tap} alone", module.isolated), (f"{module.tap} in the model", module.accumulated))
    return {name: verdict for name, verdict in named if verdict is not None}


def _compare_errors(place: str, what: str, old: VerdictReport, new: VerdictReport, found: Changes) -> None:
    """Both norms; the one that changed most stands for the verdict."""
    pairs = ((old.err_port_l2, new.err_port_l2), (old.err_port_max, new.err_port_max))
    unchanged = unchanged_up_to(min(old.checked, new.checked))
    norms = [(a, b, up_to) for (a, b), up_to in zip(pairs, unchanged, strict=True) if math.isfinite(a + b)]
    if not norms:
        return
    found.errors += 1
    found.moved += any(a != b for a, b, _ in norms)
    for into, factor_of in ((found.worse, _factor), (found.better, lambda a, b: _factor(b, a))):
        grown = [(a, b) for a, b, up_to in norms if factor_of(a, b) > up_to]
        if grown:
            a, b = max(grown, key=lambda pair: factor_of(*pair))
            into.append(Change("error", place, what, f"{a:.2e}", f"{b:.2e}", _factor(a, b)))


@functools.cache
def unchanged_up_to(elements: int) -> tuple[float, float]:
    """Factors up to which the Euclidean and the largest error of so many elements have not changed."""
    tail, count = CHANCE / 2, max(1, elements)
    l2 = math.sqrt(chdtri(count, tail) / chdtri(count, 1 - tail))
    largest = ndtri((1 + (1 - tail) ** (1 / count)) / 2) / ndtri((1 + tail ** (1 / count)) / 2)
    return max(GROWTH, l2), max(GROWTH, float(largest))


def _factor(old: float, new: float) -> float:
    if old == 0.0:
        return math.inf if new > 0.0 else 1.0
    return new / old


def _compare_latency(
    place: str,
    what: str,
    old: LatencyReport | None,
    new: LatencyReport | None,
    control: _Control | None,
    found: Changes,
) -> bool:
    if control is None or old is None or new is None or min(old.runs, new.runs) < MIN_RUNS:
        return False
    found.latencies += 1
    faster, slower = sorted((old, new), key=lambda latency: latency.median)
    ranges = (old.p75 - old.p25) + (new.p75 - new.p25)
    if slower.median - faster.median <= ranges or control.explains(what, faster, slower, faster is old):
        return False
    into = found.worse if slower is new else found.better
    shown = (f"{overview.milliseconds(latency)} ms" for latency in (old, new))
    into.append(Change("latency", place, what, *shown, new.median / old.median))
    return True
