"""Verdicts from the files of a batch: the status, the verdict and the diagnosis of every runner."""

import json

import numpy as np
import pytest
import torch

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.store import save_capture
from parity.case import Case
from parity.execution.folder import CaseFolder
from parity.execution.record import ORACLE, REFERENCE, Record, RunnerRecord, Status
from parity.inputs.arrays import MORE_ROWS_NAME, CaseInputs, save
from parity.verdict.batch import judge_batch
from parity.verdict.judgement import Diagnosis, MetricJudgement, MetricValues, RunnerJudgement
from parity.verdict.judging import PrecisionJudge
from tests.parity.judgements import runner, tap
from tests.parity.judgements import verdict as verdict_with

B, N, D = 40, 4, 5
PORT, OUTPUT, CHECK = "tripy", "score.out", "incremental.out"
LENGTHS = np.arange(B) % N + 1
VALID = np.arange(N) < LENGTHS[:, None]


class Scores(Case):
    """Padded sequences with one block; bits of the argument are at a discontinuity."""

    name = "scores"
    entry = "score"
    incremental_outputs = {CHECK: OUTPUT}

    def build_reference(self):
        raise NotImplementedError

    build_port = make_inputs = build_reference

    def valid_rows(self, arrays):
        return {N: np.arange(N) < arrays["lengths"][:, None]}

    def boundaries(self):
        return {"Block": lambda x, limit: x.numpy() > limit}

    def gaps(self):
        return {"Table": "no such operation"}

    def is_causal(self):
        return True


def _tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


INPUT = torch.zeros(B, N, D)
INPUT[0, 0, 0] = 9.0
TENSORS = {"table": _tensor(1, B, N, D), "block": _tensor(2, B, N, D), OUTPUT: _tensor(3, B, D)}
CALLS = [
    ModuleCall("table", "table", "Table", [], {}, ("table",)),
    ModuleCall("block", "block", "Block", [TensorKey("x")], {"limit": 8.0}, ("block",)),
]


def _wide(tensors):
    return {name: tensor.double() for name, tensor in tensors.items()}


@pytest.fixture
def folder(tmp_path):
    """A batch in fp32 with the captures of the reference, the oracle and a port without the table."""
    case = CaseFolder(tmp_path / "scores")
    batch = case.batch(0)
    arrays = {"ids": np.zeros((B, N), np.int64), "lengths": LENGTHS}
    save(CaseInputs(arrays), batch.inputs)
    save(CaseInputs(arrays), batch.poisoned)
    precision = batch.precision("fp32")
    reference = Capture(
        dict(TENSORS),
        CALLS,
        {"x": INPUT},
        longest_sums={"table": 0, "block": 7},
        longest_sums_before={"table": 0, "block": 7},
    )
    modules = {name: TENSORS[name] for name in ("table", "block")}
    _write(precision, REFERENCE, tapped=reference, untapped=_of(OUTPUT), poisoned=Capture(dict(TENSORS)))
    _write(precision, REFERENCE, incremental=Capture({CHECK: TENSORS[OUTPUT]}))
    _write(precision, ORACLE, tapped=Capture(_wide(TENSORS)), isolated=Capture(_wide(modules)))
    taps = {name: tensor for name, tensor in TENSORS.items() if name != "table"}
    _write(precision, PORT, tapped=Capture(dict(taps)), poisoned=Capture(dict(taps)), untapped=_of(OUTPUT))
    _write(precision, PORT, isolated=_of("block"), incremental=Capture({CHECK: TENSORS[OUTPUT]}))
    _write(precision, "onnx", untapped=_of(OUTPUT))
    return precision


def _of(name, factor=1.0):
    return Capture({name: TENSORS[name] * factor})


def _write(precision, name, **captures):
    folder = precision.runner(name)
    folder.path.mkdir(parents=True, exist_ok=True)
    for stem, capture in captures.items():
        save_capture(capture, getattr(folder, stem))


