"""A saved run that is killed: nothing half-written stays, and `resume` ends as if nothing had happened."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.numpy import load_file, save_file

from cases.dlrm import inputs as dlrm_inputs
from parity.execution.folder import RunFolder
from parity.inputs import weights
from parity.report.files import read_report
from parity.report.schema import StreamReport
from tests.locations import ROOT
from tests.parity.saved_runs import QUICK_PROGRAM, quick_runs, rewrite

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("resuming")

ARGUMENTS = ("--case", "dlrm_tiny", "--precision", "fp32,fp16", "--runners", "tripy", "--seed", "5")


KILLED_PROGRAM = """
import os, signal, threading
from parity.execution import batches
write, left, one = batches.write_files, {done}, threading.Lock()
def count(*arguments):
    global left
    with one:
        if not left:
            # As the system does it: the program and all of its runners, at once.
            os.killpg(0, signal.SIGKILL)
        left -= 1
        write(*arguments)
batches.write_files = count
"""
"""A run that is killed when the files of its next batch are about to be sealed."""


def _killed(folder, done):
    """Run until a number of batches is done, and kill it there."""
    program = KILLED_PROGRAM.format(done=done) + QUICK_PROGRAM
    ended = subprocess.run(
        [sys.executable, "-c", program, *ARGUMENTS, "--save", folder],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # As in this process, which goes on with the run: another number is another environment.
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        start_new_session=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL


def _results(folder):
    """All that a run found out, without what differs from run to run."""
    report = json.loads(read_report(folder / "report.json").model_dump_json())
    precisions = [precision for case in report["cases"] for precision in case["precisions"]]
    for precision in precisions:
        precision["gpu"] = None
    for runner in (runner for precision in precisions for runner in precision["runners"]):
        runner["latency"] = runner["peak_bytes"] = None
        for module in runner["modules"]:
            module["latency"] = None
    return report["cases"], report["exit_code"]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The run, not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with quick_runs():
        ended = command(*ARGUMENTS, "--save", folder)
    assert ended.code == 0, ended
    return folder


@pytest.fixture
def resume(command):
    """`resume(folder)` goes on with a run, quickly."""

    def go_on(folder):
        with quick_runs():
            return command("resume", folder)

    return go_on


def _records(folder):
    return sorted(folder.glob("*/batch_*/*/files.json"))


@pytest.mark.full
@pytest.mark.parametrize("done", [0, 1], ids=["before any batch is done", "after one of two"])
def test_a_killed_run_goes_on(whole, resume, tmp_path, done):
    folder = tmp_path / "run"
    _killed(folder, done)
    assert len(_records(folder)) == done
    assert not (folder / "manifest.json").exists()
    stored = {path: path.stat().st_mtime_ns for path in _records(folder)}
    ended = resume(folder)
    assert ended.code == 0, ended
    assert _results(folder) == _results(whole)
    assert {path: path.stat().st_mtime_ns for path in stored} == stored
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


def _interrupted(whole, tmp_path):
    """The whole run as if it had been killed before `report.json` was written."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for name in ("report.json", "manifest.json"):
        (folder / name).unlink()
    return folder


