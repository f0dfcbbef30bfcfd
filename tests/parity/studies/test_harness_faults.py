"""Faults of the suite itself: right ports, wrong ports and whole runs show them."""

from __future__ import annotations

import ast

import pytest

from parity.base.errors import UserError
from parity.studies.fault_injection import harness as trying
from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.harness import HarnessBench
from parity.studies.fault_injection.overlay import Answer, _marked, travel
from tests.parity.case_runs import bench_of, on_bench

CASE = "dlrm_tiny"
OF_BENCH = on_bench(CASE)
INSTANCE = "return isinstance(value, tp.Tensor)"
CLEAN = Answer("", [1.0], False)


def _edit(module: str, old: str, new: str) -> Edit:
    return Edit("by hand: test", "module", "an edit", module=module, old=old, new=new, family="harness")


def _try(monkeypatch, edit: Edit, answer: Answer | None = None, clean: Answer = CLEAN):
    """The finding on an edit; whole runs have a fixed answer, and none may begin without it."""

    def answered(case, precision, fault):
        assert answer is not None
        return clean if fault is None else answer

    monkeypatch.setattr(trying, "travel", answered)
    return HarnessBench(bench_of(CASE)).try_fault(edit)


@OF_BENCH
@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (INSTANCE, "return False", Outcome.DETECTED),
        ("def is_tripy_tensor(value: Any)", "def is_tripy_tensor(other: Any)", Outcome.DETECTED),
        ("not there", "", Outcome.BROKEN),
    ],
)
def test_a_right_port_shows_a_fault(monkeypatch, old, new, outcome):
    finding = _try(monkeypatch, _edit("parity.capture.tripy_hooks", old, new))
    assert finding.outcome is outcome, finding.proof
    assert finding.localised is (outcome is Outcome.DETECTED)


@OF_BENCH
def test_faults_of_the_suite_are_no_faults_of_the_port():
    bench = bench_of(CASE)
    of_the_suite = bench.faults_of_the_suite()
    assert of_the_suite
    assert all(edit.in_harness for edit in of_the_suite)
    assert not {fault.identity for fault in of_the_suite} & {fault.identity for fault in bench.faults()}


@pytest.mark.full
@OF_BENCH
def test_a_wrong_port_that_passes_shows_a_fault(monkeypatch):
    scaled = "torch.from_numpy(values * np.float32(scale))"
    zeros = 'torch.from_numpy(values * np.float32(0.0 if name.endswith("bias") else scale))'
    finding = _try(monkeypatch, _edit("parity.inputs.weights", scaled, zeros))
    assert (finding.outcome, finding.kind) == (Outcome.DETECTED, "wrong port")
    assert "bias" in finding.proof


@OF_BENCH
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer("a run: it fails", [], True), Outcome.DETECTED),
        pytest.param(Answer("", [2.0], True), Outcome.MISSED, marks=pytest.mark.full),
        pytest.param(Answer("", [1.0], True), Outcome.EQUIVALENT, marks=pytest.mark.full),
        pytest.param(Answer("", [1.0], False), Outcome.NOT_ASKED, marks=pytest.mark.full),
    ],
)
def test_whole_runs_show_a_fault_at_a_line_that_this_process_does_not_run(monkeypatch, answer, outcome):
    one = 'return f"{number} {what}" if number == 1'
    finding = _try(monkeypatch, _edit("parity.report.overview", one, one.replace("1", "2")), answer)
    assert finding.outcome is outcome
    assert finding.localised is (outcome is Outcome.DETECTED)


@pytest.mark.full
@OF_BENCH
def test_a_suite_that_fails_without_a_fault_judges_none(monkeypatch):
    same = _edit("parity.capture.tripy_hooks", INSTANCE, "return (isinstance(value, tp.Tensor))")
    with pytest.raises(UserError, match="fails without a fault"):
        _try(monkeypatch, same, CLEAN, clean=Answer("a run: it fails", [], False))


def test_the_innermost_statement_of_a_line_is_marked(tmp_path):
    source = "def f(x):\n    if x:\n        y = (\n            x\n        )\n    return x\n"
    mark = tmp_path / "mark"
    scope: dict = {}
    exec(compile(_marked(ast.parse(source), 4, mark), "marked", "exec"), scope)
    scope["f"](0)
    assert not mark.exists()
    scope["f"](1)
    assert mark.exists()


@pytest.mark.full
@OF_BENCH
def test_whole_runs_have_the_fault_in_every_process():
    old = "bad = torch.nonzero(~torch.isfinite(tensor))"
    edit = _edit("parity.inputs.checkpoints", old, old.replace("~torch.isfinite", "torch.isnan"))
    bench = bench_of(CASE)
    answer = travel(bench.case, bench.precision, edit)
    assert answer.is_reached
    assert answer.problem == "weights_that_do_not_fit: a checkpoint with Inf is accepted"
