"""Runs without a fault: the count of false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cases.registry import get_family
from configs import CaseConfig, with_input
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.studies.fault_injection.faults import CleanFinding

LARGEST_SEED = 1 << 20


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
