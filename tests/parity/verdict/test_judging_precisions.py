"""Verdicts of a precision from all of its batches: more rows, labels, metrics."""

import json
import math
import threading
from dataclasses import replace

import numpy as np
import pytest

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.coverage.questions import Coverage, Kind, Question
from parity.execution.folder import CaseFolder
from parity.execution.record import REFERENCE, RunnerRecord, Status
from parity.inputs.arrays import CaseInputs, NamedInputs, save
from parity.timing.roofline import Rooflines
from parity.verdict import judging
from parity.verdict.batch import judge_batch
from parity.verdict.distances import Distance
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis, MetricJudgement, MetricValues
from parity.verdict.judging import PrecisionJudge
from parity.verdict.sensitivity import Rows, most_further
from tests.parity.judgements import runner, tap
from tests.parity.judgements import verdict as verdict_with
from tests.parity.verdict.saved_scores import (
    OUTPUT,
    PORT,
    B,
    Scores,
    judged,
    of,
    saved_batch,
    verdicts,
    write,
)


@pytest.fixture
def folder(tmp_path):
    return saved_batch(tmp_path)


def _judge(folder, labels=(), recorded=False, judge=judge_batch, keep=True):
    case_folder = CaseFolder(folder.batch.path.parent)
    # Captures stay unless a caller says otherwise.
    options = {} if keep else {"keep": False}
    return PrecisionJudge(
        Scores(), PRECISIONS["fp32"], case_folder, ["typical"], recorded, labels, judge, **options
    )


def _further(number):
    """A further batch, which has a name of its own."""
    return NamedInputs(f"larger {number}", "more rows", CaseInputs({}), number)


def test_batches_are_judged_as_they_come(folder):
    judged(folder)
    judge = _judge(folder)
    assert judge.first_failure() is None
    judge.judge([folder.batch])
    assert judge.first_failure() is None
    judgement = judge.judgement()
    assert (judgement.precision, judgement.gpu, judgement.rooflines, judgement.coverage) == (
        "fp32",
        {},
        None,
        None,
    )
    assert verdicts(judgement.runners) == {REFERENCE: "PASS", PORT: "PASS", "onnx": "PASS"}
    assert folder.path.exists()
    write(folder, "onnx", untapped=of(OUTPUT, 1.5))
    judge.judge_again(0, folder.batch)
    assert judge.first_failure() == 0
    assert judge.judgement().runners["onnx"].diagnosis.batch == "typical"
    assert folder.path.exists()
    assert verdicts(judge.judgement().runners)["onnx"] == "FAIL"


@pytest.mark.parametrize("way", ["judge", "judge_again", "add_more_rows"])
def test_captures_go_with_their_batch(folder, way):
    judged(folder)
    judge = _judge(folder, keep=False)
    if way == "judge":
        judge.judge([folder.batch])
    else:
        judge.add(folder.batch)
        assert folder.path.exists()
        getattr(judge, way)(_further(1) if way == "add_more_rows" else 0, folder.batch)
    assert not folder.path.exists()
    assert folder.batch.inputs.exists()


@pytest.mark.parametrize("large", [0, 2**40])
def test_large_captures_go_before_the_next_batch_is_made(folder, monkeypatch, large):
    judged(folder)
    judge, begins, remain = _judge(folder, keep=False), threading.Event(), []
    add = judge.add
    # Without the limit, the judgement begins when the next batch is made.
    monkeypatch.setattr(judge, "add", lambda batch: (begins.wait(0 if large == 0 else 60), add(batch)))
    monkeypatch.setattr("parity.execution.folder.LARGE_BATCH", large)

    def batches():
        yield folder.batch
        remain.append(folder.path.exists())
        begins.set()

    judge.judge(batches())
    assert remain == [large > 0]


@pytest.mark.parametrize(
    ("scale_error", "rows", "drawn", "most", "helps"),
    [
        (200.0, 10, 0, 4, False),
        (7.0, 10, 0, 4, True),
        (7.0, 640, 0, 4, False),
        # A batch that was drawn is none that may follow.
        (7.0, 10, 1, 4, False),
        (0.9, 10, 1, 1, False),
        (0.9, 10, 2, 1, False),
        (0.9, 10, 0, 1, True),
        # A check that detects half of its own size is not lost.
        (0.5, 10, 1, 1, True),
    ],
)
def test_an_output_that_stays_lost_with_all_rows_of_a_run_gets_no_more(
    folder, scale_error, rows, drawn, most, helps
):
    judged(folder)
    judge = _judge(folder)
    judge.add(folder.batch)
    judge._most_further = most
    judge._further = drawn
    lost = replace(
        verdict_with(0.2, math.inf), limit=Distance(1e3, 1e3, scale_error), rows=Rows(rows, rows, rows / 2)
    )
    output = tap("forward.output", MODEL_OUTPUT, accumulated=lost, isolated=None)
    # The largest batch so far has ten rows, and the last one may have 2560.
    output = replace(output, rows=Rows(10, 10, 5.0))
    judge._batches[0] |= {"dull": runner(tap("block"), output)}
    assert judge.judgement().runners["dull"].verdict == "INSENSITIVE"
    assert judge.batches_needed() == ({"dull": 1} if helps else {})


