"""Recorded histories in several batches: the counts add up, and the worst batch is what a report shows."""

import shutil

import numpy as np
import pytest
import torch

from parity.capture.store import open_capture, save_capture
from parity.inputs.weights import digest
from parity.report.files import read_report
from tests.locations import DATA
from tests.parity.saved_runs import quick_runs

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("batches")

ML_100K = DATA / "ml-100k" / "u.data"
FP32 = ("--precision", "fp32", "--runners", "torch,torch_jagged")
ATTENTION = "_hstu._attention_layers.1._attn"


# Users of a made-up u.data: one with a single rating, one with more ratings than a history holds.
RATINGS_OF_USERS = [3, 1, 40, 2, 9, 25, 6, 12, 4, 30, 7]


@pytest.fixture(scope="module")
def batches_run(command, tmp_path_factory, tiny):
    """Recorded histories in three batches, with the initial weights as a checkpoint of torch.save."""
    folder = tmp_path_factory.mktemp("batches")
    rng = np.random.default_rng(5)
    lines = [
        f"{user}\t{rng.integers(1, 61)}\t{rng.integers(1, 6)}\t{second}\n"
        for user, count in enumerate(RATINGS_OF_USERS, start=1)
        for second in np.sort(rng.integers(0, 10**9, count))
    ]
    (folder / "u.data").write_text("".join(lines))
    torch.save(tiny[2], folder / "initial.pt")
    with quick_runs():
        ended = command(
            *("--case", "hstu_tiny", *FP32, "--batch", "4", "--data", folder / "u.data"),
            *("--weights", folder / "initial.pt", "--save", folder / "run"),
        )
    assert ended.code == 0, ended
    return folder / "run"


def test_counts_of_recorded_histories_add_up(batches_run, tiny):
    (case,) = read_report(batches_run / "report.json").cases
    assert [batch.name for batch in case.batches] == ["batch 0", "batch 1", "batch 2"]
    assert len({batch.digest for batch in case.batches}) == 3
    assert case.counts == {
        "users": 10,
        "users_in_file": 11,
        "users_without_history": 1,
        "history": sum(min(count - 1, 24) for count in RATINGS_OF_USERS),
        "targets": 10,
        "truncated": sum(max(count - 25, 0) for count in RATINGS_OF_USERS),
        "ratings_in_file": sum(RATINGS_OF_USERS),
    }
    counted = case.counts["history"] + case.counts["targets"] + case.counts["truncated"]
    assert counted + case.counts["users_without_history"] == case.counts["ratings_in_file"]
    assert case.source == "u.data (ml-100k)"


def test_a_checkpoint_of_torch_save_is_run(batches_run, tiny):
    (case,) = read_report(batches_run / "report.json").cases
    assert case.weights_source.endswith("initial.pt")
    assert case.weights_digest == digest(tiny[2])


def test_each_tap_shows_its_worst_batch_and_latencies_stay(batches_run, runners_of):
    jagged = runners_of(read_report(batches_run / "report.json"))["torch_jagged"]
    assert {module.worst_batch for module in jagged.modules} == {"batch 0", "batch 1", "batch 2"}
    assert jagged.latency is not None


def test_a_fault_in_the_second_batch_is_reported_with_its_name(replayed, batches_run, tmp_path, runners_of):
    folder = tmp_path / "changed"
    shutil.copytree(batches_run, folder)
    stem = folder / "hstu_tiny" / "batch_0001" / "fp32" / "torch_jagged" / "isolated"
    capture = open_capture(stem)
    capture.tensors[ATTENTION][0, 0, 0] += 0.01
    save_capture(capture, stem)
    code, report, _ = replayed(folder)
    assert code == 1
    jagged = runners_of(report)["torch_jagged"]
    assert (jagged.diagnosis.kind, jagged.diagnosis.tap, jagged.diagnosis.batch) == (
        "module",
        ATTENTION,
        "batch 1",
    )
    (module,) = (module for module in jagged.modules if module.tap == ATTENTION)
    assert (module.status, module.worst_batch) == ("FAIL", "batch 1")
    assert sum(module.status == "FAIL" for module in jagged.modules) == 1


@pytest.mark.full
@pytest.mark.skipif(
    not ML_100K.exists(), reason=f"{ML_100K.name} of MovieLens 100K is not in shared/data/ml-100k"
)
def test_every_user_of_movielens_100k(command, tmp_path, monkeypatch, runners_of):
    # Here every user counts, not the time: batches of 128 take a second each.
    monkeypatch.chdir(tmp_path)
    with quick_runs():
        ended = command("--case", "hstu_ml1m", *FP32, "--data", ML_100K, "--batch", "128")
    assert ended.code == 0, ended
    assert "\nPASS: " in ended.out
    (path,) = (tmp_path / "parity_reports").glob("*/report.json")
    report = read_report(path)
    (case,) = report.cases
    assert len(case.batches) == 8
    counts = case.counts
    assert (counts["users"], counts["users_in_file"], counts["users_without_history"]) == (943, 943, 0)
    assert counts["history"] + counts["targets"] + counts["truncated"] == counts["ratings_in_file"] == 100_000
    assert all(runner.verdict == "PASS" for runner in runners_of(report).values())
    metrics = runners_of(report)["torch_jagged"].metrics
    assert {(metric.rows, metric.flagged) for metric in metrics} == {(943, False)}
