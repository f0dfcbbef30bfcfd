"""Streams of a plain run become parts of its report."""

import dataclasses

import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.cli import streams
from parity.execution.commands import Commands
from parity.execution.record import RunnerFailure, Status
from parity.execution.scheduler import Scheduler, Worker
from parity.report.schema import StreamReport
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


class Process:
    """A runner's process that only calls functions, or that cannot start."""

    def __init__(self, failure=None):
        self.failure = failure
        self.names = []

    def get(self, name, precision):
        self.names.append(name)
        self.precision = precision
        return self

    def request(self, command, *arguments):
        if command is Commands.start:
            if self.failure is not None:
                raise self.failure
            self.threads = arguments
            return None
        return command(None, *arguments)


def raises(failure):
    """A function that raises."""

    def run(*arguments):
        raise failure

    return run


def small_streams(case, precision, process):
    return streams.judge_small_streams(case, PRECISIONS[precision], Worker(process, Scheduler()))


@pytest.fixture
def judged(monkeypatch):
    """The arguments of the calls that judge streams."""
    calls = []

    def judge_streams(*arguments):
        calls.append(arguments)
        return iter((GOOD, BAD))

    monkeypatch.setattr(command, "judge_streams", judge_streams)
    return calls


@pytest.mark.parametrize(
    ("precision", "is_wide"), [("fp32", False), ("tf32", False), ("fp16", True), ("bf16", True)]
)
def test_both_sides_of_a_case_with_streams_are_reported(judged, precision, is_wide):
    """Half precisions have a cache as wide as the model."""
    case = load_case("hstu_tiny")
    process = Process()
    good, bad = small_streams(case, precision, process)
    assert (process.names, process.precision) == (["tripy"], PRECISIONS[precision])
    assert process.threads == (Scheduler().threads_shared,)
    ((judged_case, *arguments),) = judged
    assert judged_case.name == case.name
    assert arguments == [(precision,), None, 6, case.model.sequence_width if is_wide else None]
    numbers = {"precision": "fp32", "items": 51, "cache_margin": 0.1, "output_margin": 0.2}
    assert good == StreamReport(side="PyTorch", steps=7, **numbers)
    reason = WRONG.verdicts["k"].reason
    assert bad == StreamReport(
        side="port", steps=3, failed="k", reason=reason, explanation="one row late", **numbers
    )
    assert (good.status, bad.status) == ("PASS", "FAIL")


def test_a_case_without_streams_has_none(judged):
    process = Process()
    assert small_streams(load_case("dlrm_tiny"), "fp32", process) == ()
    assert process.names == judged == []


def test_a_machine_without_the_port_has_none(judged):
    unavailable = Process(RunnerFailure(Status.UNAVAILABLE, "no Tripy"))
    assert small_streams(load_case("hstu_tiny"), "fp32", unavailable) == ()
    assert judged == []


@pytest.mark.parametrize("dies_in", ["start", "call"])
@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT, Status.ERROR, Status.OUT_OF_MEMORY])
def test_a_stream_without_a_verdict_fails_and_ends_no_other_work(judged, monkeypatch, status, dies_in):
    failure = RunnerFailure(status, "it broke")
    if dies_in == "call":
        monkeypatch.setattr(command, "judge_streams", raises(failure))
    process = Process(failure if dies_in == "start" else None)
    (stream,) = small_streams(load_case("hstu_tiny"), "fp32", process)
    assert (stream.status, stream.library, stream.steps) == ("FAIL", "tripy", 0)
    assert (stream.items, stream.failed) == (0, "the stream")
    assert stream.reason == str(failure)


@pytest.mark.parametrize("is_only_case", [True, False])
def test_bad_input_of_a_stream_ends_the_run_of_one_case_alone(judged, monkeypatch, is_only_case):
    error = UserError("weights", "third", "fits no tensor", "name another")
    monkeypatch.setattr(command, "judge_streams", raises(error))
    worker, case = Worker(Process(), Scheduler()), load_case("hstu_tiny")
    if is_only_case:
        with pytest.raises(UserError, match="fits no tensor"):
            streams.judge_small_streams(case, PRECISIONS["fp32"], worker)
        return
    (stream,) = streams.judge_small_streams(case, PRECISIONS["fp32"], worker, is_only_case)
    assert (stream.status, stream.reason) == ("FAIL", f"ERROR: {error}")
