"""Runs without a fault: the count of false alarms."""

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
class Draw:
    """The case, precision and runner of a clean run, drawn by its number."""

    case: Case
    precision: str
    runner: str

    @classmethod
    def of(cls, number: int, cases: Sequence[Case], precisions: Sequence[str]) -> Draw:
        """Seeds decide the weights and the inputs with their lengths, the number the rest."""
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
    """Judge one run without a fault. A batch size that cannot be judged (`Case.validate`) grows by one."""
    draw = Draw.of(number, cases, precisions)
    case = draw.case
    while True:
        try:
            run = CleanRun(case, PRECISIONS[draw.precision])
            break
        except UserError:
            case = case.with_overrides(batch_size=case.batch_size + 1)
    diagnosis = run.judge(draw.runner).diagnosis
    return CleanFinding(
        number=number,
        case=case.name,
        precision=draw.precision,
        runner=draw.runner,
        seed=case.seed,
        batch_size=case.batch_size,
        alarm="" if diagnosis.kind == "none" else diagnosis.text,
    )
