"""A case in one precision, run and judged in this process: the one home of this for studies and tests.

`parity.execution.collect` does the same in processes of their own, which survive a runner that crashes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from parity.base.interruption import raisable
from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.case import Case, Form
from parity.execution.errors import error_text
from parity.execution.record import ORACLE, REFERENCE
from parity.inputs.arrays import CaseInputs, make_inputs, poisoned_inputs
from parity.inputs.weights import case_weights, rounded
from parity.runners import Runner, make_runner
from parity.runners.base import Appends
from parity.runners.forms import computed_inside
from parity.runners.oracle.replays import Replays
from parity.verdict.captured import evidence_of
from parity.verdict.comparison import Comparison, compare
from parity.verdict.evidence import Results
from parity.verdict.result_names import comparable


class CleanRun:
    """The evidence on a case in one precision, from one run of the reference and the oracle.

    Args:
        case: The case.
        precision: The tested precision.
        arrays: One batch in place of the case's own.
        weights: Float32 weights in place of the initial ones.
        isolated: Whether the oracle also runs every call alone, which isolated verdicts need.
        outputs_alone: Whether the evidence is for a verdict on the outputs alone. It holds no other tensors
            then, but those of modules with discontinuities.

    Attributes:
        arrays: The batch.
        poisoned: The batch with garbage in its padding; None without padding.
        weights: The weights in the tested precision.
        reference: The reference's tapped run with its calls.
        evidence: The evidence for `parity.verdict.comparison.compare`.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        arrays: Mapping[str, np.ndarray] | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        isolated: bool = True,
        outputs_alone: bool = False,
    ) -> None:
        self.case = case
        self.precision = precision
        self._isolated = isolated
        self.weights = rounded(case_weights(case)[0] if weights is None else weights, precision.dtype)
        if arrays is None:
            inputs = make_inputs(case).typical
        else:
            inputs = CaseInputs(arrays)
        poisoned = poisoned_inputs(case, inputs)
        self.arrays: Mapping[str, np.ndarray] = inputs.arrays
        self.poisoned: Mapping[str, np.ndarray] | None = None if poisoned is None else poisoned.arrays
        reference, oracle = self.load(REFERENCE), self.load(ORACLE)
        if outputs_alone:
            self.reference = reference.record_outputs(self.arrays, case.boundaries())
            exact = Capture(tensors=oracle.run_outputs(self.arrays))
        else:
            self.reference, exact = reference.record(self.arrays), oracle.run_tapped(self.arrays)
        self.evidence = evidence_of(
            case,
            precision,
            self.arrays,
            self.reference,
            exact,
            self._alone(oracle, self.reference.calls) if isolated else {},
            {} if outputs_alone else reference.run_incremental(self.arrays),
            has_padding=self.poisoned is not None,
        )
        self.evidence.replays = Replays(case, precision, lambda: self.weights, lambda: self.arrays)
        if self.poisoned is not None:
            self.evidence.poisoned = functools.partial(reference.run_tapped, self.poisoned)

    def load(self, name: str) -> Runner:
        """A runner with the case and its weights."""
        runner = make_runner(name)
        runner.load(self.case, self.precision, self.weights)
        return runner

    def _alone(self, runner: Runner, calls: Iterable[ModuleCall]) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for call in filter(runner.can_run, calls):
            tensors |= runner.run_call(call, self.reference.call_inputs, self.arrays)
        return tensors

    def run_isolated(
        self, runner: Runner, calls: Iterable[ModuleCall]
    ) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Run recorded calls alone. Returns results by tap, and errors of calls that raised, by call."""
        tensors: dict[str, torch.Tensor] = {}
        problems: dict[str, str] = {}
        for call in calls:
            try:
                tensors |= self._alone(runner, [call])
            except raisable() as error:
                problems[call.tap] = error_text(error)
        return tensors, problems

    def results(self, runner: Runner) -> Results:
        """All results of a loaded runner that verdicts need."""
        received = runner.run_tapped(self.arrays)
        isolated, problems = self.run_isolated(runner, self.reference.calls) if self._isolated else ({}, {})
        poisoned = Capture() if self.poisoned is None else runner.run_tapped(self.poisoned)
        return Results(
            untapped=runner.run(self.arrays),
            tapped=received.tensors,
            isolated=isolated,
            isolated_problems=problems,
            poisoned=poisoned.tensors,
            incremental=runner.run_incremental(self.arrays) if isinstance(runner, Appends) else {},
            appends=isinstance(runner, Appends),
            appends_alone=not isinstance(runner.case, Form) or runner.case.appends_alone,
            received=received,
            received_poisoned=poisoned,
        )

    def reference_results(self, **changes: Any) -> Results:
        """The reference's own results with some fields of `Results` changed, to judge only these."""
        tensors = self.reference.tensors
        results = Results(
            untapped={tap: tensor for tap, tensor in tensors.items() if tap not in self.evidence.kinds},
            tapped=tensors,
            isolated=tensors,
            poisoned=tensors,
            incremental=self.evidence.reference_incremental,
        )
        return replace(results, **changes)

    def judge(self, name: str) -> Comparison:
        """Load a runner and judge it."""
        results = replace(self.results(self.load(name)), fused=computed_inside(self.case, name))
        return compare(self.evidence, comparable(self.evidence, results))
