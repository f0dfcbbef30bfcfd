"""The evidence that a case gives, and the place of the code that a diagnosis names."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.arguments import Received
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.case import Case
from parity.execution.folder import CaseFolder
from parity.execution.record import REFERENCE, RowTrialRecord, RunnerRecord, Status
from parity.runners.oracle import rerun
from parity.verdict import batch, captured
from parity.verdict.comparison import Comparison, compare_runners
from parity.verdict.judgement import Diagnosis
from tests.parity.judgements import tap, verdict
from tests.parity.verdict import saved_scores
from tests.parity.verdict.saved_scores import OUTPUT, PORT, TENSORS, judged, of, saved_batch, write


class Idle(torch.nn.Module):
    """A model with a module that it never calls."""

    def __init__(self):
        super().__init__()
        self.idle = torch.nn.Linear(1, 1)


class Stating(Case):
    name = "stating"

    def build_reference(self):
        return Idle()

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        raise NotImplementedError

    def batch_size_of(self, arrays):
        return 2

    def absence(self, path, kind):
        return f"{path} is a {kind}" if path == "stated" or kind == "Stated" else ""

    def boundaries(self):
        return {"Near": lambda x, limit: x.numpy() > limit}

    def tolerated(self, tap, path):
        return 0.5

    def is_causal(self):
        return False

    squeeze = True
    whole_outputs = ("scores", "state")


def evidence_of(*calls, **tensors):
    reference = Capture({}, list(calls), tensors, longest_sums={"near": 1})
    oracle = Capture()
    arrays = {"x": np.zeros((2, 1), np.float32)}
    return oracle, captured.evidence_of(
        Stating(), PRECISIONS["fp32"], arrays, reference, oracle, {}, {}, has_padding=False
    )


def test_a_module_that_pytorch_never_calls_may_be_the_ports_alone():
    _, evidence = evidence_of()
    assert evidence.absence("idle", "unknown") == "PyTorch never calls this module"
    assert evidence.absence("other", "unknown") == ""
    assert evidence.absence("idle", "Linear") == ""
    assert evidence.absence("stated", "unknown") == "stated is a unknown"
    assert evidence.absence("stated", "Linear") == "stated is a Linear"


def test_the_evidence_has_the_options_of_its_case():
    oracle, evidence = evidence_of()
    assert (evidence.squeeze, evidence.causal, evidence.tolerated("tap", "path")) == (True, False, 0.5)
    assert evidence.whole_outputs == ["forward.scores", "forward.state"]
    assert evidence.oracle_received is oracle


def test_every_call_near_a_discontinuity_has_its_own_elements():
    calls = [
        ModuleCall("near", f"near#{number}", "Near", [TensorKey(key)], {"limit": limit}, (f"near#{number}",))
        for number, (key, limit) in enumerate((("a", 1.0), ("b", 1.0), ("a", 1.0), ("a", 9.0)))
    ]
    _, evidence = evidence_of(*calls, a=torch.tensor([2.0, 0.0]), b=torch.tensor([0.0, 2.0]))
    assert {tap: elements.tolist() for tap, elements in evidence.boundary.items()} == {
        "near#0": [True, False],
        "near#1": [False, True],
        "near#2": [True, False],
    }


@pytest.mark.parametrize("kind", ["module", "amplification", "between"])
def test_the_place_of_a_diagnosis_is_the_nearest_one_around_it(kind):
    sources = {"": "model.py:1", "block": "block.py:2", "other": "other.py:3"}
    assert batch._source(Diagnosis(kind, "block.inner.deep"), sources) == "block.py:2"
    assert batch._source(Diagnosis(kind, "block.inner", code="other"), sources) == "other.py:3"
    assert batch._source(Diagnosis(kind, "block.inner", code=""), sources) == "model.py:1"


def test_the_place_in_an_append_is_that_of_its_function():
    """A module without one runs `forward` there. The code around the modules does not run the entry."""
    sources = {"": "model.py:1", "block": "block.py:2", "block.inner": "inner.py:3"}
    steps = {"append:": "model.py:9", "append:block": "block.py:8"}

    def place(tap, known, **changes):
        return batch._source(Diagnosis("module", tap, **changes), known)

    assert place("append:block", sources | steps) == "block.py:8"
    assert place("append:block.inner", sources | steps) == "inner.py:3"
    assert place("append:block.other", sources | steps) == "block.py:8"
    assert place("block", sources | steps) == "block.py:2"
    argument = {"argument": "append:block(mask)", "code": ""}
    assert place("incremental.0", sources | steps, **argument) == "model.py:9"
    assert place("incremental.0", sources, **argument) == ""
    inside = {"argument": "append:block.inner(x)", "code": "block"}
    assert place("incremental.0", sources | steps, **inside) == "block.py:8"
    assert place("append:others.first", sources) == ""


def test_an_error_of_the_model_is_told_with_a_module_that_is_wrong_alone():
    """The module in front raises another error alone, and is not to blame."""
    raised = RunnerRecord(
        status=Status.ERROR, reason="the run raises E: no &", problems={"block": "E: takes x"}
    )
    block, head = tap("block", isolated=verdict(2.0)), tap("head", isolated=verdict(2.0))

    def told(*taps):
        comparison = Comparison(taps, {}, "", 0.0, Diagnosis("module", "block"))
        return batch._blame(comparison, raised).text

    assert told(block, head) == "head is wrong on its own, and the run raises E: no &"
    right = tap("head")
    assert told(block, right) == "every module that runs on its own passes, and the run raises E: no &"


def test_other_diagnoses_have_no_place():
    assert batch._source(Diagnosis("check", "block"), {"block": "block.py:2"}) == ""


@pytest.fixture
def folder(tmp_path):
    return saved_batch(tmp_path)


def test_rows_are_judged_and_fail_where_nothing_else_does(folder):
    trials = [RowTrialRecord(kind="alone", rows=[3], taps={"block": [0.5]})]
    port = judged(folder, **{PORT: RunnerRecord(label="port", row_trials=trials)})[PORT]
    assert [row.kind for row in port.rows] == ["alone"]
    assert (port.verdict, port.diagnosis.kind, port.diagnosis.tap) == ("FAIL", "check", "block")
    assert judged(folder)[PORT].rows == ()


@pytest.mark.parametrize(("states_rows", "verdict"), [(False, "PASS"), (True, "FAIL")])
def test_rows_that_depend_on_their_batch_are_the_reference_s_unless_the_case_states_that_none_does(
    folder, monkeypatch, states_rows, verdict
):
    monkeypatch.setattr(saved_scores.Scores, "states_rows", states_rows)
    trials = [RowTrialRecord(kind="alone", rows=[3], taps={"block": [0.5]})]
    records = {name: RunnerRecord(label=name, row_trials=trials) for name in (REFERENCE, PORT)}
    assert judged(folder, **records)[PORT].verdict == verdict


def test_a_leak_that_the_reference_has_too_is_told(folder):
    leaking = Capture(TENSORS | {"block": 1.5 * TENSORS["block"]})
    write(folder, PORT, poisoned=Capture({OUTPUT: TENSORS[OUTPUT], "block": leaking.tensors["block"]}))
    alone = judged(folder)[PORT].diagnosis
    write(folder, REFERENCE, poisoned=leaking)
    both = judged(folder)[PORT].diagnosis
    assert (alone.kind, alone.tap) == (both.kind, both.tap) == ("check", "block")
    assert "so it does in the reference, at block" in both.text
    assert "in the reference" not in alone.text


def test_tapping_that_changes_an_output_is_told(folder):
    taps = {name: tensor for name, tensor in TENSORS.items() if name != "table"}
    write(folder, PORT, tapped=Capture({**taps, OUTPUT: taps[OUTPUT] + 0.25}))
    assert judged(folder)[PORT].observer_difference == pytest.approx(0.25)


def test_the_form_of_a_runner_computes_modules_inside_others(folder, monkeypatch):
    """A runner of the fused form has no block, and says why."""

    class Fused:
        computed_inside = {"Block": "inside the table"}
        appends_alone = False

    monkeypatch.setattr(saved_scores.Scores, "form", lambda case, name: Fused)
    write(folder, "torch_fused", tapped=of(OUTPUT), untapped=of(OUTPUT), poisoned=of(OUTPUT))
    tap = next(
        tap
        for tap in judged(folder, torch_fused=RunnerRecord(label="fused", appends=False))["torch_fused"].taps
        if tap.tap == "block"
    )
    assert tap.gap == "inside the table"


@pytest.mark.parametrize(("name", "compared"), [(PORT, {"block"}), (REFERENCE, set())])
def test_arguments_of_every_runner_but_the_reference_are_compared(folder, name, compared):
    capture = Capture(dict(TENSORS))
    capture.arguments["block"] = Received(parent="", finished=0, longest_sum_before=0, arguments=())
    write(folder, name, tapped=capture)
    results = captured._results(saved_scores.Scores(), folder.runner(name), name, RunnerRecord(label=name))
    assert set(results.received.arguments) == compared


def test_a_leak_is_explained_though_its_tap_passes(folder):
    write(folder, PORT, poisoned=Capture({OUTPUT: TENSORS[OUTPUT], "block": 1.5 * TENSORS["block"]}))
    port = judged(folder)[PORT]
    assert (port.padding_leak, port.diagnosis.kind) == ("block", "check")
    assert port.diagnosis.explanation


@pytest.mark.parametrize(("kind", "explanation"), [("between", ()), ("check", ("told",))])
def test_a_module_that_passes_does_not_explain_the_code_around_it(folder, monkeypatch, kind, explanation):
    diagnosed = partial(replace, diagnosis=Diagnosis(kind, "block"))
    monkeypatch.setattr(batch, "compare_runners", lambda *both: map(diagnosed, compare_runners(*both)))
    monkeypatch.setattr(batch, "explain_tap", lambda *given: ("told",))
    assert judged(folder)[PORT].diagnosis.explanation == explanation


@pytest.mark.parametrize(
    ("name", "libraries"),
    [
        ("torch_compile", "PyTorch's compiler"),
        ("onnxruntime", "the export to ONNX or ONNX Runtime"),
        (PORT, ""),
    ],
)
def test_a_wrong_translation_of_the_reference_is_no_fault_of_a_port(folder, name, libraries):
    def explanation(output):
        write(folder, name, untapped=Capture({OUTPUT: output}))
        record = RunnerRecord(label=name, taps_modules=False, appends=False)
        return judged(folder, **{name: record})[name].diagnosis.explanation

    (*_, last) = told = explanation(1.5 * TENSORS[OUTPUT])
    assert last.startswith("equals the oracle times 1.5")
    program = "it is the reference's own program, which eager PyTorch runs right: "
    assert told[:-1] == ((f"{program}{libraries} makes the difference",) if libraries else ())
    assert explanation(TENSORS[OUTPUT]) == ()


def test_every_tap_has_its_notes(folder, monkeypatch):
    monkeypatch.setattr(batch, "notes", lambda evidence, results, comparison, tap: (f"of {tap.tap}",))
    assert {tap.tap: tap.notes for tap in judged(folder)[PORT].taps} == {
        name: (f"of {name}",) for name in TENSORS
    }


class Alone:
    """In the place of the oracle: its results are the arguments."""

    loaded = 0
    model = torch.nn.Sequential()

    def load(self, case, precision, weights):
        Alone.loaded += 1
        self.known = (case.name, precision.name, weights)

    def run_call(self, call, inputs, arrays, whole):
        assert not whole
        return {"call": call, "inputs": inputs, "arrays": arrays, "known": self.known}


def test_the_oracle_runs_calls_alone_with_the_arrays_of_the_batch(folder, monkeypatch):
    case = saved_scores.Scores()
    assert captured.rerun_of(case, folder) is None
    CaseFolder(folder.batch.path.parent).weights.write_text("")
    monkeypatch.setattr(rerun, "Float64Runner", Alone)
    monkeypatch.setattr(captured, "load_export", lambda path: path.name)
    monkeypatch.setattr(Alone, "loaded", 0)
    run = captured.rerun_of(case, folder).call
    for _ in range(2):
        received = run("a call", "inputs")
        assert (received["call"], received["inputs"], set(received["arrays"])) == (
            "a call",
            "inputs",
            {"ids", "lengths"},
        )
        assert received["known"][:2] == ("scores", "fp32")
    assert Alone.loaded == 1


def test_a_runner_that_fails_in_an_earlier_batch_has_no_search_for_a_cause(folder, monkeypatch):
    searches = {}

    def judge(evidence, results, comparison, record, *rest):
        searches[record.label] = evidence.rerun and evidence.rerun.call
        return own(evidence, results, comparison, record, *rest)

    own = batch._judge_runner
    monkeypatch.setattr(batch, "_judge_runner", judge)
    monkeypatch.setattr(batch, "rerun_of", lambda case, folder: SimpleNamespace(call=case.name))
    judged(folder)
    assert searches["port"] == "scores"
    batch.judge_batch(saved_scores.Scores(), folder, "typical", {PORT})
    assert searches == {"torch": "scores", "port": None, "onnx": "scores"}


def test_choices_are_replayed_with_the_weights_and_inputs_of_the_batch(folder, monkeypatch):
    replays = []

    def compare(evidence, results):
        replays.append(evidence.replays)
        return compare_runners(replace(evidence, replays=None), results)

    monkeypatch.setattr(batch, "compare_runners", compare)
    judged(folder)
    weights = CaseFolder(folder.batch.path.parent).weights
    weights.write_text("")
    monkeypatch.setattr(captured, "load_export", lambda path: {"of": path})
    monkeypatch.setattr(captured, "Replays", lambda *parts: parts)
    judged(folder)
    assert replays[0] is None
    case, precision, tensors, arrays = replays[1]
    assert (case.name, precision.name, tensors()) == ("scores", "fp32", {"of": weights})
    assert set(arrays()) == {"ids", "lengths"}


def test_a_runner_is_judged_on_the_evidence_under_its_own_choices(folder, monkeypatch):
    judged_on = {}

    def compare(evidence, results):
        for number, comparison in enumerate(compare_runners(evidence, results)):
            own = replace(evidence, entry=f"own {number}") if number else None
            yield replace(comparison, evidence=own)

    def judge(evidence, results, comparison, record, *rest):
        judged_on[record.label] = evidence.entry, evidence.rerun.call
        return own_judge(evidence, results, comparison, record, *rest)

    own_judge = batch._judge_runner
    monkeypatch.setattr(batch, "compare_runners", compare)
    monkeypatch.setattr(batch, "_judge_runner", judge)
    monkeypatch.setattr(batch, "rerun_of", lambda case, folder: SimpleNamespace(call=case.name))
    judged(folder)
    assert judged_on == {
        "torch": ("score", "scores"),
        "port": ("own 1", "scores"),
        "onnx": ("own 2", "scores"),
    }


def test_a_refused_graph_names_its_batch_without_any_evidence(folder):
    crashed = RunnerRecord(label="torch", status=Status.CRASHED, reason="signal 11")
    refused = RunnerRecord(label="port", status=Status.REFUSED, reason="no such layer")
    port = judged(folder, **{REFERENCE: crashed, PORT: refused})[PORT]
    assert (port.verdict, port.diagnosis.batch) == ("FAIL", "typical")


def test_a_runner_that_gives_no_reason_has_none(folder):
    gone = judged(folder, onnx=RunnerRecord(status=Status.UNAVAILABLE))["onnx"]
    assert (gone.verdict, gone.reason) == ("NONE", "")
