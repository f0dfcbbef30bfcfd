"""What a saved batch gives to the comparison, and what a judgement takes from it."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture
from parity.execution.record import REFERENCE, RunnerRecord, Status
from parity.verdict import batch
from parity.verdict.comparison import compare_runners
from parity.verdict.judgement import Diagnosis
from tests.parity.comparisons import evidence_with
from tests.parity.verdict import saved_scores
from tests.parity.verdict.saved_scores import CHECK, OUTPUT, PORT, TENSORS, judged, of, saved_batch, write

FORM = "torch_fused"


@pytest.fixture
def folder(tmp_path):
    return saved_batch(tmp_path)


def called(source, call="block"):
    """A run in which a line of the port's code passes an argument to a call."""
    received = Received("", 0, 0, (Argument("x", 0, tensor=f"{call}(x)"),), source)
    return Capture(dict(TENSORS), call_inputs={f"{call}(x)": torch.ones(3)}, arguments={call: received})


@pytest.fixture
def seen(monkeypatch):
    """The evidence and the results that are compared."""
    found = []

    def compare(evidence, runners):
        found.append((evidence, runners))
        return compare_runners(evidence, runners)

    monkeypatch.setattr(batch, "compare_runners", compare)
    return found


def test_the_reference_s_runs_are_the_basis(folder, seen, monkeypatch):
    monkeypatch.setattr(saved_scores.Scores, "port_path", lambda case, path: f"port.{path}")
    write(folder, REFERENCE, poisoned=called("", "table"), appending=called("", "append:block"))
    judged(folder)
    ((evidence, (own, *_)),) = seen
    # They are not compared with themselves.
    for run in (own.received, own.received_poisoned, own.appending):
        assert not run.arguments
    assert list(evidence.poisoned().arguments) == ["table"]
    assert list(evidence.appending.arguments) == ["append:block"]
    assert evidence.port_path("block") == "port.block"
    # The table is at no discontinuity, and comes first.
    assert list(evidence.boundary) == ["block"]


@pytest.mark.parametrize("alone", [False, True])
def test_the_runs_of_a_runner_are_compared(folder, seen, monkeypatch, alone):
    """A form tells whether its modules append alone, with which arguments."""
    form = SimpleNamespace(computed_inside={}, appends_alone=alone)
    monkeypatch.setattr(saved_scores.Scores, "form", lambda case, name: form)
    write(folder, PORT, poisoned=called("", "table"), appending=called("", "append:block"))
    write(folder, FORM, tapped=of(OUTPUT), untapped=of(OUTPUT))
    problems = {"table": "E: takes x"}
    records = {
        PORT: RunnerRecord(label="port", problems=problems),
        FORM: RunnerRecord(label="form", appends=False),
    }
    judged(folder, **records)
    ((_, (_, port, onnx, form)),) = seen
    assert list(port.received_poisoned.arguments) == ["table"]
    assert list(port.appending.arguments) == ["append:block"]
    assert port.isolated_problems == problems
    assert (port.taps_modules, port.appends, port.appends_alone) == (True, True, True)
    assert (onnx.taps_modules, onnx.appends) == (False, False)
    assert (form.taps_modules, form.appends, form.appends_alone) == (True, False, alone)


def test_a_judgement_has_the_record_and_the_batch(folder):
    port = judged(folder)[PORT]
    assert (port.record.label, port.status, port.reason) == ("port", Status.OK, "")
    assert {tap.batch for tap in port.taps} == {port.diagnosis.batch} == {"typical"}
    assert list(port.checks) == [CHECK]
    raised = RunnerRecord(label="port", status=Status.ERROR, reason="the run raises E: no")
    port = judged(folder, **{PORT: raised})[PORT]
    assert (port.record, port.status, port.reason, port.verdict) == (
        raised,
        raised.status,
        raised.reason,
        "FAIL",
    )


