"""Causes that a finer precision refutes.

A change of the reference's code is the same in every precision. A coarse one may hide that the port differs
from the changed reference. Where a runner fails at the same place in a finer precision, and the search finds
no change there, the change is no cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.base.precision import PRECISIONS
from parity.verdict.causes import FITS
from parity.verdict.explanation import NO_CAUSE
from parity.verdict.judgement import Diagnosis, RunnerJudgement
from parity.verdict.judging import PrecisionJudgement


def without_refuted(judgements: Sequence[PrecisionJudgement]) -> list[PrecisionJudgement]:
    """The judgements on a case in its precisions, without the causes that a finer one refutes."""
    return [
        replace(
            judgement,
            runners={
                name: _without(runner, _finer(judgements, judgement.precision, name))
                for name, runner in judgement.runners.items()
            },
        )
        for judgement in judgements
    ]


def _finer(judgements: Sequence[PrecisionJudgement], precision: str, runner: str) -> list[Diagnosis]:
    """The diagnoses of a runner in finer precisions."""
    own = PRECISIONS[precision].unit_roundoff
    finer = [other for other in judgements if PRECISIONS[other.precision].unit_roundoff < own]
    found = [other.runners[runner].diagnosis for other in finer if runner in other.runners]
    return [diagnosis for diagnosis in found if diagnosis is not None]


def _without(runner: RunnerJudgement, finer: Sequence[Diagnosis]) -> RunnerJudgement:
    own = runner.diagnosis
    if own is None:
        return runner
    alike = [other for other in finer if _place(other) == _place(own)]
    if all(any(text.startswith((FITS, NO_CAUSE)) for text in other.explanation) for other in alike):
        return runner
    kept = tuple(text for text in own.explanation if not text.startswith(FITS))
    return replace(runner, diagnosis=replace(own, explanation=kept))


def _place(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The place of a failure, and the batch whose data the search had."""
    return diagnosis.kind, diagnosis.tap, diagnosis.argument, diagnosis.batch
