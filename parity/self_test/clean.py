"""Runs without a fault, in one process: the start of every campaign, and its count of false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from configs import CaseConfig, with_input
from parity import judging, weights
from parity.compare import Comparison, Results, compare
from parity.errors import UserError
from parity.families import get_family
from parity.pipeline import POISON_SEED
from parity.precision import PRECISIONS, Precision
from parity.runners import Runner, make_runner
from parity.self_test.faults import CleanFinding
from parity.weights import rounded

LARGEST_SEED = 1 << 20


class CleanRun:
    """What a case in a precision is judged by, made from the reference and the oracle.

    Attributes:
        arrays, poisoned: The inputs, and the same with garbage in their padding, if they have any.
        weights: Rounded to the precision.
        reference: The reference's tapped run with its calls.
        oracle: The oracle, loaded.
        evidence: What `parity.compare.compare` asks for.
    """

    def __init__(self, case: CaseConfig, precision: Precision) -> None:
        self.case = case
        self.precision = precision
        family = get_family(case.family)
        model = family.build_reference(case.model, "dense")
        self.weights = rounded(weights.initial_weights(model, case.input.seed), precision.dtype)
        (inputs,) = family.synthetic(case).inputs
        family.validate(inputs, case)
        poisoned = family.poison(inputs, POISON_SEED)
        self.arrays: Mapping[str, np.ndarray] = inputs.arrays
        self.poisoned: Mapping[str, np.ndarray] | None = None if poisoned is None else poisoned.arrays
        reference, self.oracle = make_runner("torch"), make_runner("oracle")
        reference.load(case, precision, self.weights)
        self.oracle.load(case, precision, self.weights)
        self.reference = reference.run_tapped(self.arrays, record_calls=True)
        self.evidence = judging.evidence_of(
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
        return compare(self.evidence, self.results(runner))


@dataclass(frozen=True)
class Draw:
    """The case, precision and runner of a clean run, drawn by its number."""

    case: CaseConfig
    precision: str
    runner: str

    @classmethod
    def of(cls, number: int, cases: Sequence[CaseConfig], precisions: Sequence[str]) -> Draw:
        """Seeds decide the weights and the inputs with their lengths, the number the rest."""
        rng = np.random.default_rng([0xC1EA, number])
        case = cases[rng.integers(len(cases))]
        family = get_family(case.family)
        runners = ["tripy", *(["torch_jagged"] if "jagged" in family.layouts else [])]
        return cls(
            with_input(
                case,
                seed=int(rng.integers(LARGEST_SEED)),
                batch_size=int(rng.integers(1, 2 * case.input.batch_size + 1)),
            ),
            precisions[rng.integers(len(precisions))],
            runners[rng.integers(len(runners))],
        )


def clean_run(number: int, cases: Sequence[CaseConfig], precisions: Sequence[str]) -> CleanFinding:
    """Judge one run without a fault. A batch size that cannot be judged (`Family.validate`) grows by one."""
    draw = Draw.of(number, cases, precisions)
    case = draw.case
    while True:
        try:
            run = CleanRun(case, PRECISIONS[draw.precision])
            break
        except UserError:
            case = with_input(case, batch_size=case.input.batch_size + 1)
    diagnosis = run.judge(draw.runner).diagnosis
    return CleanFinding(
        number=number,
        case=case.name,
        precision=draw.precision,
        runner=draw.runner,
        seed=case.input.seed,
        batch_size=case.input.batch_size,
        alarm="" if diagnosis.kind == "none" else diagnosis.text,
    )
