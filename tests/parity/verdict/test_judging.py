"""Verdicts from the files of a batch: the status, the verdict and the diagnosis of every runner."""

import json
from types import SimpleNamespace

import pytest

from parity.base.errors import UserError
from parity.capture.captures import Capture
from parity.execution.record import ORACLE, REFERENCE, MagnitudeRecord, RunnerRecord, Status
from parity.runners.forms import FORMS
from parity.runners.magnitudes import UNCHANGED
from parity.verdict.batch import judge_batch
from parity.verdict.captured import open_batch
from parity.verdict.judgement import Diagnosis, RunnerJudgement
from parity.verdict.magnitudes import BEYOND
from tests.parity.verdict.saved_scores import (
    CHECK,
    OUTPUT,
    PORT,
    TENSORS,
    VALID,
    D,
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


def test_all_pass(folder):
    judgements = judged(folder)
    assert verdicts(judgements) == {REFERENCE: "PASS", PORT: "PASS", "onnx": "PASS"}
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
    write(folder, "onnx", untapped=of(OUTPUT, 1.5))
    judgements = judged(folder)
    assert verdicts(judgements) == {REFERENCE: "PASS", PORT: "PASS", "onnx": "FAIL"}
    diagnosis = judgements["onnx"].diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.batch) == ("module", OUTPUT, "typical")
    assert diagnosis.explanation[0].startswith("equals the oracle times 1.5")


@pytest.mark.parametrize(
    ("sources", "source"),
    [({"": "model.py:1", "block": "block.py:9"}, "block.py:9"), ({"": "model.py:1"}, "model.py:1"), ({}, "")],
)
def test_a_diagnosis_has_the_nearest_source(folder, sources, source):
    write(folder, PORT, isolated=of("block", 1.5))
    judgements = judged(folder, **{PORT: RunnerRecord(label="port", sources=sources)})
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
    write(folder, PORT, **{stem: Capture({key: tensors[key] for key in keys})})
    if stem == "tapped":
        write(folder, PORT, poisoned=Capture({key: tensors[key] for key in keys}))
    judgements = judged(folder)
    assert verdicts(judgements) == {REFERENCE: "PASS", PORT: "FAIL", "onnx": "PASS"}
    assert (judgements[PORT].diagnosis.kind, judgements[PORT].diagnosis.tap) == (kind, tap)
    assert judgements[PORT].padding_leak == ("block" if stem == "poisoned" else "")


def test_the_timed_run_is_judged_if_there_is_one(folder):
    write(folder, PORT, timed=of(OUTPUT, 1.5))
    assert verdicts(judged(folder))[PORT] == "FAIL"
    write(folder, PORT, timed=of(OUTPUT), untapped=of(OUTPUT, 1.5))
    assert verdicts(judged(folder))[PORT] == "PASS"


def test_without_poisoned_inputs_there_are_no_leaks(folder):
    folder.batch.poisoned.unlink()
    write(folder, PORT, poisoned=Capture({}))
    assert verdicts(judged(folder))[PORT] == "PASS"


def test_a_runner_has_its_own_calls_of_appends_and_a_form_none_alone(folder, monkeypatch):
    (form, *_) = FORMS
    judged(folder, **{form: RunnerRecord(label=form, status=Status.UNAVAILABLE)})
    of_form = SimpleNamespace(computed_inside={}, appends_alone=False)
    monkeypatch.setattr(Scores, "form", lambda case, name: of_form)
    write(folder, form, isolated=Capture({}))
    for name in (REFERENCE, PORT, form):
        write(folder, name, appending=of(OUTPUT))
    results = open_batch(Scores(), folder).results
    appends = {name: (own.appends_alone, [*own.appending.tensors]) for name, own in results.items()}
    del appends["onnx"]
    assert appends == {REFERENCE: (True, []), PORT: (True, [OUTPUT]), form: (False, [OUTPUT])}


def test_a_module_that_is_wrong_at_other_magnitudes_is_noted_at_its_tap(folder):
    facts = {"tap": "block", "port": 0.0, "reference": 0.0, "compared": 9}
    trials = [
        MagnitudeRecord(kind=UNCHANGED, broken=0, **facts),
        MagnitudeRecord(kind="half its inputs", broken=2, **facts),
    ]
    port = judged(folder, **{PORT: RunnerRecord(label="port", magnitudes=trials)})[PORT]
    noted = {tap.tap for tap in port.taps if any(BEYOND in note for note in tap.notes)}
    assert (port.verdict, noted) == ("PASS", {"block"})


def test_a_runner_that_does_not_append(folder):
    write(folder, PORT, incremental=Capture({CHECK: TENSORS[OUTPUT] * 1.5}))
    port = judged(folder, **{PORT: RunnerRecord(appends=False)})[PORT]
    assert (port.verdict, port.checks) == ("PASS", {})


