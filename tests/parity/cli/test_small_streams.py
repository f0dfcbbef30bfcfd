"""Streams of a plain run become parts of its report."""

import dataclasses

import pytest

from cases.shipped import load_case
from parity.cli import streams
from parity.report.schema import StreamReport
from parity.runners import Unavailable
from parity.studies.streaming import command
from parity.studies.streaming.judging import StepVerdicts
from tests.parity.judgements import verdict

GOOD = command.StreamVerdict(
    precision="fp32",
    side="PyTorch",
    steps=7,
    items=51,
    cache_margin=0.1,
    output_margin=0.2,
    last=StepVerdicts(6, {"k": verdict()}),
)
WRONG = StepVerdicts(2, {"lengths": verdict(), "k": verdict(3.0)}, failed="k", explanation="one row late")
BAD = dataclasses.replace(GOOD, side="port", steps=3, last=WRONG)


@pytest.fixture
def judged(monkeypatch):
    """The arguments of the calls that judge streams."""
    calls = []

    def judge_streams(*arguments):
        calls.append(arguments)
        return iter((GOOD, BAD))

    monkeypatch.setattr(command, "judge_streams", judge_streams)
    return calls


def test_both_sides_of_a_case_with_streams_are_reported(judged):
    case = load_case("hstu_tiny")
    good, bad = streams.judge_small_streams(case, "fp16")
    assert judged == [(case, ("fp16",), None, 6, None, case.seed)]
    numbers = {"precision": "fp32", "items": 51, "cache_margin": 0.1, "output_margin": 0.2}
    assert good == StreamReport(side="PyTorch", steps=7, **numbers)
    reason = WRONG.verdicts["k"].reason
    assert bad == StreamReport(
        side="port", steps=3, failed="k", reason=reason, explanation="one row late", **numbers
    )
    assert (good.status, bad.status) == ("PASS", "FAIL")


def test_a_case_without_streams_has_none(judged):
    assert streams.judge_small_streams(load_case("dlrm_tiny"), "fp32") == ()
    assert judged == []


def test_a_machine_without_the_port_has_none(judged, monkeypatch):
    case = load_case("hstu_tiny")

    def unavailable():
        raise Unavailable("no Tripy")

    monkeypatch.setattr(type(case), "streams", lambda self: unavailable())
    assert streams.judge_small_streams(case, "fp32") == ()
