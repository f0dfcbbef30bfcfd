"""DLRMv3's loss, its tables, and its training on generated requests."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import configs
from datasets.dlrmv3 import streaming
from reference import training_dlrmv3, training_state
from reference.checkpoints import BEST, CHECKPOINT, TrainingFolder
from reference.row_wise_adagrad import RowWiseAdagrad
from reference.training import TRAIN, VALIDATION, Schedule, fit
from reference.training_dlrmv3 import DLRMv3Task, DLRMv3WithTables, is_trainable
from tests.locations import ROOT
from tests.reference.test_train_program import run

FEW = replace(streaming.SMALL, num_users=60, num_items=96, num_categories=8, avg_samples_per_item=120)
SIZES = {"max_uih_len": 23, "max_num_candidates": 9}


@pytest.fixture(scope="module")
def case():
    return configs.with_fields(
        configs.load_case("dlrmv3_streaming"), {f"model.{name}": size for name, size in SIZES.items()}
    )


@pytest.fixture(scope="module")
def parts():
    return streaming.generate(FEW, *SIZES.values())


@pytest.fixture
def task(case, parts):
    torch.manual_seed(0)
    model = DLRMv3WithTables(case.model, FEW.num_items, FEW.num_categories, FEW.num_users)
    return DLRMv3Task(model, {TRAIN: parts[streaming.TRAIN], VALIDATION: parts[streaming.EVALUATION]})


def test_the_settings_are_the_public_ones(task):
    dense, tables = task.optimizers
    assert (type(dense), type(tables)) == (torch.optim.Adam, RowWiseAdagrad)
    (group,) = dense.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.95, 0.999), 1e-8, 0)
    assert len(group["params"]) == len(list(task.model.dense.parameters()))
    (group,) = tables.param_groups
    assert group["eps"] == 1e-8
    assert len(group["params"]) == len(list(task.model.tables.parameters()))


def test_the_loss_is_the_mean_over_candidates(task, parts):
    requests = parts[streaming.EVALUATION].rows(np.array([5, 2]))
    loss, count = task.loss(VALIDATION, torch.tensor([5, 2]), torch.default_generator)
    with torch.no_grad():
        p_BT = task.model(requests).numpy()
    y_BT = requests.labels
    assert count == 18
    expected = -np.where(y_BT == 1, np.log(p_BT), np.log1p(-p_BT)).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_rows_of_the_tables_reach_the_model(task, parts):
    requests = parts[streaming.TRAIN].rows(np.arange(3))
    arrays = task.model.embed(requests)
    tables = {name: table.weight for name, table in task.model.tables.items()}
    items, per_category = torch.from_numpy(requests.items), FEW.num_items // FEW.num_categories
    assert torch.equal(arrays["uih_embeddings"], tables["item_id"][items])
    assert torch.equal(arrays["uih_category_embeddings"], tables["item_category_id"][items // per_category])
    assert torch.equal(arrays["contextual_embeddings"][:, 0], tables["user_id"][requests.users])
    assert torch.equal(arrays["uih_actions"], torch.from_numpy(requests.actions))
    assert set(arrays["query_times"].unique().tolist()) == {streaming.MOMENT}


@pytest.mark.full
def test_a_model_learns_whom_a_user_likes(task, parts, tmp_path):
    part = parts[streaming.TRAIN]
    requests = part.rows(np.arange(len(part)))

    def auc() -> float:
        with torch.no_grad():
            p_BT = task.model(requests).numpy()
        return roc_auc_score(requests.labels.ravel(), p_BT.ravel())

    before = auc()
    result = fit(task, Schedule(4, 4, 16, 0), TrainingFolder(tmp_path / "out", False), {})
    assert result.best.train < result.initial.train
    assert auc() > max(0.8, before + 0.1)


def test_only_models_with_labels_for_all_tasks_train(case):
    assert is_trainable(case.model)
    for name in ("dlrmv3_tiny", "dlrmv3_tiny_plain"):
        assert not is_trainable(configs.load_case(name).model)


def test_the_program_trains_and_continues(case, parts, tmp_path, monkeypatch):
    monkeypatch.setitem(streaming.SETTINGS, "small", FEW)
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(_small(case))
    first = run("--case", path, "--out", out, "--epochs", 1)
    assert first.exit_code == 0, first.output
    assert sorted(entry.name for entry in out.iterdir()) == [BEST, CHECKPOINT]
    again = run("--case", path, "--out", out, "--epochs", 1, "--resume")
    assert again.exit_code == 0, again.output
    assert again.output == first.output.replace(first.output.split("\n")[0] + "\n", "")
    assert training_dlrmv3.generated(case)[0][TRAIN].labels.shape[1] == 9
    other = run("--case", path, "--out", out, "--epochs", 1, "--users", 20, "--resume")
    assert other.exit_code == 2
    assert "was made with other settings (data " in other.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "dlrmv3_streaming", "--data", "u.data"), "--data: u.data is not read for DLRMv3"),
        (("--case", "dlrmv3_tiny"), "--case: dlrmv3_tiny has other parts than the generated requests"),
        (("--case", "dlrmv3_tiny"), "such as dlrmv3_streaming"),
        (("--case", "dlrmv3_streaming", "--optimizer", "sgd"), "--optimizer: sgd does not train dlrmv3"),
        (("--case", "hstu_tiny"), "--data: no file is given for hstu"),
        (("--case", "hstu_tiny", "--users", "5"), "--users: 5 is not taken for hstu; leave --users out"),
        (("--case", "dlrmv3_streaming", "--users", "9999"), "--users: 9999 is no number of the data's users"),
        (("--case", "hstu_tiny", "--device", "cuda"), "--device: cuda does not train hstu"),
        (("--case", "dlrmv3_streaming", "--device", "cuda"), "--device: cuda is absent"),
    ],
)
def test_refusals(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = run(*arguments, "--out", tmp_path / "out")
    assert ended.exit_code == 2
    assert message in ended.output
    assert not (tmp_path / "out").exists()


def test_a_gpu_trains_with_deterministic_algorithms(task, parts, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        model = training_dlrmv3.placed(task.model, "meta")
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    # All of the model's inputs are where its weights are.
    arrays = model.embed(parts[streaming.TRAIN].rows(np.arange(3)))
    assert {array.device.type for array in arrays.values()} == {"meta"}


def test_a_cpu_trains_with_the_algorithms_that_are_set(task):
    assert training_dlrmv3.placed(task.model, "cpu") is task.model
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_goes_on_only_on_its_device(case, parts, tmp_path, monkeypatch):
    monkeypatch.setitem(streaming.SETTINGS, "small", FEW)
    monkeypatch.setattr(training_dlrmv3, "placed", lambda model, device: model)
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(_small(case))
    assert run("--case", path, "--out", out, "--epochs", 1).exit_code == 0
    ended = run("--case", path, "--out", out, "--epochs", 1, "--resume", "--device", "cuda")
    assert ended.exit_code == 2
    assert "device cpu there, cuda here" in ended.output


def _small(case) -> str:
    text = (ROOT / "configs/dlrmv3_streaming.yaml").read_text()
    for name, size in SIZES.items():
        text = text.replace(
            f"{name}: {getattr(configs.load_case('dlrmv3_streaming').model, name)}", f"{name}: {size}"
        )
    return text.replace("name: dlrmv3_streaming", "name: small")


def test_the_gpu_s_random_numbers_go_on(task, monkeypatch):
    """Dropout draws on the GPU: a resumed run without the state of its generator has other bits."""
    own, put = torch.arange(16, dtype=torch.uint8), []
    monkeypatch.setattr(training_state, "_is_on_gpu", lambda model: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: own)
    monkeypatch.setattr(torch.cuda, "set_rng_state", put.append)
    state = training_state.random_states(task.model)
    assert state.keys() == {"rng", "device_rng"}
    training_state.set_random_states(task.model, state)
    assert put == [own]
    del state["device_rng"]
    problem = training_state.problem_of(state, task.model, task.optimizers)
    assert "device_rng" in problem
    assert " rng" not in problem