@pytest.mark.parametrize("name", [REFERENCE, ORACLE])
def test_without_the_reference_or_the_oracle_nothing_is_judged(folder, name):
    failed = RunnerRecord(label="x", status=Status.CRASHED, reason="signal 11")
    judgements = judged(folder, **{name: failed})
    assert verdicts(judgements) == {
        key: "NONE" for key in (REFERENCE, ORACLE, PORT, "onnx") if key in judgements
    }
    assert (ORACLE in judgements) is (name == ORACLE)
    assert judgements[name] == RunnerJudgement(failed, Status.CRASHED, "signal 11", "NONE")
    port = judgements[PORT]
    reason = f"{name} did not run (CRASHED: signal 11)"
    assert port == RunnerJudgement(RunnerRecord(label="port"), Status.ERROR, reason, "NONE")


def test_a_refused_graph_is_a_failure_of_the_port(folder):
    refused = RunnerRecord(status=Status.REFUSED, reason="no such layer")
    judgement = judged(folder, onnx=refused)["onnx"]
    diagnosis = Diagnosis("check", text="no such layer", batch="typical")
    assert judgement == RunnerJudgement(refused, Status.REFUSED, "no such layer", "FAIL", diagnosis)


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.CRASHED, Status.BUILT, Status.TIMED_OUT])
def test_a_runner_without_captures_has_no_verdict(folder, status):
    record = RunnerRecord(status=status, reason="a reason")
    judgements = judged(folder, onnx=record)
    assert judgements["onnx"] == RunnerJudgement(record, status, "a reason", "NONE")
    assert judgements[PORT].verdict == "PASS"


def test_a_runner_that_raised_in_one_step_fails_and_names_a_wrong_module(folder):
    raised = RunnerRecord(status=Status.ERROR, reason="the model raises")
    port = judged(folder, **{PORT: raised})[PORT]
    assert (port.status, port.reason, port.verdict) == (Status.ERROR, "the model raises", "FAIL")
    text = "every module passes on its own, and the model raises"
    assert port.diagnosis == Diagnosis("check", "", text, batch="typical")
    write(folder, PORT, isolated=of("block", 1.5))
    blamed = judged(folder, **{PORT: raised})[PORT].diagnosis
    assert (blamed.kind, blamed.tap) == ("module", "block")
    # An error inside the model may come from the step that raised.
    write(folder, PORT, isolated=of("block"), untapped=Capture({}))
    assert judged(folder, **{PORT: raised})[PORT].diagnosis.text == text


@pytest.mark.parametrize(
    ("problem", "reason", "kind"),
    [
        ("TypeError: takes x", "the run raises TypeError: no & (port.py:5 in forward)", "check"),
        ("TypeError: no &", "the run raises TypeError: no &", "module"),
        ("E: %7 fails (port.py:5 in forward)", "the run raises E: %9 fails (port.py:5 in forward)", "module"),
        ("E: fails (port.py:5 in forward)", "the run raises E: fails (port.py:51 in forward)", "check"),
    ],
)
def test_a_module_that_raises_another_error_alone_is_not_to_blame(folder, problem, reason, kind):
    write(folder, PORT, isolated=Capture({}))
    raised = RunnerRecord(status=Status.ERROR, reason=reason, problems={"block": problem})
    diagnosis = judged(folder, **{PORT: raised})[PORT].diagnosis
    assert diagnosis.kind == kind
    if kind == "check":
        text = f"every module that runs on its own passes, and {reason}"
        assert diagnosis == Diagnosis("check", "", text, batch="typical")


def test_a_module_that_raised_alone(folder):
    port = judged(folder, **{PORT: RunnerRecord(problems={"block": "ValueError: no"})})[PORT]
    assert port.diagnosis.text == "block (Block) does not run on its own: the module failed: ValueError: no"


def test_the_record_is_read_from_its_file(folder):
    judged(folder)
    folder.record.write_text(json.dumps({"precision": "fp32"}))
    with pytest.raises(UserError, match="damaged"):
        judge_batch(Scores(), folder, "typical")


def test_the_search_for_a_cause_knows_the_verdicts_on_all_taps(folder, monkeypatch):
    asked = []
    monkeypatch.setattr("parity.verdict.batch.explain_tap", lambda *given: asked.append(given) or ())
    write(folder, PORT, isolated=of("block", 1.5))
    assert verdicts(judged(folder))[PORT] == "FAIL"
    ((_, _, failed, taps),) = asked
    assert (failed.tap, [tap.tap for tap in taps]) == ("block", ["table", "block", OUTPUT])
