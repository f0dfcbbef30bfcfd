"""Runs without a fault, which count false alarms.

A run's number decides everything about it: case, precision, runner and batches. It judges the typical batch,
one other batch of the plan, and batches with more rows for checks that could not notice 1 %, as a plain run
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.case.plan import TYPICAL
from parity.execution.errors import error_text
from parity.execution.record import RunnerRecord, Status
from parity.in_process import CleanRun
from parity.inputs.arrays import RunInputs, make_inputs, more_rows
from parity.inputs.weights import case_weights
from parity.runners.base import TapsModules, Unavailable
from parity.runners.forms import FORMS, computed_inside
from parity.studies.fault_injection.faults import CleanFinding
from parity.verdict.comparison import compare
from parity.verdict.evidence import Results
from parity.verdict.judgement import RunnerJudgement
from parity.verdict.merging import merge_batches
from parity.verdict.sensitivity import most_further, multiples

RUNNERS = {
    "tripy": 6,
    "torch_jagged": 3,
    "tripy_jagged": 3,
    "torch_fused": 2,
    "onnxruntime": 1,
    "torch_compile": 1,
}
"""Runners with a verdict on a CPU, by how often they are drawn."""
SHIPPED_SHARE = 0.2
"""Share of runs of a case as it is, with another seed and batch size; the others are random small ones."""
DRAWS = 1_000
"""Most draws of a case that its own checks accept."""


@dataclass(frozen=True)
class CleanPlan:
    """A clean run, drawn by its number.

    Attributes:
        case: The case.
        inputs: Its batches.
        others: Numbers of the judged batches besides the typical one.
        precision: Name of the precision.
        runners: Names of all runners, in random order. The first one that can run here is judged.
    """

    case: Case
    inputs: RunInputs
    others: tuple[int, ...]
    precision: str
    runners: tuple[str, ...]

    @classmethod
    def of(cls, number: int, cases: Sequence[Case], precisions: Sequence[str]) -> CleanPlan:
        """Draw a plan. The case's seed decides the weights and the inputs with their lengths."""
        rng = np.random.default_rng([0xC1EA, number])
        # Every kind of case equally often, however many cases of it there are.
        kinds = list(dict.fromkeys(type(case) for case in cases))
        kind = kinds[rng.integers(len(kinds))]
        of_kind = [case for case in cases if type(case) is kind]
        case, inputs = _accepted(of_kind[rng.integers(len(of_kind))], rng)
        batches = len(inputs.batches)
        others = (int(rng.integers(1, batches)),) if batches > 1 else ()
        names = [name for name in RUNNERS if name not in FORMS or FORMS[name] in case.forms]
        shares = np.array([RUNNERS[name] for name in names], dtype=float)
        order = rng.choice(len(names), len(names), replace=False, p=shares / shares.sum())
        precision = precisions[rng.integers(len(precisions))]
        return cls(case, inputs, others, precision, tuple(names[place] for place in order))


def _accepted(case: Case, rng: np.random.Generator) -> tuple[Case, RunInputs]:
    """A drawn case and its inputs. Draws again what the case itself refuses, such as sizes that clash."""
    is_random = rng.random() >= SHIPPED_SHARE
    for _ in range(DRAWS):
        try:
            # The default is another seed and batch size.
            drawn = case.randomised(rng) if is_random else Case.randomised(case, rng)
            return drawn, make_inputs(drawn)
        except UserError as error:
            refusal = error
    raise refusal


def clean_run(number: int, cases: Sequence[Case], precisions: Sequence[str]) -> CleanFinding:
    """Judge one run without a fault."""
    plan = CleanPlan.of(number, cases, precisions)
    name, alarm, batches = _outcome(plan)
    return CleanFinding(
        number=number,
        case=plan.case.name,
        precision=plan.precision,
        runner=name,
        seed=plan.case.seed,
        batch_size=plan.case.batch_size,
        batches=batches,
        reference=plan.case.reference,
        alarm=alarm,
    )


def _outcome(plan: CleanPlan) -> tuple[str, str, tuple[str, ...]]:
    """The runner, the alarm or nothing, and the names of the judged batches."""
    precision = PRECISIONS[plan.precision]
    weights, _ = case_weights(plan.case)
    typical = CleanRun(plan.case, precision, plan.inputs.typical.arrays, weights)
    for name in plan.runners:
        try:
            judging = _Judging(name, typical)
            judgement = judging.judge(plan, weights)
        except Unavailable:
            continue
        except raisable() as error:
            return name, error_text(error), ()
        diagnosis = judgement.diagnosis
        passes = judgement.verdict == "PASS" or diagnosis is None
        alarm = "" if passes else f"{judgement.verdict}: {diagnosis.text}"
        return name, alarm, tuple(judging.batches)
    raise UserError("--clean-runs", plan.case.name, "has no runner here", "run where the port can")


class _Judging:
    """One runner of a case, judged batch by batch; it is loaded once."""

    def __init__(self, name: str, typical: CleanRun) -> None:
        self._name, self._typical = name, typical
        self._runner = typical.load(name)
        self.batches: dict[str, Mapping[str, RunnerJudgement]] = {}
        self._further = self._most_further = 0

    def judge(self, plan: CleanPlan, weights: Mapping[str, torch.Tensor]) -> RunnerJudgement:
        """Judge the plan's batches, then draw more rows as a plain run does."""
        case, precision = plan.case, self._typical.precision
        self._add(TYPICAL, self._typical)
        for place in plan.others:
            batch = plan.inputs.batches[place]
            self._add(batch.name, CleanRun(case, precision, batch.inputs.arrays, weights, isolated=False))
            # As in a plain run, modules run alone in a batch that fails.
            if self.batches[batch.name][self._name].verdict == "FAIL":
                self._add(batch.name, CleanRun(case, precision, batch.inputs.arrays, weights))
        rows = case.batch_size_of(plan.inputs.typical)
        self._most_further = most_further(rows)
        for further, times in enumerate(multiples(rows), start=1):
            if self._judgement().verdict != "INSENSITIVE":
                break
            drawn = more_rows(case, plan.inputs.typical, further, times)
            if drawn is None:
                break
            self._further = drawn.further
            self._add(drawn.name, CleanRun(case, precision, drawn.inputs.arrays, weights))
        return self._judgement()

    def _add(self, batch: str, run: CleanRun) -> None:
        comparison = compare(run.evidence, self._results(run))
        judgement = RunnerJudgement(
            record=RunnerRecord(label=self._name),
            status=Status.OK,
            reason="",
            verdict="PASS" if comparison.passed else "FAIL",
            diagnosis=replace(comparison.diagnosis, batch=batch),
            taps=tuple(replace(tap, batch=batch) for tap in comparison.taps),
            checks=comparison.checks,
        )
        self.batches[batch] = {self._name: judgement}

    def _results(self, run: CleanRun) -> Results:
        if not isinstance(self._runner, TapsModules):
            return Results(self._runner.run(run.arrays), taps_modules=False, appends=False)
        return replace(run.results(self._runner), fused=computed_inside(run.case, self._name))

    def _judgement(self) -> RunnerJudgement:
        """The verdict over all batches so far."""
        batches = self.batches.values()
        merged = merge_batches(batches, self._further, recorded=False, most=self._most_further)
        return merged[self._name]
