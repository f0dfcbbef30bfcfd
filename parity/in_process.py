"""A case in a precision, run and judged in this process: what campaigns and reproductions do many times.

`parity.execution.collect` runs the same in processes of their own, which survive a runner that does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from parity.base.precision import Precision
from parity.case import Case
from parity.inputs.arrays import make_inputs, poisoned_inputs
from parity.inputs.weights import case_weights, rounded
from parity.runners import Runner, make_runner
from parity.runners.forms import computed_inside
from parity.verdict.comparison import Comparison, Results, compare
from parity.verdict.judging import evidence_of


class CleanRun:
    """What a case in a precision is judged by, made from the reference and the oracle.

    Attributes:
        arrays, poisoned: The inputs, and the same with garbage in their padding, if they have any.
        weights: Rounded to the precision.
        reference: The reference's tapped run with its calls.
        oracle: The oracle, loaded.
        evidence: What `parity.verdict.comparison.compare` asks for.
    """

    def __init__(self, case: Case, precision: Precision) -> None:
        self.case = case
        self.precision = precision
        self.weights = rounded(case_weights(case)[0], precision.dtype)
        (inputs,) = make_inputs(case).batches
        poisoned = poisoned_inputs(case, inputs)
        self.arrays: Mapping[str, np.ndarray] = inputs.arrays
        self.poisoned: Mapping[str, np.ndarray] | None = None if poisoned is None else poisoned.arrays
        reference, self.oracle = make_runner("torch"), make_runner("oracle")
        reference.load(case, precision, self.weights)
        self.oracle.load(case, precision, self.weights)
        self.reference = reference.run_tapped(self.arrays, record_calls=True)
        self.evidence = evidence_of(
            case,
            precision,
            self.arrays,
            self.reference,
            self.oracle.run_tapped(self.arrays).tensors,
            self._isolated(self.oracle),
            reference.run_incremental(self.arrays),
            has_padding=self.poisoned is not None,
        )

    def _isolated(self, runner: Runner) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for call in filter(runner.can_run, self.reference.calls):
            tensors |= runner.run_call(call, self.reference.call_inputs, self.arrays)
        return tensors

    def results(self, runner: Runner) -> Results:
        """All that the suite asks of a loaded runner."""
        return Results(
            untapped=runner.run(self.arrays),
            tapped=runner.run_tapped(self.arrays).tensors,
            isolated=self._isolated(runner),
            poisoned=runner.run_tapped(self.poisoned).tensors if self.poisoned is not None else {},
            incremental=runner.run_incremental(self.arrays) if runner.appends else {},
            appends=runner.appends,
        )

    def judge(self, name: str) -> Comparison:
        """Load a runner and judge it."""
        runner = make_runner(name)
        runner.load(self.case, self.precision, self.weights)
        results = replace(self.results(runner), fused=computed_inside(self.case, name))
        return compare(self.evidence, results)
