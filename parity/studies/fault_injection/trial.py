"""One fault on a bench: applied, judged batch by batch, and its outcome.

A fault in a module changes the results of that module alone, and of the modules around it. All other
evidence comes from runs of the whole model. A trial therefore runs the modules that the fault reaches,
innermost first. It compares after each one, with the clean port's results in place of the others. The first
module that fails alone is the diagnosis, and the trial ends there. Where none fails, the whole model runs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from parity.base.interruption import raisable
from parity.capture.captures import Capture, ModuleCall
from parity.execution.errors import error_text
from parity.studies.fault_injection.batch import BatchBench
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.effects import effect_of
from parity.studies.fault_injection.faults import Fault, Finding, Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.verdict.comparison import Comparison, compare
from parity.verdict.evidence import Results
from parity.verdict.judgement import Diagnosis, TapJudgement

Tensors = Mapping[str, torch.Tensor]
_WORSE = [Outcome.EQUIVALENT, Outcome.BELOW_LIMIT, Outcome.MISSED]


@dataclass(frozen=True)
class _Judged:
    """A faulty port on one batch."""

    batch: BatchBench
    comparison: Comparison
    diagnosis: Diagnosis
    results: Results


def try_fault(bench: Bench, fault: Fault) -> Finding:
    """Apply a fault to the bench's port, judge the port on all batches of the plan, and return the outcome.

    The first batch that detects the fault ends the trial. A fault that none detects also runs on the fuzzed
    set, for the proof that it has no effect.
    """
    undetected: list[_Judged] = []
    for batches in bench.batches():
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(bench.faulty(fault, bench.port, bench.precision))
            except raisable() as error:
                return finding_of(bench, fault, set(), Outcome.BROKEN, "refused", proof=error_text(error))
            homes = bench.homes(fault)
            for batch in batches:
                judged = _judged_on(batch, fault, homes)
                if judged.diagnosis.kind != "none":
                    return _detected(bench, fault, homes, judged)
                undetected.append(judged)
    finding = _undetected(bench, fault, homes, undetected)
    if finding.outcome is not Outcome.EQUIVALENT:
        return finding
    return _on_the_fuzzed_set(bench, fault, homes, finding)


def shows(bench: Bench, fault: Fault, least_margin: float = 0.0) -> bool:
    """Whether the typical batch alone detects a fault, with an error over its limit of more than a margin.

    A port that cannot be made is no wrong port.
    """
    try:
        with bench.faulty(fault, bench.port, bench.precision):
            judged = _judged_on(bench, fault, bench.homes(fault))
    except raisable():
        return False
    margin = margin_of(judged.comparison.tap(judged.diagnosis.tap))
    return judged.diagnosis.kind != "none" and (margin is None or margin > least_margin)


def _judged_on(batch: BatchBench, fault: Fault, homes: set[str]) -> _Judged:
    reached = batch.reached(fault, homes)
    results = _initial_results(batch, reached)
    return _Judged(batch, *_judged(batch, reached, results), results)


def _detected(bench: Bench, fault: Fault, homes: set[str], judged: _Judged) -> Finding:
    row = judged.comparison.tap(judged.diagnosis.tap)
    return finding_of(
        bench,
        fault,
        homes,
        Outcome.DETECTED,
        judged.diagnosis.kind,
        named=judged.diagnosis.tap,
        batch=judged.batch.name,
        localised=is_at_home(judged.diagnosis, row, homes, judged.results),
        margin=margin_of(row),
    )


def _undetected(bench: Bench, fault: Fault, homes: set[str], judged: list[_Judged]) -> Finding:
    """The finding on a fault that no batch detects: its worst effect on any of them."""
    effects = [
        (effect_of(one.batch, fault, homes, one.comparison, one.results), one.batch.name) for one in judged
    ]
    effect, batch = max(effects, key=lambda pair: (_WORSE.index(pair[0].outcome), pair[0].size))
    margins = [
        verdict.margin
        for one in judged
        for row in one.comparison.taps
        for verdict in row.verdicts.values()
        if math.isfinite(verdict.margin)
    ]
    return finding_of(
        bench,
        fault,
        homes,
        effect.outcome,
        "none",
        batch=batch,
        margin=max(margins, default=None),
        effect=effect.size if math.isfinite(effect.size) else None,
        proof=effect.proof,
    )


def _on_the_fuzzed_set(bench: Bench, fault: Fault, homes: set[str], finding: Finding) -> Finding:
    """The finding on a fault without an effect on the plan, after the fuzzed set and its place."""
    fuzzed_set = bench.fuzzed  # run without the fault, so before it is applied
    with bench.faulty(fault, bench.port, bench.precision):
        judged = [_judged_on(batch, fault, homes) for batch in fuzzed_set]
    for one in judged:
        if one.diagnosis.kind != "none":
            proof = f"the plan shows nothing, and a fuzzed batch detects it: {one.batch.name}"
            return finding.model_copy(update={"outcome": Outcome.MISSED, "proof": proof})
    fuzzed = _undetected(bench, fault, homes, judged)
    if fuzzed.outcome is not Outcome.EQUIVALENT:
        return fuzzed
    reason = bench.not_asked(fault)
    if reason:
        return finding.model_copy(update={"outcome": Outcome.NOT_ASKED, "proof": reason})
    return finding


def finding_of(
    bench: Bench, fault: Fault, homes: set[str], outcome: Outcome, kind: str, **facts: Any
) -> Finding:
    """A finding; `facts` are further fields."""
    return Finding(
        case=bench.case.name,
        precision=bench.precision.name,
        operator=fault.operator,
        target=fault.target,
        detail=fault.detail,
        homes=sorted(homes),
        outcome=outcome,
        kind=kind,
        of_family=isinstance(fault, Edit) and bool(fault.family),
        **{"named": "", "localised": False} | facts,
    )


def _initial_results(bench: BatchBench, reached: list[ModuleCall]) -> Results:
    """The clean results, to be replaced as modules run with the fault."""
    results = replace(bench.clean, isolated=dict(bench.clean.isolated), isolated_problems={})
    if any(name in bench.evidence.boundary for call in reached for name in call.outputs):
        # The tapped run shows the rows that a flipped element reaches.
        _run_tapped(bench, results)
    return results


def _judged(bench: BatchBench, reached: list[ModuleCall], results: Results) -> tuple[Comparison, Diagnosis]:
    for call in reached:
        if not _rerun(bench, call, results):
            continue  # the same bits have the verdict of the clean run
        comparison = compare(bench.evidence, results)
        if _failed_alone(comparison):
            return comparison, comparison.diagnosis
    return _judged_whole(bench, results)


def _rerun(bench: BatchBench, call: ModuleCall, results: Results) -> bool:
    """Run a call alone with the fault. Returns whether any bit of its results changes, or it raises."""
    others = {name: tensor for name, tensor in results.isolated.items() if name not in call.outputs}
    before = {name: tensor for name, tensor in results.isolated.items() if name in call.outputs}
    outputs, problems = bench.run_isolated(bench.port, [call])
    results.isolated = others | outputs
    results.isolated_problems = {**results.isolated_problems, **problems}
    is_same = outputs.keys() == before.keys() and all(
        torch.equal(outputs[name], before[name]) for name in outputs
    )
    return bool(problems) or not is_same


def _judged_whole(bench: BatchBench, results: Results) -> tuple[Comparison, Diagnosis]:
    port, arrays, poisoned = bench.port, bench.arrays, bench.poisoned
    tapped = _run_tapped(bench, results)
    results.incremental, incremental = _attempt(lambda: port.run_incremental(arrays))
    results.untapped, untapped = _attempt(lambda: port.run(arrays))
    leak = ""
    if poisoned is not None:
        results.poisoned, leak = _attempt(lambda: port.run_tapped(poisoned).tensors)
    comparison = compare(bench.evidence, results)
    problem = tapped or incremental or untapped or leak
    if problem:
        return comparison, Diagnosis("check", "", f"every module passes on its own, and {problem}")
    return comparison, comparison.diagnosis


def _run_tapped(bench: Bench, results: Results) -> str:
    """Run the port with taps. Returns the message of its exception, or an empty text."""
    try:
        results.received = bench.port.run_tapped(bench.arrays)
    except raisable() as error:
        results.received = Capture()
        return error_text(error)
    finally:
        results.tapped = results.received.tensors
    return ""


def _attempt(run: Callable[[], Tensors]) -> tuple[Tensors, str]:
    """Results of a run and an empty text, or no results and the message of its exception."""
    try:
        return run(), ""
    except raisable() as error:
        return {}, error_text(error)


def _failed_alone(comparison: Comparison) -> bool:
    tap = comparison.diagnosis.tap
    return any(
        row.tap == tap and row.isolated is not None and not row.isolated.passed for row in comparison.taps
    )


def is_at_home(diagnosis: Diagnosis, row: TapJudgement | None, homes: set[str], results: Results) -> bool:
    """Whether the diagnosis names a module that contains the fault.

    A diagnosis of code between modules names the module whose code it is, the entry's by the empty path. So
    does a missing call: its place is the code around the called module. A check of the whole model names no
    module, as its faults are in no module.
    """
    if diagnosis.kind == "between":
        return diagnosis.code in homes
    if row is None:
        return "" in homes
    is_missing = diagnosis.tap not in results.tapped
    return row.path in homes or (is_missing and row.path.rpartition(".")[0] in homes)


def margin_of(row: TapJudgement | None) -> float | None:
    """The error of the first failing verdict over its limit; None without a finite one."""
    if row is None:
        return None
    failed = [verdict for verdict in row.verdicts.values() if not verdict.passed]
    margin = failed[0].margin if failed else math.nan
    return margin if math.isfinite(margin) else None
