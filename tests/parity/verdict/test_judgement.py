"""Judgements of taps, arguments and metrics: their status follows from all verdicts that they hold."""

import math
from dataclasses import replace

import pytest

from parity.verdict.judgement import (
    ArgumentDifference,
    CallJudgement,
    MetricJudgement,
    MetricValues,
    TapJudgement,
)
from parity.verdict.row_errors import RowErrors
from parity.verdict.sensitivity import Rows
from tests.parity.judgements import tap, verdict

PASS, CLOSE, FAIL = verdict(0.2, 1e-6), verdict(0.9, 1e-3), verdict(2.0)


@pytest.mark.parametrize(
    ("accumulated", "isolated", "passed", "margin", "detectable"),
    [
        (PASS, None, True, 0.2, 1e-6),
        (None, CLOSE, True, 0.9, 1e-3),
        (PASS, CLOSE, True, 0.9, 1e-6),
        (CLOSE, PASS, True, 0.9, 1e-6),
        (FAIL, PASS, False, 2.0, math.nan),
        (PASS, FAIL, False, 2.0, math.nan),
        (verdict(math.nan), PASS, False, math.inf, math.nan),
        (None, None, True, 0.0, math.inf),
    ],
)
def test_one_failing_verdict_fails_a_tap(accumulated, isolated, passed, margin, detectable):
    judged = TapJudgement.of("block@1", "block", "Block", accumulated, isolated)
    verdicts = {"isolated": isolated, "accumulated": accumulated}
    verdicts = {name: value for name, value in verdicts.items() if value is not None}
    expected = TapJudgement(
        "block@1",
        "block",
        "Block",
        accumulated,
        isolated,
        min_detectable_error=detectable,
        lasting_limits=dict.fromkeys(verdicts, 0.0),
    )
    assert repr(judged) == repr(expected)
    assert (judged.passed, judged.status) == (passed, "PASS" if passed else "FAIL")
    assert judged.margin == pytest.approx(margin)
    assert list(judged.verdicts.items()) == list(verdicts.items())


def test_the_status_of_gaps_and_of_insensitive_taps():
    assert tap("block", insensitive=True).status == "INSENSITIVE"
    assert tap("block", insensitive=True, isolated=FAIL).status == "FAIL"
    gap = tap("block", gap="no such operation", accumulated=None, isolated=None)
    assert (gap.status, gap.passed) == ("GAP", True)


def test_the_smallest_lasting_limit_counts():
    assert tap("block", lasting_limits={"isolated": 0.3, "accumulated": 0.2}).lasting_limit == 0.2
    assert tap("block", lasting_limits={}).lasting_limit == 0.0


def test_a_metric_is_flagged_by_its_values():
    values = MetricValues(0.5, 0.25, 1.0, (-1.0, 1.0), "", 2.0, 0.1, 0.3, flagged=True)
    assert values.difference == 0.75
    assert MetricJudgement("ndcg", 5, values=values).flagged
    assert not MetricJudgement("ndcg", 5, reason="no rows").flagged


def _difference(name, kind="value", is_exact=False):
    return ArgumentDifference(name, kind, f"the text of {name}", is_exact)


FORM, VALUE, ABSENT = _difference("form", "form"), _difference("value"), _difference("absent", "absent")


@pytest.mark.parametrize(
    ("differing", "equal", "wrong", "text"),
    [
        ((VALUE,), (), VALUE, "another value: the text of value"),
        ((FORM, VALUE, ABSENT), (), VALUE, "another value: the text of value; also another form, absent"),
        (
            (FORM, ABSENT),
            ("query",),
            ABSENT,
            "another absent: the text of absent; also another form; query is equal",
        ),
        ((FORM,), ("query", "key"), None, "another form: the text of form; query, key are equal"),
    ],
)
def test_the_most_telling_argument_of_a_call(differing, equal, wrong, text):
    call = CallJudgement("block@1", "model", differing, equal)
    assert call.wrong == wrong
    assert call.text() == f"receives another {text.removeprefix('another ')}"
    assert not call.is_wrong_by_itself
    exact = CallJudgement("block@1", "model", (*differing, _difference("mask", is_exact=True)), equal)
    assert exact.is_wrong_by_itself


def test_arguments_that_are_not_compared_have_their_shapes():
    other = replace(FORM, name="mask", text="shape (1, 3) in place of (4, 3)")
    lacks = replace(FORM, name="key", kind="signature", text="no such argument")
    call = CallJudgement("block", "", (FORM, other, VALUE, lacks))
    assert call.not_compared == ["form", "mask (shape (1, 3) in place of (4, 3))", "key"]


def test_rows_and_their_errors_are_those_of_the_module_alone():
    inside = replace(PASS, rows=Rows(first=3, most=3, carrying=2.0))
    errors = RowErrors(8, 1.0, 1.0, 1.0, 1.0, 1.0)
    alone = replace(CLOSE, row_errors=errors, rows=Rows(first=5, most=5, carrying=4.0))
    both = TapJudgement.of("block", "block", "Block", inside, alone)
    assert (both.row_errors, both.rows) == (errors, alone.rows)
    one = TapJudgement.of("block", "block", "Block", replace(inside, row_errors=errors))
    assert (one.row_errors, one.rows) == (None, inside.rows)


def test_a_tap_that_the_port_cannot_have_passes():
    missing = TapJudgement("table", "table", "Table", FAIL, None, gap="no such operation")
    assert missing.passed
    assert not replace(missing, gap="").passed
