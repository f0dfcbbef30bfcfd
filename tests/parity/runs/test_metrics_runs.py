"""Metrics of real runs: labels travel with the data, a replay gives the same, a moved one fails the run."""

import shutil

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.capture.store import open_capture
from parity.inputs.arrays import CaseInputs, load, save
from parity.inputs.weights import load_export
from parity.report.files import read_report
from tests.locations import DATA
from tests.parity.saved_runs import changed_capture, quick_runs

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("metrics_runs")

ML_100K, CRITEO = DATA / "ml-100k" / "u.data", DATA / "criteo_sample.csv"
USERS, BATCH = 250, 128
RANKING = ["HR@10", "HR@50", "HR@200", "NDCG@10", "NDCG@50", "NDCG@200", "MRR"]


@pytest.fixture(scope="module")
def quick():
    """Here results count, not the time."""
    with quick_runs():
        yield


@pytest.fixture(scope="module")
def labelled_run(command, tmp_path_factory, quick):
    """Made-up histories in two batches, in bfloat16. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(7)
    lines = []
    for user in range(1, USERS + 1):
        count = int(rng.integers(2, 31))
        items = rng.choice(np.arange(1, 61), count, replace=False)
        for item, second in zip(items, np.sort(rng.integers(0, 10**9, count)), strict=True):
            lines.append(f"{user}\t{item}\t{rng.integers(1, 6)}\t{second}\n")
    (folder / "u.data").write_text("".join(lines))
    ended = command(
        *("--case", "hstu_tiny", "--precision", "bf16", "--runners", "torch,torch_jagged"),
        *("--batch", str(BATCH), "--data", folder / "u.data", "--save", folder / "run", "-v"),
    )
    assert ended.code == 0, ended
    return folder / "run", ended


def _metrics(report, runners_of, runner="torch_jagged"):
    return {metric.name: metric for metric in runners_of(report)[runner].metrics}


def test_a_run_with_labels_has_metrics_of_all_batches(labelled_run, runners_of):
    folder, ended = labelled_run
    report = read_report(folder / "report.json")
    actual = _metrics(report, runners_of)
    assert list(actual) == RANKING
    assert all(metric.rows == USERS and not metric.flagged for metric in actual.values())
    assert 0 < actual["MRR"].port < 1
    # 60 items, fewer those of the history: every target is among the first 200.
    assert actual["HR@200"].reference == actual["HR@200"].port == 1.0
    (line,) = (line for line in ended.out.splitlines() if line.strip().startswith("MRR"))
    assert line.split()[1:4] == ["bf16", f"{actual['MRR'].reference:.6f}", f"{actual['MRR'].port:.6f}"]
    assert line.split()[-1] == str(USERS)


def test_ranks_are_those_of_the_saved_states(labelled_run, runners_of):
    """From the files, user by user, with loops."""
    folder, _ = labelled_run
    case = folder / "hstu_tiny"
    table = load_export(case / "weights")["_embedding_module._item_emb.weight"].bfloat16().double()
    unit = (table / table.norm(dim=1, keepdim=True)).numpy()
    hits = []
    for batch in sorted(case.glob("batch_*")):
        inputs, labels = load(batch / "inputs.safetensors"), load(batch / "labels.safetensors")
        capture = open_capture(batch / "bf16" / "torch_jagged" / "untapped")
        states = capture.tensors["score.current"].double().numpy()
        for user, target in enumerate(labels["targets"]):
            history = set(inputs["past_ids"][user, : inputs["past_lengths"][user]])
            above = [
                item
                for item in range(1, 61)
                if item != target
                and item not in history
                and unit[item] @ states[user] > unit[target] @ states[user]
            ]
            hits.append(len(above) < 10)
    assert len(hits) == USERS
    actual = _metrics(read_report(folder / "report.json"), runners_of)["HR@10"]
    assert actual.port == pytest.approx(np.mean(hits), abs=1e-12)
    assert 0.1 < actual.port < 0.9


def test_labels_are_saved_beside_the_inputs_and_not_in_them(labelled_run):
    folder, _ = labelled_run
    (case,) = read_report(folder / "report.json").cases
    saved = [load(path) for path in sorted((folder / "hstu_tiny").glob("batch_*/labels.safetensors"))]
    assert tuple(labels.digest for labels in saved) == case.labels_digests
    assert [set(labels.arrays) for labels in saved] == [{"targets"}, {"targets"}]
    assert [labels["targets"].size for labels in saved] == [BATCH, USERS - BATCH]
    for path in (folder / "hstu_tiny").glob("batch_*/inputs.safetensors"):
        assert "targets" not in load(path).arrays


def test_a_replay_gives_the_same_metrics(labelled_run, replayed, runners_of):
    folder, ended = labelled_run
    code, report, shown = replayed(folder)
    assert code == 0
    assert _metrics(report, runners_of) == _metrics(read_report(folder / "report.json"), runners_of)
    assert [line for line in shown.splitlines() if "@" in line or "MRR" in line] == [
        line for line in ended.out.splitlines() if "@" in line or "MRR" in line
    ]


def test_without_labels_there_are_neither_metrics_nor_rows(saved_run, report, runners_of):
    assert not list(saved_run.folder.glob("**/labels.safetensors"))
    assert all(runner.metrics == () for runner in runners_of(report).values())
    assert report.cases[0].labels_digests == ()
    assert "task metric" not in saved_run.ended.out


def _nudged(folder, into, towards_target):
    """A copy in which the port's states move by less than the verdict rule allows.

    Each one moves towards its user's target, across its own direction; or in a direction of chance.
    """
    shutil.copytree(folder, into)
    case = into / "hstu_tiny"
    model = load_case("hstu_tiny").build_reference()
    model.load_state_dict(load_export(case / "weights"))
    rng = np.random.default_rng(0)
    for batch in sorted(case.glob("batch_*")):
        stem = batch / "bf16" / "torch_jagged" / "untapped"
        states = open_capture(stem).tensors["score.current"].double()
        targets = torch.tensor(load(batch / "labels.safetensors")["targets"])
        with torch.inference_mode():
            wanted = model.get_item_embeddings(targets).double()
        if not towards_target:
            wanted = torch.tensor(rng.standard_normal(tuple(states.shape)))
        along = (wanted * states).sum(1, keepdim=True) / (states * states).sum(1, keepdim=True)
        wanted = wanted - along * states
        step = 0.008 * wanted / wanted.norm(dim=1, keepdim=True) * states.norm(dim=1, keepdim=True)
        with changed_capture(stem) as capture:
            capture.tensors["score.current"] = (states + step).to(torch.bfloat16)
    return into


def test_a_port_that_passes_every_tensor_and_moves_a_metric_fails_the_run(
    labelled_run, replayed, tmp_path, runners_of
):
    code, report, shown = replayed(_nudged(labelled_run[0], tmp_path / "run", towards_target=True))
    runner = runners_of(report)["torch_jagged"]
    assert all(module.status == "PASS" for module in runner.modules)
    actual = {metric.name: metric for metric in runner.metrics}
    assert actual["MRR"].flagged
    assert actual["MRR"].interval[0] > 0
    assert (runner.verdict, runner.diagnosis.kind) == ("FAIL", "metric")
    assert code == report.exit_code == 1
    (line,) = (line for line in shown.splitlines() if line.startswith("FAIL: hstu_tiny, bf16"))
    assert "every module is within its limit, and" in " ".join(shown.split())
    assert "batch" not in line
    assert any("FAIL +" in line and line.strip().startswith("MRR") for line in shown.splitlines())


@pytest.mark.usefixtures("beside_another_report")
def test_as_large_a_change_in_directions_of_chance_passes(labelled_run, replayed, tmp_path, runners_of):
    code, report, _ = replayed(_nudged(labelled_run[0], tmp_path / "run", towards_target=False))
    actual = _metrics(report, runners_of)
    assert actual["MRR"].port != actual["MRR"].reference
    assert not any(metric.flagged for metric in actual.values())
    assert code == 0


@pytest.mark.parametrize("change", ["missing", "changed"])
def test_labels_that_are_gone_or_others_are_refused(labelled_run, refused, tmp_path, change):
    shutil.copytree(labelled_run[0], tmp_path / "run")
    path = tmp_path / "run" / "hstu_tiny" / "batch_0001" / "labels.safetensors"
    labels = load(path)
    path.unlink()
    if change == "changed":
        save(CaseInputs({"targets": labels["targets"][::-1]}), path)
    message = refused("replay", tmp_path / "run")
    assert "labels" in message


@pytest.mark.full
@pytest.mark.skipif(not CRITEO.exists(), reason=f"{CRITEO.name} is not in shared/data")
def test_clicks_of_the_criteo_sample(command, tmp_path, quick, runners_of):
    ended = command(
        *("--case", "dlrm_kaggle", "--precision", "fp32", "--runners", "torch,tripy"),
        *("--data", CRITEO, "--save", tmp_path / "run"),
    )
    assert ended.code == 0, ended
    actual = _metrics(read_report(tmp_path / "run" / "report.json"), runners_of, "tripy")
    assert list(actual) == ["log loss", "AUC", "normalized entropy", "calibration"]
    # As the file has them, in its order.
    expected = [int(line.split(",")[0]) for line in CRITEO.read_text().splitlines()[1:]]
    saved = [load(path) for path in sorted((tmp_path / "run").glob("*/batch_*/labels.safetensors"))]
    assert np.concatenate([labels["clicks"] for labels in saved]).tolist() == expected
    assert all(metric.rows == 200 and not metric.flagged for metric in actual.values())
    assert abs(actual["AUC"].difference) < 1e-3


@pytest.mark.skipif(
    not ML_100K.exists(), reason=f"{ML_100K.name} of MovieLens 100K is not in shared/data/ml-100k"
)
def test_targets_are_the_last_ratings_of_movielens_100k():
    """By time and then by line, in the users' order. `test_batches` runs them."""
    last = {}
    for line in ML_100K.read_text().splitlines():
        user, item, _, second = map(int, line.split("\t"))
        if second >= last.get(user, (0, 0))[0]:
            last[user] = (second, item)
    loaded = load_case("hstu_ml1m").with_input(batch_size=100)
    batches = loaded.recorded(loaded.read(ML_100K))
    assert [labels["targets"].size for labels in batches.labels] == [100] * 9 + [43]
    targets = np.concatenate([labels["targets"] for labels in batches.labels])
    assert targets.tolist() == [last[user][1] for user in sorted(last)]
