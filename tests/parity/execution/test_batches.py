"""Recorded histories in several batches: the counts add up, and the worst batch is what a report shows."""

import math
import shutil

import numpy as np
import pytest
import torch

from parity.capture.store import load_capture, save_capture
from parity.inputs.weights import digest
from parity.report.schema import read_report
from parity.timing import rounds as latency
from parity.verdict.comparison import MODEL_OUTPUT
from parity.verdict.judging import merge_batches
from tests.locations import DATA

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
    ended = command(
        *("--case", "hstu_tiny", *FP32, "--batch", "4", "--data", folder / "u.data"),
        *("--weights", folder / "initial.pt", "--save", folder / "run"),
    )
    assert ended.code == 0, ended
    return folder / "run"


def test_counts_of_recorded_histories_add_up(batches_run, tiny):
    (case,) = read_report(batches_run / "report.json").cases
    assert case.batches == len(case.inputs_digests) == len(set(case.inputs_digests)) == 3
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
    assert {module.worst_batch for module in jagged.modules} == {0, 1, 2}
    assert jagged.latency is not None


def test_a_fault_in_the_second_batch_is_reported_with_its_number(replayed, batches_run, tmp_path, runners_of):
    folder = tmp_path / "changed"
    shutil.copytree(batches_run, folder)
    stem = folder / "hstu_tiny" / "batch_0001" / "fp32" / "torch_jagged" / "isolated"
    capture = load_capture(stem)
    capture.tensors[ATTENTION][0, 0, 0] += 0.01
    save_capture(capture, stem)
    code, report, _ = replayed(folder)
    assert code == 1
    jagged = runners_of(report)["torch_jagged"]
    assert (jagged.diagnosis.kind, jagged.diagnosis.tap, jagged.diagnosis.batch) == ("module", ATTENTION, 1)
    (module,) = (module for module in jagged.modules if module.tap == ATTENTION)
    assert (module.status, module.worst_batch) == ("FAIL", 1)
    assert sum(module.status == "FAIL" for module in jagged.modules) == 1


def _with_margin(report, tap, factor, batch, status="PASS"):
    """The report of another batch: one module's error changed by a factor."""

    def change(module):
        if module.tap != tap:
            return module.model_copy(update={"worst_batch": batch, "latency": None})
        verdict = module.isolated.model_copy(
            update={
                "status": status,
                "margin": module.margin * factor,
                "err_port_l2": module.isolated.err_port_l2 * factor,
            }
        )
        return module.model_copy(
            update={"isolated": verdict, "status": status, "worst_batch": batch, "latency": None}
        )

    update = {"modules": tuple(map(change, report.modules)), "latency": None, "observer_difference": 0.0}
    if status == "FAIL":
        found = report.diagnosis.model_copy(update={"kind": "module", "tap": tap, "batch": batch})
        update |= {"verdict": "FAIL", "diagnosis": found}
    return report.model_copy(update=update)


def _merged(*reports):
    (merged,) = merge_batches({report.runner: report} for report in reports)
    return merged, {module.tap: module for module in merged.modules}


@pytest.fixture
def first(report, runners_of):
    return runners_of(report)["torch"]


def test_merging_keeps_each_tap_s_worst_batch_and_the_first_latency(first):
    tap = max(first.modules, key=lambda module: module.margin).tap
    smaller, larger = _with_margin(first, tap, 0.5, 1), _with_margin(first, tap, 1.5, 2)
    merged, modules = _merged(first, larger, smaller)
    assert modules[tap].worst_batch == 2
    assert all(module.worst_batch == 0 for name, module in modules.items() if name != tap)
    assert [module.tap for module in merged.modules] == [module.tap for module in first.modules]
    assert [module.latency for module in merged.modules] == [module.latency for module in first.modules]
    assert merged.latency == first.latency


def _seeing(report, error, batch):
    """The report of another batch, all of whose checks would have noticed an error of this size."""
    modules = tuple(m.model_copy(update={"sensitivity": error, "worst_batch": batch}) for m in report.modules)
    return report.model_copy(update={"runner": "tripy", "modules": modules})