@pytest.mark.full
def test_what_is_there_of_a_batch_without_its_record_is_made_again(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    record, *stored = _records(folder)
    record.unlink()
    (capture,) = record.parent.glob("torch/tapped.safetensors")
    capture.write_bytes(capture.read_bytes()[:100])
    before = [path.stat().st_mtime_ns for path in stored]
    assert resume(folder).code == 0
    assert _results(folder) == _results(whole)
    assert before
    assert [path.stat().st_mtime_ns for path in stored] == before


def test_changed_inputs_are_refused(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    (inputs,) = folder.glob("*/batch_0000/inputs.safetensors")
    inputs.write_bytes(inputs.read_bytes() + b" ")
    ended = resume(folder)
    assert ended.code == 2
    assert "inputs.safetensors is not as the run wrote it" in " ".join(ended.err.split())


LEFT = [
    pytest.param((), id="all files"),
    pytest.param(("weights/*", "batch_*/*.safetensors"), id="neither weights nor inputs"),
    pytest.param(("weights/manifest.json", "batch_*/*/files.json"), id="no batch that is done"),
]


def _partly_done(whole, tmp_path, removed):
    """The run as if it had been killed after its first precision, and some of the case's files removed."""
    folder = _interrupted(whole, tmp_path)
    shutil.rmtree(folder / "dlrm_tiny" / "batch_0000" / "fp32")
    for pattern in removed:
        paths = sorted((folder / "dlrm_tiny").glob(pattern))
        assert paths
        for path in paths:
            path.unlink()
    return folder


def _checkpoint(whole, folder, factor):
    """A file of a multiple of the run's weights, which the run is said to be of."""
    path = folder.with_name("w.safetensors")
    exported = load_file(whole / "dlrm_tiny" / "weights" / "weights.safetensors")
    save_file({name: array * factor for name, array in exported.items()}, path)
    rewrite(folder / "started.json", lambda started: started.update(checkpoint=str(path)))
    return path


def _refused_unchanged(resume, folder, files="**/*"):
    """The message of a resumed run that is refused, and neither adds nor removes one of some files."""
    before = sorted(folder.glob(files))
    ended = resume(folder)
    assert ended.code == 2, ended
    assert sorted(folder.glob(files)) == before
    return " ".join(ended.err.split())


@pytest.mark.parametrize("removed", LEFT)
def test_a_checkpoint_that_changed_is_refused(whole, resume, tmp_path, removed):
    folder = _partly_done(whole, tmp_path, removed)
    path = _checkpoint(whole, folder, 2)
    message = f"--weights: {path} has changed since the run began; restore it, or begin again"
    assert message in _refused_unchanged(resume, folder)


@pytest.mark.parametrize("removed", LEFT)
def test_other_inputs_are_refused(whole, resume, tmp_path, monkeypatch, removed):
    folder = _partly_done(whole, tmp_path, removed)
    synthetic = dlrm_inputs.synthetic

    def drawn(config):
        wanted = config.input.model_copy(update={"seed": 6})
        return synthetic(config.model_copy(update={"input": wanted}))

    monkeypatch.setattr(dlrm_inputs, "synthetic", drawn)
    message = "inputs: batch 0 of dlrm_tiny differs from the one that the run began with; restore what"
    # The weights are the run's own, and come back where they are missing.
    assert message in _refused_unchanged(resume, folder, "*/batch_*/**/*")


def test_other_weights_of_the_case_are_refused(whole, resume, tmp_path, monkeypatch):
    folder = _partly_done(whole, tmp_path, ("weights/*",))
    initial = weights.initial_weights
    monkeypatch.setattr(weights, "initial_weights", lambda model, seed, *rules: initial(model, 6, *rules))
    message = "weights: dlrm_tiny has other weights than those that the run began with; restore what"
    assert message in _refused_unchanged(resume, folder)


@pytest.mark.parametrize("name", ["weights.safetensors", "manifest.json"])
def test_an_export_that_changed_in_the_folder_is_refused(whole, resume, tmp_path, name):
    folder = _partly_done(whole, tmp_path, ())
    path = folder / "dlrm_tiny" / "weights" / name
    path.write_bytes(path.read_bytes()[:-9])
    assert f"resume: {path} is not as the run wrote it; restore" in _refused_unchanged(resume, folder)


@pytest.mark.full
def test_a_checkpoint_that_is_restored_goes_on(whole, resume, tmp_path):
    folder = _partly_done(whole, tmp_path, ("weights/*", "batch_*/*.safetensors"))
    _checkpoint(whole, folder, 1)
    ended = resume(folder)
    assert ended.code == 0, ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cases", []),
        ("precisions", ["fp99"]),
        ("precisions", "fp32"),
        ("runners", ["nothing"]),
        ("runners", ["tripy", "tripy"]),
        ("streams", "no"),
        ("timeout", -1.0),
        ("memory", 0.0),
        ("environment", []),
        ("more", 1),
    ],
)
def test_a_request_of_other_types_or_names_is_refused(whole, resume, tmp_path, field, value):
    folder = _interrupted(whole, tmp_path)
    rewrite(folder / "started.json", lambda started: started.update({field: value}))
    ended = resume(folder)
    assert ended.code == 2
    assert "holds no run that was begun with --save" in ended.err


