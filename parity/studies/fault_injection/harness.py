"""One fault in the suite itself: applied around runs in this process and in processes of their own."""

from __future__ import annotations

import functools
import hashlib
import itertools

import torch

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.coverage.source import CannotApply, swapped
from parity.execution.errors import error_text
from parity.in_process import CleanRun
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.effects import same_bits
from parity.studies.fault_injection.faults import Fault, Finding, Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.overlay import Answer, travel
from parity.studies.fault_injection.sites import Watch
from parity.studies.fault_injection.trial import finding_of, shows
from parity.verdict.comparison import compare
from parity.verdict.judgement import Diagnosis

PER_OPERATOR = 2
"""Number of wrong ports of each operator."""


PLAIN = 30.0
"""Least error over its limit of a wrong port, beyond which no other draw of inputs hides it."""


class HarnessBench:
    """A right port and wrong ones, with which a fault of the suite itself is judged.

    A fault shows when a right port fails, when a wrong port passes that the suite detects without the fault,
    or when a journey through whole runs fails (`parity.studies.fault_injection.journeys`).

    Args:
        bench: The case without a fault.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def try_fault(self, fault: Edit) -> Finding:
        """Apply a fault of the suite, and return the outcome.

        Every diagnosis and every error detects the fault, and belongs to no module.
        """
        if fault.is_stale:
            proof = f"{fault.old!r} is not in {fault.module} once"
            return finding_of(self._bench, fault, set(), Outcome.BROKEN, "refused", proof=proof)
        finding = _in_process(self._bench, fault)
        if finding.outcome is Outcome.MISSED:
            finding = self._with_wrong_ports(fault) or finding
        if finding.outcome in (Outcome.DETECTED, Outcome.BROKEN):
            return finding
        return self._in_whole_runs(fault, finding)

    @functools.cached_property
    def _wrong_ports(self) -> list[Fault]:
        """Faults that the suite detects in the typical batch, a few of each operator."""
        by_operator: dict[str, list[Fault]] = {}
        for fault in self._bench.faults():
            by_operator.setdefault(fault.operator, []).append(fault)
        wrong: list[Fault] = []
        for faults in by_operator.values():
            ordered = sorted(faults, key=lambda fault: hashlib.sha256(fault.identity.encode()).digest())
            detected = (fault for fault in ordered if shows(self._bench, fault, PLAIN))
            wrong += itertools.islice(detected, PER_OPERATOR)
        return wrong

    def _with_wrong_ports(self, fault: Edit) -> Finding | None:
        """The detection of a fault by a wrong port that passes; None if none does."""
        bench, wrong_ports = self._bench, self._wrong_ports
        with swapped(fault.module, fault.tree()):
            blind = Bench(bench.case, bench.precision)
            by_identity = {one.identity: one for one in blind.faults()}
            passing = (
                one.identity
                for one in wrong_ports
                if one.identity not in by_identity or not shows(blind, by_identity[one.identity])
            )
            first = next(passing, None)
        if first is None:
            return None
        facts = {
            "named": "",
            "batch": bench.name,
            "localised": True,
            "proof": f"a wrong port passes: {first}",
        }
        return finding_of(bench, fault, set(), Outcome.DETECTED, "wrong port", **facts)

    @functools.cached_property
    def _clean(self) -> Answer:
        return travel(self._bench.case, self._bench.precision, None)

    def _in_whole_runs(self, fault: Edit, finding: Finding) -> Finding:
        """The finding after the journeys, on a fault that `finding` does not detect."""
        bench, clean = self._bench, self._clean
        if clean.problem:
            raise UserError(
                "self-test", bench.case.name, f"fails without a fault ({clean.problem})", "mend it"
            )
        answer = travel(bench.case, bench.precision, fault)
        if answer.problem:
            facts = {"named": "", "batch": "whole runs", "localised": True, "proof": answer.problem}
            return finding_of(bench, fault, set(), Outcome.DETECTED, "whole runs", **facts)
        if answer.facts != clean.facts:
            proof = "numbers of the reports change, and every verdict passes"
            return finding_of(bench, fault, set(), Outcome.MISSED, "none", proof=proof, batch="whole runs")
        if answer.is_reached and finding.outcome is Outcome.NOT_ASKED:
            proof = "no number of any report changes"
            return finding_of(bench, fault, set(), Outcome.EQUIVALENT, "none", proof=proof)
        return finding


def _in_process(bench: Bench, fault: Edit) -> Finding:
    """The outcome of a whole run of each batch in this process, with a right port."""
    watch, port = Watch((fault.module,)), TripyRunner()
    for batch in itertools.chain.from_iterable(bench.batches()):
        try:
            with swapped(fault.module, fault.tree()), watch.on({}):
                run = CleanRun(bench.case, bench.precision, batch.arrays)
                port.load(run.case, run.precision, run.weights)
                results = run.results(port)
                diagnosis = compare(run.evidence, results).diagnosis
        except (CannotApply, LookupError) as error:
            return finding_of(bench, fault, set(), Outcome.BROKEN, "refused", proof=error_text(error))
        except raisable() as error:
            diagnosis = Diagnosis("check", "", error_text(error))
        if diagnosis.kind != "none":
            facts = {"named": diagnosis.tap, "batch": batch.name, "localised": True}
            return finding_of(bench, fault, set(), Outcome.DETECTED, diagnosis.kind, **facts)
        if not (_same_inputs(run, batch) and same_bits(results, batch.clean)):
            proof = "results or inputs of the run change, and every verdict passes"
            return finding_of(bench, fault, set(), Outcome.MISSED, "none", proof=proof, batch=batch.name)
    if not watch.of(fault.module, fault.lines):
        proof = "a run in one process does not reach its line"
        return finding_of(bench, fault, set(), Outcome.NOT_ASKED, "none", proof=proof)
    proof = "no bit of any input, weight or result changes"
    return finding_of(bench, fault, set(), Outcome.EQUIVALENT, "none", proof=proof)


def _same_inputs(run: CleanRun, clean: CleanRun) -> bool:
    """Whether two runs have the same weights and the same evidence of the reference and the oracle."""
    pairs = (
        (run.weights, clean.weights),
        (run.evidence.reference.tensors, clean.evidence.reference.tensors),
        (run.evidence.oracle, clean.evidence.oracle),
    )
    return all(
        ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        for ours, theirs in pairs
    )