def test_a_check_that_notices_in_one_batch_is_not_blind(first):
    merged, modules = _merged(_seeing(first, 0.02, 0), _seeing(first, 0.009, 1), _seeing(first, 0.5, 2))
    assert merged.verdict == "PASS"
    assert {module.sensitivity for module in modules.values()} == {0.009}


def test_a_check_that_notices_in_no_batch_is_blind(first):
    merged, modules = _merged(_seeing(first, 0.02, 0), _seeing(first, 0.5, 1))
    assert (merged.verdict, merged.diagnosis.kind) == ("BLIND", "blind")
    outputs = {tap for tap, module in modules.items() if module.kind == MODEL_OUTPUT}
    assert outputs
    assert all((module.status == "BLIND") != (tap in outputs) for tap, module in modules.items())


def test_outputs_are_blind_where_nothing_else_is_checked(first):
    outputs = tuple(m for m in _seeing(first, 0.02, 0).modules if m.kind == MODEL_OUTPUT)
    merged, modules = _merged(_seeing(first, 0.02, 0).model_copy(update={"modules": outputs}))
    assert merged.verdict == "BLIND"
    assert all(module.status == "BLIND" for module in modules.values())


def test_merging_keeps_the_first_failure_whatever_the_margin(first):
    taps = sorted(first.modules, key=lambda module: module.margin)
    failed = _with_margin(first, taps[0].tap, 1.0, 1, status="FAIL")
    later = _with_margin(first, taps[-1].tap, math.inf, 2, status="FAIL")
    merged, modules = _merged(first, failed, later)
    assert merged.verdict == "FAIL"
    assert (merged.diagnosis.tap, merged.diagnosis.batch) == (taps[0].tap, 1)
    assert modules[taps[0].tap].status == modules[taps[-1].tap].status == "FAIL"
    assert _merged(failed, first)[1][taps[0].tap].status == "FAIL"


def test_merging_keeps_a_batch_without_a_verdict_a_leak_and_a_failed_check(first):
    crashed = first.model_copy(
        update={"verdict": "NONE", "status": "CRASHED", "reason": "boom", "modules": ()}
    )
    for order in ((first, crashed, first), (crashed, first)):
        assert (_merged(*order)[0].verdict, _merged(*order)[0].reason) == ("NONE", "boom")
    (name,) = first.checks
    broken = first.checks[name].model_copy(update={"status": "FAIL"})
    other = first.model_copy(
        update={"padding_leak": "tap", "checks": {name: broken}, "observer_difference": 3.0}
    )
    for order in ((first, other), (other, first)):
        merged = _merged(*order)[0]
        assert (merged.padding_leak, merged.observer_difference) == ("tap", 3.0)
        assert merged.checks[name].status == "FAIL"


@pytest.mark.skipif(
    not ML_100K.exists(), reason=f"{ML_100K.name} of MovieLens 100K is not in shared/data/ml-100k"
)
def test_every_user_of_movielens_100k(command, tmp_path, monkeypatch, runners_of):
    # Here every user counts, not the time: batches of 128 take a second each.
    for name in ("WARM_UPS", "MIN_ROUNDS", "MODULE_REPEATS"):
        monkeypatch.setattr(latency, name, 1)
    monkeypatch.setattr(latency, "ROUNDS_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    ended = command("--case", "hstu_ml1m", *FP32, "--data", ML_100K, "--batch", "128")
    assert ended.code == 0, ended
    assert "\nPASS: " in ended.out
    (path,) = (tmp_path / "parity_reports").glob("*/report.json")
    report = read_report(path)
    (case,) = report.cases
    assert case.batches == 8
    counts = case.counts
    assert (counts["users"], counts["users_in_file"], counts["users_without_history"]) == (943, 943, 0)
    assert counts["history"] + counts["targets"] + counts["truncated"] == counts["ratings_in_file"] == 100_000
    assert all(runner.verdict == "PASS" for runner in runners_of(report).values())
    metrics = runners_of(report)["torch_jagged"].metrics
    assert {(metric.rows, metric.flagged) for metric in metrics} == {(943, False)}
