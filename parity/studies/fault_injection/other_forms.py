"""Faults by hand in the port's other forms: fused forms on the batches of a plan, and streams.

A plain forward of the port does not run every line of it. Lines of a fused form run under the runner of that
form, lines of a stream when items are appended. A stream names a step and a tensor, and no module: every
detection there counts as localised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.coverage.source import CannotApply, swapped
from parity.execution.errors import error_text
from parity.inputs.weights import case_weights
from parity.runners.base import Unavailable
from parity.runners.forms import FORMS, computed_inside
from parity.runners.tripy.modules import TripyModules
from parity.studies.fault_injection.batch import BatchBench
from parity.studies.fault_injection.bench import Bench, paths_of_class
from parity.studies.fault_injection.effects import effect_of_source, same_bits
from parity.studies.fault_injection.faults import Finding, Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.sites import Watch
from parity.studies.fault_injection.trial import finding_of, is_at_home, margin_of, try_fault
from parity.studies.streaming.command import FEW_STEPS, drawn_stream
from parity.studies.streaming.judging import StepVerdicts, follow
from parity.studies.streaming.sides import PortSide
from parity.studies.streaming.sides import Results as StepResults
from parity.studies.streaming.truth import Truth
from parity.verdict.comparison import Comparison, compare
from parity.verdict.evidence import Results
from parity.verdict.judgement import Diagnosis


def try_in_every_form(bench: Bench, other_forms: Callable[[], OtherForms], fault: Edit) -> Finding:
    """Judge a fault of a family in the plain form of the port, then in the forms that run its lines.

    Args:
        bench: The bench, which has the plain form.
        other_forms: Makes or returns the other forms of the bench's case.
        fault: The fault.
    """
    if fault.is_stale:
        proof = f"{fault.old!r} is not in {fault.module} once"
        return finding_of(bench, fault, set(), Outcome.BROKEN, "refused", proof=proof)
    if bench.is_reached(fault):
        finding = try_fault(bench, fault)
    else:
        finding = finding_of(bench, fault, set(), Outcome.NOT_ASKED, "none", proof="no input runs its line")
    if finding.outcome not in (Outcome.EQUIVALENT, Outcome.NOT_ASKED) or not other_forms().reach(fault):
        return finding
    other = other_forms().try_fault(fault)
    is_answer = other.outcome is not Outcome.EQUIVALENT or not bench.is_reached(fault)
    return other if is_answer else finding


class OtherForms:
    """The other forms of a bench's case, run once without a fault.

    Args:
        bench: The bench. Its batches are those of the fused forms.
        modules: Import paths of the modules that may hold a fault.
    """

    def __init__(self, bench: Bench, modules: Iterable[str]) -> None:
        self._bench = bench
        self._batches = bench.plan()
        self._watch = Watch(modules)
        with self._watch.on({}):
            self._fused = [one for name in FORMS if (one := self._loaded(name)) is not None]
            self._clean = [[_judged(form, batch) for batch in self._batches] for form in self._fused]
            self._stream = _Streamed.of(bench)
            self._clean_steps = list(self._stream.steps()) if self._stream is not None else []

    def _loaded(self, name: str) -> _Fused | None:
        """A runner of a form of the port; None where the case has none, or it cannot run here."""
        if FORMS[name] not in self._bench.case.forms:
            return None
        try:
            runner = self._bench.load(name)
        except Unavailable:
            return None
        return _Fused(name, runner) if isinstance(runner, TripyModules) else None

    def reach(self, fault: Edit) -> bool:
        """Whether a form runs a line of the fault."""
        return bool(self._watch.of(fault.module, fault.lines))

    def try_fault(self, fault: Edit) -> Finding:
        """Apply a fault, judge every form on every batch and the stream, and return the outcome."""
        bench = self._bench
        try:
            with swapped(fault.module, fault.tree()):
                return self._worst(fault, self._findings(fault))
        except (CannotApply, LookupError) as error:
            return finding_of(bench, fault, set(), Outcome.BROKEN, "refused", proof=error_text(error))

    def _worst(self, fault: Edit, findings: Iterable[Finding]) -> Finding:
        order = [Outcome.EQUIVALENT, Outcome.BELOW_LIMIT, Outcome.MISSED, Outcome.DETECTED]
        worst = finding_of(
            self._bench, fault, set(), Outcome.EQUIVALENT, "none", proof="no bit of any result changes"
        )
        for finding in findings:
            if order.index(finding.outcome) > order.index(worst.outcome):
                worst = finding
            if worst.outcome is Outcome.DETECTED:
                break
        return worst

    def _findings(self, fault: Edit) -> Iterator[Finding]:
        for form, clean in zip(self._fused, self._clean, strict=True):
            try:
                faulty = _Fused(form.name, self._bench.load(form.name))
            except raisable() as error:
                yield self._detected(fault, set(), form.name, Diagnosis("check", "", error_text(error)))
                continue
            homes = paths_of_class(faulty.runner.model, fault.of_class)
            for batch, (clean_results, clean_comparison) in zip(self._batches, clean, strict=True):
                place = f"{batch.name}, {form.name}"
                try:
                    results, comparison = _judged(faulty, batch)
                except raisable() as error:
                    yield self._detected(fault, homes, place, Diagnosis("check", "", error_text(error)))
                    break
                if comparison.diagnosis.kind != "none":
                    judged = results, comparison
                    yield self._detected(fault, homes, place, comparison.diagnosis, judged)
                    break
                if not same_bits(results, clean_results):
                    effect = effect_of_source(batch.precision, comparison, clean_comparison)
                    facts = {"proof": effect.proof, "effect": effect.size, "batch": place}
                    yield finding_of(self._bench, fault, homes, effect.outcome, "none", **facts)
        if self._stream is not None:
            yield from self._in_the_stream(fault)

    def _in_the_stream(self, fault: Edit) -> Iterator[Finding]:
        assert self._stream is not None
        changes = False
        steps = self._stream.steps()
        for clean_results, _ in self._clean_steps:
            try:
                results, judged = next(steps)
            except raisable() as error:
                yield self._detected(fault, set(), "stream", Diagnosis("check", "", error_text(error)))
                return
            if judged.failed:
                where = Diagnosis("stream", judged.failed, judged.explanation)
                yield self._detected(fault, set(), f"stream, step {judged.step}", where)
                return
            changes |= any(not torch.equal(results[name], clean_results[name]) for name in clean_results)
        if changes:
            proof = "results of a stream change, and every verdict passes"
            yield finding_of(self._bench, fault, set(), Outcome.MISSED, "none", proof=proof, batch="stream")

    def _detected(
        self,
        fault: Edit,
        homes: set[str],
        place: str,
        diagnosis: Diagnosis,
        judged: tuple[Results, Comparison] | None = None,
    ) -> Finding:
        row, localised = None, diagnosis.kind == "stream"
        if judged is not None:
            results, comparison = judged
            row = comparison.tap(diagnosis.tap)
            localised = is_at_home(diagnosis, row, homes, results)
        facts = {"named": diagnosis.tap, "batch": place, "localised": localised, "margin": margin_of(row)}
        return finding_of(self._bench, fault, homes, Outcome.DETECTED, diagnosis.kind, **facts)


@dataclass(frozen=True)
class _Fused:
    """A loaded runner of a form of the port."""

    name: str
    runner: TripyModules


def _judged(form: _Fused, batch: BatchBench) -> tuple[Results, Comparison]:
    inside = computed_inside(batch.case, form.name)
    results = replace(batch.results(form.runner), fused=inside)
    return results, compare(batch.evidence, results)


class _Recorded(PortSide):
    """A port over a stream that remembers the results of its latest step."""

    latest: StepResults

    def append(self, arguments: Mapping[str, Any]) -> StepResults:
        self.latest = super().append(arguments)
        return self.latest


@dataclass(frozen=True)
class _Streamed:
    """A stream of a case with its truth."""

    truth: Truth

    @classmethod
    def of(cls, bench: Bench) -> _Streamed | None:
        """The stream of a bench's case; None for a case without streams."""
        case = bench.case
        try:
            streams = case.streams()
        except UserError:
            return None
        stream, capacity = drawn_stream(streams, FEW_STEPS, None, case.seed)
        return cls(Truth(streams, case_weights(case)[0], bench.precision, stream, capacity))

    def steps(self) -> Iterator[tuple[StepResults, StepVerdicts]]:
        """Results and verdicts of the port's steps, up to the first that fails."""
        truth = self.truth
        side = _Recorded(truth.streams, truth.weights, truth.precision, truth.stream.rows, truth.capacity)
        for judged in follow(truth, side):
            yield side.latest, judged