def told(folder, monkeypatch, diagnosis, **records):
    """The diagnosis of a judgement whose comparison has another one."""
    diagnosed = partial(replace, diagnosis=diagnosis)
    monkeypatch.setattr(batch, "compare_runners", lambda *both: map(diagnosed, compare_runners(*both)))
    return judged(folder, **records)[PORT].diagnosis


@pytest.mark.parametrize(
    ("argument", "place"),
    [
        ("block(x)", "port.py:7"),
        ("append:block(x)", "port.py:9"),
        ("table(x)", "model.py:1"),
        ("", "model.py:1"),
    ],
)
def test_the_line_that_passes_an_argument_is_the_place(folder, monkeypatch, argument, place):
    write(folder, PORT, tapped=called("port.py:7"), appending=called("port.py:9", "append:block"))
    record = RunnerRecord(label="port", sources={"": "model.py:1"})
    diagnosis = Diagnosis("between", "block", code="", argument=argument)
    assert told(folder, monkeypatch, diagnosis, **{PORT: record}).source == place


@pytest.mark.parametrize(
    ("diagnosis", "is_told"),
    [
        (Diagnosis("module", "block"), True),
        (Diagnosis("check", "block"), False),
        (Diagnosis("between", "block"), False),
        (Diagnosis("module", "elsewhere"), False),
    ],
)
def test_a_failing_module_that_names_pairs_with_another_is_told(folder, monkeypatch, diagnosis, is_told):
    monkeypatch.setattr(saved_scores.Scores, "port_path", lambda case, path: "layers.encoder")
    explanation = told(folder, monkeypatch, diagnosis).explanation
    assert ("names pairs it with layers.encoder of the port" in explanation) is is_told


@pytest.mark.parametrize(
    ("own", "path", "is_other"),
    [
        ("a.b.block", "block", False),
        ("block", "a.b.block", False),
        ("a.b.block", "c.block", False),
        ("a.b.block", "a.b.other", True),
        ("a.block.b", "a.block.c", True),
        ("block.a", "block", True),
    ],
)
def test_the_last_part_of_a_path_is_the_name_of_a_module(own, path, is_other):
    evidence = evidence_with(port_path=lambda asked: own if asked == path else "")
    assert list(batch._other_name(evidence, path)) == [f"names pairs it with {own} of the port"] * is_other


def test_a_tap_is_explained_beside_the_others(folder, monkeypatch):
    others = []

    def explain(evidence, results, tap, taps=()):
        others.append([other.tap for other in taps])
        return ("told",)

    monkeypatch.setattr(batch, "explain_tap", explain)
    assert "told" in told(folder, monkeypatch, Diagnosis("module", "block")).explanation
    assert others[-1] == list(TENSORS)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [({"tapped": "block", "isolated": "block"}, "port.py:4"), ({"untapped": OUTPUT}, "port.py:9")],
)
def test_a_tensor_that_the_blamed_code_evaluates_is_told_beside_its_failure(folder, wrong, line):
    """The entry's code is blamed for its outputs."""
    tapped = {name: TENSORS[name] * (2 if wrong.get("tapped") == name else 1) for name in ("block", OUTPUT)}
    tapped[OUTPUT] = tapped[OUTPUT] * (2 if "untapped" in wrong else 1)
    evaluated = {"": "port.py:9", "block": "port.py:4", "table": "port.py:1"}
    write(
        folder,
        PORT,
        tapped=Capture(tapped, evaluated=evaluated),
        untapped=of(OUTPUT, 2 if "untapped" in wrong else 1),
    )
    write(folder, PORT, isolated=of("block", 2 if "isolated" in wrong else 1))
    told = [text for text in judged(folder)[PORT].diagnosis.explanation if "evaluates" in text]
    (text,) = told
    assert f"at {line}: " in text


def test_a_port_that_passes_has_no_explanation_of_an_evaluated_tensor(folder):
    tapped = {name: TENSORS[name] for name in ("block", OUTPUT)}
    write(folder, PORT, tapped=Capture(tapped, evaluated={"": "port.py:9"}))
    judgement = judged(folder)[PORT]
    assert judgement.verdict == "PASS"
    assert judgement.diagnosis.explanation == ()