def _judged(folder, **records):
    defaults = {
        REFERENCE: RunnerRecord(label="torch"),
        ORACLE: RunnerRecord(label="oracle"),
        PORT: RunnerRecord(label="port"),
        "onnx": RunnerRecord(label="onnx", taps_modules=False, appends=False),
    }
    record = Record(precision="fp32", runners=defaults | records)
    folder.record.write_text(record.model_dump_json())
    return judge_batch(Scores(), folder, "typical")


def _verdicts(judgements):
    return {name: judgement.verdict for name, judgement in judgements.items()}


def test_all_pass(folder):
    judgements = _judged(folder)
    assert _verdicts(judgements) == {REFERENCE: "PASS", PORT: "PASS", "onnx": "PASS"}
    port = judgements[PORT]
    assert (port.status, port.reason, port.record.label) == (Status.OK, "", "port")
    assert port.diagnosis == Diagnosis(batch="typical")
    assert [(tap.tap, tap.status, tap.gap, tap.batch) for tap in port.taps] == [
        ("table", "GAP", "no such operation", "typical"),
        ("block", "PASS", "", "typical"),
        (OUTPUT, "PASS", "", "typical"),
    ]
    block = port.taps[1]
    # Valid elements, without the one at the discontinuity.
    for verdict in (block.accumulated, block.isolated):
        assert (verdict.checked, verdict.boundary) == (VALID.sum() * D - 1, 1)
    assert list(port.checks) == [CHECK]
    assert (port.checks[CHECK].status, port.padding_leak, port.observer_difference) == ("PASS", "", 0.0)
    reference = judgements[REFERENCE]
    assert [list(tap.verdicts) for tap in reference.taps] == [["isolated", "accumulated"]] * 2 + [
        ["accumulated"]
    ]
    assert [tap.tap for tap in judgements["onnx"].taps] == [OUTPUT]
    assert judgements["onnx"].checks == {}


def test_one_runner_of_several_fails(folder):
    _write(folder, "onnx", untapped=_of(OUTPUT, 1.5))
    judgements = _judged(folder)
    assert _verdicts(judgements) == {REFERENCE: "PASS", PORT: "PASS", "onnx": "FAIL"}
    diagnosis = judgements["onnx"].diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.batch) == ("module", OUTPUT, "typical")
    assert diagnosis.explanation[0].startswith("equals the oracle times 1.5")


@pytest.mark.parametrize(
    ("sources", "source"),
    [({"": "model.py:1", "block": "block.py:9"}, "block.py:9"), ({"": "model.py:1"}, "model.py:1"), ({}, "")],
)
def test_a_diagnosis_has_the_nearest_source(folder, sources, source):
    _write(folder, PORT, isolated=_of("block", 1.5))
    judgements = _judged(folder, **{PORT: RunnerRecord(label="port", sources=sources)})
    assert judgements[PORT].diagnosis.source == source


@pytest.mark.parametrize(
    ("stem", "name", "kind", "tap"),
    [
        ("tapped", "block", "amplification", "block"),
        ("isolated", "block", "module", "block"),
        ("untapped", OUTPUT, "module", OUTPUT),
        ("poisoned", "block", "check", "block"),
        ("incremental", CHECK, "check", CHECK),
    ],
)
def test_every_capture_of_the_port_is_judged(folder, stem, name, kind, tap):
    tensors = {key: tensor.clone() for key, tensor in TENSORS.items() if key != "table"}
    tensors[CHECK] = TENSORS[OUTPUT].clone()
    if stem == "tapped":
        tensors |= {key: tensor for key, tensor in tensors.items() if key == OUTPUT}
    tensors[name] = tensors[name] * 1.5
    keys = {"tapped": ("block", OUTPUT), "poisoned": ("block", OUTPUT)}.get(stem, (name,))
    _write(folder, PORT, **{stem: Capture({key: tensors[key] for key in keys})})
    if stem == "tapped":
        _write(folder, PORT, poisoned=Capture({key: tensors[key] for key in keys}))
    judgements = _judged(folder)
    assert _verdicts(judgements) == {REFERENCE: "PASS", PORT: "FAIL", "onnx": "PASS"}
    assert (judgements[PORT].diagnosis.kind, judgements[PORT].diagnosis.tap) == (kind, tap)
    assert judgements[PORT].padding_leak == ("block" if stem == "poisoned" else "")


