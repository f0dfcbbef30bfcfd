"""Whole runs: what a report holds, that a replay judges alike, and that batches are all looked at."""

import os
import shutil
import signal

import numpy as np
import pytest
import safetensors.torch
import torch

import parity.execution.scheduler
from cases.hstu.synthetic import synthetic
from cases.shipped import load_case
from parity.capture.names import TapName
from parity.execution.worker import RunnerProcess
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import digest
from parity.pipeline import _of_streams
from parity.report.files import read_report
from parity.report.schema import SCHEMA, StreamReport
from parity.timing.rounds import (
    GPU_MIN_MODULE_ROUNDS,
    GPU_MODULE_REPEATS,
    GPU_MODULE_ROUNDS,
    MIN_ROUNDS,
    MODULE_REPEATS,
    MODULE_ROUNDS,
)
from tests.parity.case_runs import run_command
from tests.parity.hidden_gpu import without_gpu
from tests.parity.saved_runs import changed_capture, quick_runs

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("pipeline")

ATTENTION = "_hstu._attention_layers.1._attn"


def test_a_run_ends_with_its_verdict_and_its_report(saved_run, report):
    assert (saved_run.ended.code, saved_run.ended.err) == (0, "")
    assert "\nPASS: " in saved_run.ended.out
    assert saved_run.ended.out.endswith(f"report: {saved_run.folder / 'report.json'}\n")
    assert report.schema_version == SCHEMA == "parity.report/1"
    assert report.exit_code == 0
    assert report.requested_runners == ("torch", "torch_jagged")
    assert {"python", "torch", "numpy", "processor", "cores", "threads"} <= report.environment.keys()


def test_a_report_says_what_was_run(report, tiny):
    case, _, weights = tiny
    (reported,) = report.cases
    inputs = synthetic(case.config)
    assert reported.case == case.reference
    assert (reported.source, reported.weights_source) == ("synthetic, seed 0", "initial, seed 0")
    assert reported.weights_digest == digest(weights)
    assert reported.counts == {"users": 5, "history": int(inputs["past_lengths"].sum())}
    assert reported.batches[0].digest == inputs.digest
    assert {batch.digest for batch in reported.batches} == {
        batch.inputs.digest for batch in make_inputs(case).batches
    }


def test_every_module_has_both_verdicts_with_their_numbers(report, tiny, runners_of):
    _, model, _ = tiny
    runners = runners_of(report)
    assert list(runners) == ["torch", "torch_jagged"]
    called = {
        path for path, module in model.named_modules() if path and type(module).__name__ != "ModuleList"
    }
    for runner in runners.values():
        assert runner.verdict == "PASS"
        assert runner.diagnosis.kind == "none"
        assert {module.path for module in runner.modules if not module.tap.startswith("score.")} == called
        outputs = [module.tap for module in runner.modules if module.tap.startswith("score.")]
        assert outputs == ["score.encoded", "score.current", "score.similarity"]
        for module in runner.modules:
            verdicts = [] if module.tap in outputs else [module.isolated]
            # Appending an item is no part of the model's own run.
            verdicts += [] if TapName.parse(module.tap).appends else [module.accumulated]
            for verdict in verdicts:
                assert verdict.status == "PASS"
                assert verdict.checked > 0
                assert 0 <= verdict.margin <= 1
                assert verdict.err_port_l2 <= verdict.k * verdict.err_ref_l2 + verdict.floor
                assert verdict.err_port_max <= verdict.k * verdict.err_ref_max + verdict.floor


def test_latencies_are_of_models_and_of_modules(report, runners_of):
    runners = runners_of(report)
    timed = [module.latency for module in runners["torch"].modules if module.latency]
    assert len(timed) >= 20
    models = [runners["torch"].latency, runners["torch_jagged"].latency]
    for measured in (*models, *timed):
        assert 0 < measured.p25 <= measured.median <= measured.p75
    assert min(measured.runs for measured in models) >= MIN_ROUNDS
    counts = {measured.runs for measured in timed}
    if torch.cuda.is_available():
        rounds = range(GPU_MIN_MODULE_ROUNDS, GPU_MODULE_ROUNDS + 1)
        assert counts <= {count * GPU_MODULE_REPEATS for count in rounds}
    else:
        # Slow calls have one round.
        assert counts <= {MODULE_REPEATS, MODULE_ROUNDS * MODULE_REPEATS}


