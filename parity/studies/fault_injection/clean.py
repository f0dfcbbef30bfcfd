"""Runs without a fault, which count false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.in_process import CleanRun
from parity.studies.fault_injection.faults import CleanFinding

LARGEST_SEED = 1 << 20


@dataclass(frozen=True)
class CleanPlan:
    """Case, precision and runner of a clean run, drawn by its number."""

    case: Case
    precision: str
    runner: str

    @classmethod
    def of(cls, number: int, cases: Sequence[Case], precisions: Sequence[str]) -> CleanPlan:
        """Draw a plan. The case's seed decides the weights and the inputs with their lengths."""
        rng = np.random.default_rng([0xC1EA, number])
        case = cases[rng.integers(len(cases))]
        runners = ["tripy", *(["torch_jagged"] if "jagged" in case.forms else [])]
        return cls(
            case.with_overrides(
                seed=int(rng.integers(LARGEST_SEED)),
                batch_size=int(rng.integers(1, 2 * case.batch_size + 1)),
            ),
            precisions[rng.integers(len(precisions))],
            runners[rng.integers(len(runners))],
        )


def clean_run(number: int, cases: Sequence[Case], precisions: Sequence[str]) -> CleanFinding:
    """Judge one run without a fault. A batch size that `Case.validate` refuses grows by one."""
    plan = CleanPlan.of(number, cases, precisions)
    case = plan.case
    while True:
        try:
            run = CleanRun(case, PRECISIONS[plan.precision])
            break
        except UserError:
            case = case.with_overrides(batch_size=case.batch_size + 1)
    diagnosis = run.judge(plan.runner).diagnosis
    return CleanFinding(
        number=number,
        case=case.name,
        precision=plan.precision,
        runner=plan.runner,
        seed=case.seed,
        batch_size=case.batch_size,
        alarm="" if diagnosis.kind == "none" else diagnosis.text,
    )