def test_the_timed_run_is_judged_if_there_is_one(folder):
    _write(folder, PORT, timed=_of(OUTPUT, 1.5))
    assert _verdicts(_judged(folder))[PORT] == "FAIL"
    _write(folder, PORT, timed=_of(OUTPUT), untapped=_of(OUTPUT, 1.5))
    assert _verdicts(_judged(folder))[PORT] == "PASS"


def test_without_poisoned_inputs_there_are_no_leaks(folder):
    folder.batch.poisoned.unlink()
    _write(folder, PORT, poisoned=Capture({}))
    assert _verdicts(_judged(folder))[PORT] == "PASS"


def test_a_runner_that_does_not_append(folder):
    _write(folder, PORT, incremental=Capture({CHECK: TENSORS[OUTPUT] * 1.5}))
    port = _judged(folder, **{PORT: RunnerRecord(appends=False)})[PORT]
    assert (port.verdict, port.checks) == ("PASS", {})


@pytest.mark.parametrize("name", [REFERENCE, ORACLE])
def test_without_the_reference_or_the_oracle_nothing_is_judged(folder, name):
    failed = RunnerRecord(label="x", status=Status.CRASHED, reason="signal 11")
    judgements = _judged(folder, **{name: failed})
    assert _verdicts(judgements) == {
        key: "NONE" for key in (REFERENCE, ORACLE, PORT, "onnx") if key in judgements
    }
    assert (ORACLE in judgements) is (name == ORACLE)
    assert judgements[name] == RunnerJudgement(failed, Status.CRASHED, "signal 11", "NONE")
    port = judgements[PORT]
    reason = f"{name} did not run (CRASHED: signal 11)"
    assert port == RunnerJudgement(RunnerRecord(label="port"), Status.ERROR, reason, "NONE")


def test_a_refused_graph_is_a_failure_of_the_port(folder):
    refused = RunnerRecord(status=Status.REFUSED, reason="no such layer")
    judgement = _judged(folder, onnx=refused)["onnx"]
    diagnosis = Diagnosis("check", text="no such layer", batch="typical")
    assert judgement == RunnerJudgement(refused, Status.REFUSED, "no such layer", "FAIL", diagnosis)


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.CRASHED, Status.BUILT, Status.TIMED_OUT])
def test_a_runner_without_captures_has_no_verdict(folder, status):
    record = RunnerRecord(status=status, reason="a reason")
    judgements = _judged(folder, onnx=record)
    assert judgements["onnx"] == RunnerJudgement(record, status, "a reason", "NONE")
    assert judgements[PORT].verdict == "PASS"


def test_a_runner_that_raised_in_one_step_fails_and_names_a_wrong_module(folder):
    raised = RunnerRecord(status=Status.ERROR, reason="the model raises")
    port = _judged(folder, **{PORT: raised})[PORT]
    assert (port.status, port.reason, port.verdict) == (Status.ERROR, "the model raises", "FAIL")
    text = "every module passes on its own, and the model raises"
    assert port.diagnosis == Diagnosis("check", "", text, batch="typical")
    _write(folder, PORT, isolated=_of("block", 1.5))
    blamed = _judged(folder, **{PORT: raised})[PORT].diagnosis
    assert (blamed.kind, blamed.tap) == ("module", "block")
    # An error inside the model may come from the step that raised.
    _write(folder, PORT, isolated=_of("block"), untapped=Capture({}))
    assert _judged(folder, **{PORT: raised})[PORT].diagnosis.text == text


