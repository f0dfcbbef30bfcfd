"""A cause of a coarse precision counts unless a finer one, with a failure at the same place, has none."""

from dataclasses import replace

import pytest

from parity.execution.record import Status
from parity.verdict.causes import FITS
from parity.verdict.explanation import NO_CAUSE
from parity.verdict.judgement import Diagnosis, RunnerJudgement
from parity.verdict.judging import PrecisionJudgement
from parity.verdict.refuted import without_refuted

CAUSE, OTHER, PATTERN = f"{FITS}without the bias", f"{FITS}with 0 in place of x", "equals the oracle times 2"
FAILED = Diagnosis("between", "head", "text", explanation=(CAUSE, PATTERN), batch="ends", argument="head(x)")


def judged(**diagnoses):
    """The judgements of a runner by precision, from its diagnoses; None for no diagnosis."""
    runners = {
        precision: {"tripy": RunnerJudgement(None, Status.OK, "", "FAIL", diagnosis)}
        for precision, diagnosis in diagnoses.items()
    }
    return [PrecisionJudgement(precision, own, {}, None, None) for precision, own in runners.items()]


def explanations(judgements):
    return {
        judgement.precision: judgement.runners["tripy"].diagnosis.explanation
        for judgement in without_refuted(judgements)
        if judgement.runners["tripy"].diagnosis
    }


def explained(*texts):
    return replace(FAILED, explanation=texts)


def test_a_cause_that_the_finer_precision_lacks_goes_and_its_patterns_stay():
    found = explanations(judged(fp16=FAILED, fp32=explained(PATTERN), bf16=FAILED))
    assert found == {"fp16": (PATTERN,), "fp32": (PATTERN,), "bf16": (PATTERN,)}


@pytest.mark.parametrize(
    "finer",
    [
        FAILED,
        explained(OTHER),
        explained(f"{NO_CAUSE}MemoryError"),
        None,
        *(replace(explained(), **{field: "another"}) for field in ("kind", "tap", "argument", "batch")),
    ],
)
def test_a_cause_stays_beside_another_one_and_where_the_finer_precision_fails_elsewhere(finer):
    assert explanations(judged(fp32=finer, fp16=FAILED))["fp16"] == (CAUSE, PATTERN)


def test_a_coarser_precision_refutes_nothing():
    assert explanations(judged(fp32=FAILED, bf16=explained()))["fp32"] == (CAUSE, PATTERN)
    # Both round to 11 bits.
    assert explanations(judged(tf32=explained(), fp16=FAILED))["fp16"] == (CAUSE, PATTERN)


def test_another_runner_refutes_nothing():
    fine, coarse = judged(fp32=explained(), fp16=FAILED)
    other = replace(fine, runners={"tripy_jagged": fine.runners["tripy"]})
    assert without_refuted([other, coarse]) == [other, coarse]