def _judged(report):
    """All of a report but what belongs to the moment and the command."""
    return report.model_dump(exclude={"created", "command", "environment"})


def test_a_replay_gives_the_identical_verdicts(replayed, saved_run, report, content):
    before = content(saved_run.folder)
    code, again, _ = replayed(saved_run.folder)
    assert code == 0
    assert _judged(again) == _judged(report)
    assert content(saved_run.folder) == before


def test_the_first_case_with_streams_has_them_in_all_precisions():
    cases = [load_case(name) for name in ("dlrm_tiny", "hstu_tiny", "hstu_tiny_rated")]
    asked = [_of_streams(case, cases, ("bf16", "fp32")) for case in cases]
    assert asked == [("bf16",), ("bf16", "fp32"), ("bf16",)]
    assert [case.has_streams() for case in cases] == [False, True, True]


def test_a_replay_keeps_a_failing_stream(replayed, saved_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved_run.folder, folder)
    path = folder / "report.json"
    saved = read_report(path)
    numbers = {"steps": 3, "items": 20, "cache_margin": 70.0, "output_margin": 0.2}
    stream = StreamReport(precision="fp32", side="tripy", failed="k of layer 1", reason="too far", **numbers)
    cases = tuple(case.model_copy(update={"streams": (stream,)}) for case in saved.cases)
    path.write_text(saved.model_copy(update={"cases": cases, "exit_code": 1}).model_dump_json())
    code, again, out = replayed(folder)
    assert (code, again.cases[0].streams) == (1, (stream,))
    assert "k of layer 1" in out


@pytest.fixture
def changed(saved_run, tmp_path):
    """A copy of the saved run; `changed("tapped", function)` changes that capture of torch_jagged."""
    folder = tmp_path / "changed"
    shutil.copytree(saved_run.folder, folder)

    def change(kind, function, batch=0):
        stem = folder / "hstu_tiny" / f"batch_{batch:04d}" / "fp32" / "torch_jagged" / kind
        with changed_capture(stem) as capture:
            function(capture.tensors)
        return folder

    return change


def _nudge(tap, *index):
    def function(tensors):
        tensors[tap][index] += 0.01

    return function


def test_a_fault_of_another_batch_of_the_plan_has_its_name(changed, replayed, runners_of):
    code, report, printed = replayed(changed("untapped", _nudge("score.current", 0, 0), batch=1))
    runner = runners_of(report)["torch_jagged"]
    assert code == 1
    assert (runner.diagnosis.tap, runner.diagnosis.batch) == ("score.current", "one full row")
    assert f"{runner.label}, one full row: " in printed.replace("\n", " ")


@pytest.mark.parametrize(
    ("kind", "function", "diagnosis", "tap", "text"),
    [
        ("isolated", _nudge(ATTENTION, 0, 0, 0), "module", ATTENTION, "diverges on its own: relative "),
        ("tapped", _nudge(ATTENTION, 0, 0, 0), "amplification", ATTENTION, "passes on its own; the error"),
        ("timed", _nudge("score.current", 0, 0), "module", "score.current", "(model output): relative "),
        ("poisoned", _nudge(ATTENTION, 0, 0, 0), "check", ATTENTION, "garbage in padded positions changes"),
        ("isolated", lambda t: t.pop(ATTENTION), "module", ATTENTION, "missing: the port has no such result"),
        (
            "tapped",
            lambda t: t.update(_more=t[ATTENTION].clone()),
            "module",
            "_more",
            "extra: the reference never calls _more",
        ),
        (
            "isolated",
            lambda t: t.update({ATTENTION: t[ATTENTION].double()}),
            "module",
            ATTENTION,
            "dtype torch.float64 differs from the reference's torch.float32",
        ),
        (
            "isolated",
            lambda t: t.update({ATTENTION: t[ATTENTION][:, :-1].contiguous()}),
            "module",
            ATTENTION,
            "shape (5, 26, 20) differs",
        ),
    ],
    ids=["alone", "inside", "output", "padding", "missing", "extra", "type", "shape"],
)
def test_one_change_ends_with_1_and_names_its_module(
    replayed, changed, kind, function, diagnosis, tap, text, runners_of
):
    code, report, out = replayed(changed(kind, function))
    assert code == report.exit_code == 1
    runners = runners_of(report)
    assert runners["torch"].verdict == "PASS"
    assert runners["torch_jagged"].verdict == "FAIL"
    actual = runners["torch_jagged"].diagnosis
    assert (actual.kind, actual.tap) == (diagnosis, tap)
    assert text in actual.text
    assert "FAIL: hstu_tiny, fp32, torch jagged (eager" in out