def test_a_first_failure_in_appends_is_one_at_a_check(folder):
    judge = _judge(folder)
    checks = {"incremental.current": verdict_with(2.0)}

    def failing(tap, **changes):
        return runner(verdict="FAIL", diagnosis=Diagnosis("check", tap), checks=checks, **changes)

    passing = runner(checks=checks, diagnosis=Diagnosis("insensitive", "incremental.current"))
    judge._batches = [
        {REFERENCE: runner(), PORT: failing("incremental.current")},
        {REFERENCE: runner(), PORT: failing("block")},
        {REFERENCE: passing, PORT: failing("block")},
        {REFERENCE: runner(), PORT: runner(verdict="NONE", diagnosis=None)},
    ]
    assert [judge.fails_in_appends(number) for number in range(4)] == [True, False, False, False]


def test_runners_with_insensitive_checks_get_more_rows(folder):
    judged(folder)
    judge = _judge(folder)
    judge.add(folder.batch)
    assert judge.batches_needed() == {}
    checks = (
        tap(name, isolated=verdict_with(0.2, detected), accumulated=None)
        for name, detected in (("block", 0.5), ("other", 0.011), ("sharp", 0.001))
    )
    judge._batches[0] |= {"dull": runner(*checks)}
    # 2500 times the rows, and 1.21 times.
    assert judge.batches_needed() == {"dull": 6}
    diagnosis = judge.judgement().runners["dull"].diagnosis
    assert ": the inputs have too few rows; " in diagnosis.text
    judge.add_more_rows(_further(1), folder.batch)
    assert folder.path.exists()
    diagnosis = judge.judgement().runners["dull"].diagnosis
    times = "4 times the rows of the typical batch are not enough; give a finer precision"
    assert diagnosis.text.endswith(times)
    assert len(judge._batches) == 2
    write(folder, "onnx", untapped=of(OUTPUT, 1.5))
    judge.add_more_rows(_further(2), folder.batch)
    assert judge.first_failure() == 2
    assert judge.judgement().runners["onnx"].diagnosis.batch == "larger 2"


def test_labels_are_evaluated_by_the_task_of_the_case(folder, monkeypatch):
    """Of every batch, for the runners that were compared with the reference."""
    made, added = [], []

    class Evaluated:
        def __init__(self, task, precision):
            made.append((task, precision.name))

        def add(self, batch, names):
            added.append((batch, names))

    monkeypatch.setattr("parity.verdict.task_metrics.evaluation.Evaluation", Evaluated)
    monkeypatch.setattr(Scores, "task", lambda self, weights, precision: (weights, precision.name))
    judged(folder, onnx=RunnerRecord(status=Status.UNAVAILABLE))
    labels = CaseInputs({"labels": np.zeros(B)})
    save(labels, folder.batch.labels)
    judge = _judge(folder, [labels.digest] * 2)
    judge.add(folder.batch)
    judge._names.append("again")
    judge.add(folder.batch)
    assert made == [((folder.batch.path.parent / "weights", "fp32"), "fp32")]
    assert added == [(folder.batch, [PORT])] * 2


@pytest.mark.parametrize(("recorded", "further"), [(False, most_further(B)), (True, 0)])
def test_the_first_batch_bounds_the_further_ones(folder, monkeypatch, recorded, further):
    judged(folder)
    bounds, known = [], []
    monkeypatch.setattr(judging, "merge_batches", lambda *given: bounds.append(given[3]) or {})
    judge = _judge(folder, recorded=recorded, judge=lambda *given: known.append(given[3]) or {})
    judge.add(folder.batch)
    judge.judgement()
    judge.add_more_rows(_further(1), folder.batch)
    judge.judgement()
    assert bounds == [further, further]
    judge.judge_again(0, folder.batch)
    assert known == [set(), set(), ()]


def test_recorded_data_have_no_more_rows(folder):
    judge = _judge(folder, recorded=True)
    judge._batches = [{"dull": runner(tap("block", isolated=verdict_with(0.2, 0.5), accumulated=None))}]
    text = judge.judgement().runners["dull"].diagnosis.text
    assert "recorded data have no more rows to draw; give a larger file, or a finer precision" in text