def test_a_batch_of_another_request_is_refused(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    rewrite(folder / "started.json", lambda started: started.update(precisions=["fp16"]))
    ended = resume(folder)
    assert ended.code == 2
    assert "fp32 is no batch of the run" in " ".join(ended.err.split())


def test_swapped_batches_are_refused(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    fp16, fp32, *_ = (done.path for done in RunFolder(folder).done())
    fp16.rename(fp16.with_name("x"))
    fp32.rename(fp16)
    fp16.with_name("x").rename(fp32)
    ended = resume(folder)
    assert ended.code == 2
    assert "files.json is not as the run wrote it" in " ".join(ended.err.split())


def test_another_environment_is_refused(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    rewrite(folder / "started.json", lambda started: started["environment"].update(torch="1.0"))
    ended = resume(folder)
    assert ended.code == 2
    assert "another environment (torch changed)" in ended.err


@pytest.mark.full
def test_a_run_whose_report_is_written_is_completed(whole, command, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    # The first time writes the files of ONNX and Polygraphy, which a quick run lacks; the second has them.
    for _ in range(2):
        (folder / "manifest.json").unlink()
        assert command("resume", folder).code == 0
    assert list(folder.glob("*/onnx/fp16/model.onnx"))
    assert _results(folder) == _results(whole)
    assert command("replay", folder).code == 0


@pytest.mark.parametrize("asked", [True, False])
def test_streams_of_a_run_are_judged_behind_its_batches(whole, resume, tmp_path, monkeypatch, asked):
    numbers = {"steps": 3, "items": 20, "cache_margin": 70.0, "output_margin": 0.2}
    stream = StreamReport(precision="fp32", side="tripy", failed="k of layer 1", reason="too far", **numbers)
    calls = []

    def judge(case, precision, worker, is_only_case=True):
        calls.append((case.name, precision.name))
        return (stream,)

    monkeypatch.setattr("parity.cli.streams.judge_small_streams", judge)
    folder = _interrupted(whole, tmp_path)
    rewrite(folder / "started.json", lambda started: started.update(streams=asked))
    assert resume(folder).code == int(asked)
    assert calls == ([("dlrm_tiny", "fp32")] if asked else [])
    (case,) = read_report(folder / "report.json").cases
    assert case.streams == ((stream,) if asked else ())


def test_results_of_other_code_are_refused(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    for batch in RunFolder(folder).done():
        rewrite(batch.files, lambda done: done["code"]["tripy_port"].update(digest="0" * 64))
    ended = resume(folder)
    assert ended.code == 2
    assert "has results of other code (tripy_port changed since)" in ended.err


def test_a_case_that_became_a_link_is_refused(whole, resume, tmp_path):
    folder = _interrupted(whole, tmp_path)
    (folder / "dlrm_tiny").rename(tmp_path / "elsewhere")
    (folder / "dlrm_tiny").symlink_to(tmp_path / "elsewhere")
    ended = resume(folder)
    assert ended.code == 2
    assert "dlrm_tiny is a link to a folder" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda batch: (batch.path / "torch" / "tapped.json").unlink(), "tapped.json is missing"),
        (lambda batch: batch.record.write_text(batch.record.read_text() + " "), "record.json is not as the"),
        (lambda batch: (batch.path / "torch" / "more.json").touch(), "more.json is no file of the run"),
        (lambda batch: batch.files.write_text("{}"), "files.json is not as the run wrote it"),
    ],
    ids=["missing", "changed", "added", "digests"],
)
def test_a_done_batch_that_changed_is_refused(whole, resume, tmp_path, damage, message):
    folder = _interrupted(whole, tmp_path)
    damage(RunFolder(folder).done()[0])
    ended = resume(folder)
    assert ended.code == 2
    assert message in ended.err


def test_a_complete_run_is_not_run_again(whole, command):
    ended = command("resume", whole)
    assert ended.code == 2
    assert "`replay`" in ended.err


def test_a_folder_without_a_run_is_refused(refused, tmp_path):
    assert "begin one with --save" in refused("resume", tmp_path / "nothing")


def test_a_run_that_was_not_finished_is_not_replayed(whole, command, tmp_path):
    ended = command("replay", _interrupted(whole, tmp_path))
    assert ended.code == 2
    assert "holds no complete saved run" in ended.err