def test_padding_is_not_compared(replayed, changed, saved_run):
    inputs = synthetic(load_case("hstu_tiny").config)
    row = int(np.argmin(inputs["past_lengths"]))
    padded = _nudge(ATTENTION, row, int(inputs["past_lengths"][row]), 0)
    changed("poisoned", padded)
    changed("isolated", padded)
    assert replayed(changed("tapped", padded))[0] == 0


@pytest.fixture(scope="module")
def unavailable_run(command, tmp_path_factory, tiny):
    """A checkpoint in safetensors; in fp32, and in tf32, which the CPU has not."""
    folder = tmp_path_factory.mktemp("unavailable")
    safetensors.torch.save_file(tiny[2], folder / "initial.safetensors")
    with without_gpu(), quick_runs():
        ended = command(
            *("--case", "hstu_tiny", "--precision", "fp32,tf32", "--runners", "torch,torch_jagged"),
            *("--weights", folder / "initial.safetensors", "--save", folder / "run"),
        )
    return ended, read_report(folder / "run" / "report.json")


def test_a_precision_that_cannot_run_here_is_rows_and_ends_with_2(unavailable_run):
    ended, report = unavailable_run
    assert ended.code == report.exit_code == 2
    rows = {runner.runner: runner for runner in report.cases[0].precisions[1].runners}
    assert set(rows) == {"torch", "torch_jagged", "oracle"}
    assert {(runner.status, runner.verdict) for runner in rows.values()} == {("UNAVAILABLE", "NONE")}
    assert rows["torch"].reason == "tf32 needs a CUDA device and PyTorch sees none"
    assert "UNAVAILABLE: hstu_tiny, tf32, torch dense (eager, cpu): tf32 needs a CUDA device" in ended.out
    assert "\nINCOMPLETE: all that ran passes, " in ended.out


def test_a_checkpoint_in_safetensors_is_run_and_the_other_precision_finishes(unavailable_run, tiny):
    (case,) = unavailable_run[1].cases
    assert case.weights_source.endswith("initial.safetensors")
    assert case.weights_digest == digest(tiny[2])
    assert {runner.verdict for runner in case.precisions[0].runners} == {"PASS"}


@pytest.mark.full
def test_runners_that_die_are_rows_and_the_others_finish(tmp_path, monkeypatch):
    """In fp32 the jagged runner aborts; in fp16 the system kills the reference."""
    deaths = {("torch_jagged", "fp32", "run"): "SIGABRT", ("torch", "fp16", "record"): "SIGKILL"}

    class Mortal(RunnerProcess):
        precision = ""

        def request(self, command, *arguments, **keywords):
            if command.__name__ == "load":
                self.precision = arguments[1].name
            if name := deaths.get((self.name, self.precision, command.__name__)):
                os.kill(self.pid, signal.Signals[name])
            return super().request(command, *arguments, **keywords)

    monkeypatch.setattr(parity.execution.scheduler, "RunnerProcess", Mortal)
    with quick_runs():
        report = run_command(
            cases="hstu_tiny",
            precision="fp32,fp16",
            runners="torch,torch_jagged",
            save=tmp_path / "run",
        )
    assert report.exit_code == 1
    fp32, fp16 = (
        {runner.runner: (runner.verdict, runner.status, runner.reason) for runner in precision.runners}
        for precision in report.cases[0].precisions
    )
    assert fp32["torch"] == ("PASS", "OK", "")
    assert fp32["torch_jagged"] == ("NONE", "CRASHED", "signal SIGABRT during 'run'")
    assert fp16["torch"][:2] == ("NONE", "OUT OF MEMORY")
    for name in ("oracle", "torch_jagged"):
        verdict, status, reason = fp16[name]
        assert (verdict, status) == ("NONE", "ERROR")
        assert reason.startswith("the reference did not run (OUT OF MEMORY: killed during 'record'")
    assert read_report(tmp_path / "run" / "report.json") == report