def test_the_coverage_of_all_batches_is_asked_for_its_sizes(folder):
    judged(folder)
    judge = _judge(folder)
    size, line = (
        Question(kind=kind, place="Block x[0]", answers=("1", "many", "varies"))
        for kind in (Kind.SIZE, Kind.LINE)
    )
    for name, answers in (("typical", {"5"}), ("again", {"1"})):
        folder.runner(PORT).coverage.unlink(missing_ok=True)
        Coverage({size: answers, line: {"ran"}}).write(folder.runner(PORT).coverage)
        judge._names.append(name)
        judge.add(folder.batch)
    seen = judge.judgement().coverage.seen
    assert seen == {size: {"1", "many", "varies"}, line: {"ran"}}


def test_a_failing_runner_has_its_cause_searched_once(folder):
    asked = []

    def judged_batch(case, folder, name, diagnosed=()):
        asked.append((name, set(diagnosed)))
        return judge_batch(case, folder, name, diagnosed)

    judged(folder)
    write(folder, "onnx", untapped=of(OUTPUT, 1.5))
    judge = _judge(folder, judge=judged_batch)
    judge.add(folder.batch)
    judge._names.append("again")
    judge.add(folder.batch)
    assert asked == [("typical", set()), ("again", {"onnx"})]


def test_the_state_of_the_gpu_and_its_least_times_are_those_of_the_first_batch_with_them(folder):
    judge = _judge(folder)
    judged(folder)
    judge.add(folder.batch)
    assert judge.judgement().gpu == {}
    record = json.loads(folder.record.read_text())
    rooflines = Rooflines(gpu="a GPU", reason="no ceilings")
    for clock in ("first", "second"):
        folder.record.write_text(json.dumps(record | {"gpu": {"clock": clock}}))
        folder.roofline.write_text(rooflines.model_dump_json())
        judge._names.append(clock)
        judge.add(folder.batch)
    assert judge.judgement().gpu == {"clock": "first"}
    assert judge.judgement().rooflines == rooflines


def test_an_error_of_judging_ends_the_run(folder):
    with pytest.raises(UserError, match="record"):
        _judge(folder).judge([folder.batch])


def test_labels_have_the_digest_of_the_run(folder):
    judged(folder)
    save(CaseInputs({"labels": np.zeros(B)}), folder.batch.labels)
    with pytest.raises(UserError) as error:
        _judge(folder, ["another digest"]).add(folder.batch)
    assert str(error.value) == str(
        UserError("labels", str(folder.batch.labels), "are not those of the run", "save again")
    )
    # Without the reference there is nothing to evaluate.
    judged(folder, **{REFERENCE: RunnerRecord(status=Status.CRASHED)})
    _judge(folder, ["another digest"]).add(folder.batch)


def _metric(name, flagged):
    values = MetricValues(0.5, 0.625, 0.25, (-0.5, -0.25), "", 2.0, 0.125, 0.2, flagged)
    return MetricJudgement(name, 12, values=values)


class _Evaluated:
    def __init__(self, *metrics):
        self._metrics = metrics

    def judge(self, name):
        assert name == PORT
        return self._metrics


@pytest.mark.parametrize("also", ["", "; also recall, mrr"])
def test_a_metric_that_moves_fails_a_port_whose_tensors_pass(folder, also):
    judge = _judge(folder)
    others = (_metric("recall", bool(also)), _metric("mrr", bool(also)))
    judge._batches = [{REFERENCE: runner(tap("block")), PORT: runner(tap("block"))}]
    judge._evaluation = _Evaluated(_metric("auc", False), _metric("ndcg", True), *others)
    runners = judge.judgement().runners
    assert runners[REFERENCE].metrics == ()
    assert runners[PORT].verdict == "FAIL"
    assert [metric.name for metric in runners[PORT].metrics] == ["auc", "ndcg", "recall", "mrr"]
    text = (
        "every module is within its limit, and ndcg moves from 0.625 to 0.25: 0.25 off the oracle's 0.5, "
        "limit 0.2 (k = 2, floor = 0.12), and the 95 % interval of port - reference is -0.5 to -0.25, "
        f"without 0 (12 rows){also}"
    )
    assert runners[PORT].diagnosis == Diagnosis("metric", text=text)


def test_a_metric_changes_no_other_diagnosis(folder):
    judge = _judge(folder)
    failed = runner(tap("block"), verdict="FAIL", diagnosis=Diagnosis("module", "block"))
    for judgement, flagged, verdict in (
        (failed, True, "FAIL"),
        (runner(tap("block")), False, "PASS"),
        (runner(verdict="NONE"), True, "NONE"),
    ):
        judge._batches = [{PORT: judgement}]
        judge._evaluation = _Evaluated(_metric("ndcg", flagged))
        merged = judge.judgement().runners[PORT]
        assert (merged.verdict, merged.diagnosis) == (verdict, judgement.diagnosis)
        assert len(merged.metrics) == (verdict != "NONE")
