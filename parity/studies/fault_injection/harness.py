"""One fault in the suite itself: applied around a whole run in this process, and its outcome."""

from __future__ import annotations

import itertools

import torch

from parity.coverage.source import CannotApply, swapped
from parity.in_process import CleanRun, describe
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.effects import same_bits
from parity.studies.fault_injection.faults import Finding, Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.sites import Watch
from parity.studies.fault_injection.trial import finding_of
from parity.verdict.comparison import compare
from parity.verdict.judgement import Diagnosis


def try_in_harness(bench: Bench, fault: Edit) -> Finding:
    """Apply a fault of the suite around a whole run of each batch, and return the outcome.

    The port has no fault. Every diagnosis and every error detects the fault, and belongs to no module.
    """
    watch, port = Watch((fault.module,)), TripyRunner()
    for batch in itertools.chain.from_iterable(bench.batches()):
        try:
            with swapped(fault.module, fault.tree()), watch.on({}):
                run = CleanRun(bench.case, bench.precision, batch.arrays)
                port.load(run.case, run.precision, run.weights)
                results = run.results(port)
                diagnosis = compare(run.evidence, results).diagnosis
        except (CannotApply, LookupError) as error:
            return finding_of(bench, fault, set(), Outcome.BROKEN, "refused", proof=describe(error))
        except Exception as error:  # noqa: BLE001, any exception shows the fault
            diagnosis = Diagnosis("check", "", describe(error))
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