def test_a_module_that_raised_alone(folder):
    port = _judged(folder, **{PORT: RunnerRecord(problems={"block": "ValueError: no"})})[PORT]
    assert port.diagnosis.text == "block (Block) diverges on its own: the module failed: ValueError: no"


# All batches of a precision


def _judge(folder, labels=()):
    return PrecisionJudge(
        Scores(), PRECISIONS["fp32"], CaseFolder(folder.batch.path.parent), ["typical"], False, labels
    )


def test_batches_are_judged_as_they_come(folder):
    _judged(folder)
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
    assert _verdicts(judgement.runners) == {REFERENCE: "PASS", PORT: "PASS", "onnx": "PASS"}
    assert folder.path.exists()
    _write(folder, "onnx", untapped=_of(OUTPUT, 1.5))
    judge.judge_again(0, folder.batch)
    assert judge.first_failure() == 0
    assert judge.judgement().runners["onnx"].diagnosis.batch == "typical"
    assert folder.path.exists()
    judge.judge_again(0, folder.batch, keep=False)
    assert not folder.path.exists()
    assert _verdicts(judge.judgement().runners)["onnx"] == "FAIL"


def test_captures_go_with_their_batch(folder):
    _judged(folder)
    judge = _judge(folder)
    judge.judge([folder.batch], keep=False)
    assert not folder.path.exists()
    assert folder.batch.inputs.exists()


def test_runners_with_insensitive_checks_get_more_rows(folder):
    _judged(folder)
    judge = _judge(folder)
    judge.add(folder.batch)
    assert judge.insensitive_runners() == ()
    judge._batches[0] |= {"dull": runner(tap("block", isolated=verdict_with(0.2, 0.5), accumulated=None))}
    assert judge.insensitive_runners() == ("dull",)
    diagnosis = judge.judgement().runners["dull"].diagnosis
    assert ": the case makes no batch with more rows; " in diagnosis.text
    judge.add_more_rows(f"{MORE_ROWS_NAME} 1", folder.batch)
    assert folder.path.exists()
    diagnosis = judge.judgement().runners["dull"].diagnosis
    times = "4 times the rows of the typical batch are not enough; give a finer precision"
    assert diagnosis.text.endswith(times)
    assert len(judge._batches) == 2
    _write(folder, "onnx", untapped=_of(OUTPUT, 1.5))
    judge.add_more_rows(f"{MORE_ROWS_NAME} 2", folder.batch, keep=False)
    assert not folder.path.exists()
    assert judge.first_failure() == 2
    assert judge.judgement().runners["onnx"].diagnosis.batch == f"{MORE_ROWS_NAME} 2"


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
    _judged(folder, onnx=RunnerRecord(status=Status.UNAVAILABLE))
    labels = CaseInputs({"labels": np.zeros(B)})
    save(labels, folder.batch.labels)
    judge = _judge(folder, [labels.digest] * 2)
    judge.add(folder.batch)
    judge._names.append("again")
    judge.add(folder.batch)
    assert made == [((folder.batch.path.parent / "weights", "fp32"), "fp32")]
    assert added == [(folder.batch, [PORT])] * 2


def test_an_error_of_judging_ends_the_run(folder):
    with pytest.raises(UserError, match="record"):
        _judge(folder).judge([folder.batch])


def test_labels_have_the_digest_of_the_run(folder):
    _judged(folder)
    save(CaseInputs({"labels": np.zeros(B)}), folder.batch.labels)
    with pytest.raises(UserError, match="are not those of the run"):
        _judge(folder, ["another digest"]).add(folder.batch)
    # Without the reference there is nothing to evaluate.
    _judged(folder, **{REFERENCE: RunnerRecord(status=Status.CRASHED)})
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


def test_the_record_is_read_from_its_file(folder):
    _judged(folder)
    folder.record.write_text(json.dumps({"precision": "fp32"}))
    with pytest.raises(UserError, match="damaged"):
        judge_batch(Scores(), folder, "typical")
