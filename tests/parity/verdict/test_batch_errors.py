"""Runners that raise or give nothing to compare: whether they fail, where, and in which words."""

import pytest

from parity.execution.record import NOT_HERE, RunnerRecord, Status
from parity.verdict import batch
from parity.verdict.batch import TYPICAL
from parity.verdict.comparison import Comparison
from parity.verdict.judgement import Diagnosis, TapJudgement
from tests.parity.judgements import verdict

REASON = "RuntimeError: sizes differ (port.py:12 in forward)"
WHOLE = Diagnosis("check", "", f"every module passes on its own, and {REASON}")
LEFT_OUT = Diagnosis("check", "", f"every module that runs on its own passes, and {REASON}")
AT = Diagnosis("module", "block@1[0]", "block diverges on its own")


def blamed(isolated, problems=(), tap=AT.tap):
    """The diagnosis of a runner that raised, where the module of a tap is judged alone."""
    judgement = TapJudgement(AT.tap, "block", "Block", None, isolated)
    diagnosis = Diagnosis("module", tap, AT.text)
    comparison = Comparison((judgement,), {}, "", 0.0, diagnosis)
    record = RunnerRecord(label="port", status=Status.ERROR, reason=REASON, problems=dict(problems))
    return batch._blame(comparison, record)


FAILS, PASSES = verdict(2.0), verdict()


def test_a_module_that_is_wrong_alone_is_the_place_of_an_error_of_the_model():
    assert blamed(FAILS) == AT
    assert blamed(PASSES) == WHOLE
    assert blamed(None) == WHOLE
    assert blamed(FAILS, tap="") == WHOLE


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (REASON, AT),
        # The same line of code, with other sizes.
        ("RuntimeError: other sizes (port.py:12 in forward)", AT),
        ("RuntimeError: sizes differ (port.py:7 in forward)", LEFT_OUT),
        # An error without a line is known by its words.
        ("sizes differ", AT),
        ("sizes are equal", LEFT_OUT),
    ],
)
def test_a_module_that_raises_alone_is_the_place_of_its_own_error_only(problem, expected):
    assert blamed(FAILS, {"block@1": problem}) == expected
    # The error of another call is another one.
    assert blamed(FAILS, {"block": problem}) == AT


def without_verdict(status, name="", blocked="no reference", reason=REASON):
    return batch._without_verdict(RunnerRecord(label="port", status=status, reason=reason), blocked, name)


@pytest.mark.parametrize(("name", "told"), [("", ""), (TYPICAL, ""), ("long", ", in batch long")])
def test_an_error_names_its_batch_unless_it_is_the_first(name, told):
    own = without_verdict(Status.ERROR, name)
    assert (own.status, own.reason) == (Status.ERROR, f"{REASON}{told}")


def test_a_runner_that_is_not_here_is_so_in_every_batch():
    for status in NOT_HERE:
        own = without_verdict(status, "long")
        assert (own.status, own.reason) == (status, REASON)
        assert (own.verdict == "FAIL") is (status is Status.REFUSED)


def test_a_refused_graph_fails_and_an_error_has_no_verdict():
    refused, error = (without_verdict(status, "long") for status in (Status.REFUSED, Status.ERROR))
    assert (refused.verdict, refused.diagnosis) == ("FAIL", Diagnosis("check", text=REASON, batch="long"))
    assert (error.verdict, error.diagnosis) == ("NONE", None)
    assert refused.record.label == error.record.label == "port"


def test_a_runner_without_a_basis_has_the_reason_of_its_absence():
    own = without_verdict(Status.OK, reason="")
    assert (own.status, own.reason, own.verdict) == (Status.ERROR, "no reference", "NONE")
