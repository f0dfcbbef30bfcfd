"""The training loop: its checkpoints, its end, and runs that continue from any point."""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import safetensors.torch
import torch

from reference import checkpoints
from reference.checkpoints import BEST, CHECKPOINT, SCHEMA, TrainingError, TrainingFolder, write_atomically
from reference.training import TRAIN, VALIDATION, Listener, Schedule
from tests.reference.training_setup import SCHEDULE, SETTINGS, TASKS, Stop, StopAfter, train
from tests.selection import first_in_test

ALL_SETTINGS = {**SETTINGS, **asdict(SCHEDULE)}


def flat(value, prefix=""):
    """Every tensor and number of a checkpoint, by its place; tensors as their bytes."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{prefix}.{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for key, item in enumerate(value) for k, v in flat(item, f"{prefix}.{key}").items()}
    return {prefix: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value}


def content(folder: Path):
    state = torch.load(folder / CHECKPOINT, weights_only=True)
    return flat(state), (folder / BEST).read_bytes()


@pytest.mark.parametrize("name", TASKS)
def test_losses_fall_and_the_best_weights_are_kept(name, tmp_path):
    task = TASKS[name]()
    # Before training, a copy: the state dict shares its tensors with the model.
    before = {key: tensor.clone() for key, tensor in task.model.state_dict().items()}
    result = train(task, tmp_path, schedule=Schedule(30, 30, 10, 0))
    assert result.best.train < result.initial.train
    assert result.best.validation < result.initial.validation
    saved = safetensors.torch.load_file(tmp_path / BEST)
    assert saved.keys() == task.model.state_dict().keys() == before.keys()
    assert all(torch.equal(saved[key], tensor) for key, tensor in task.model.state_dict().items())
    changed = {key for key in saved if not torch.equal(saved[key], before[key])}
    assert changed == {key for key, _ in task.model.named_parameters()}


@pytest.mark.parametrize("name", first_in_test(TASKS))
def test_a_run_ended_after_any_step_continues_to_the_same_bits(name, tmp_path):
    result = train(TASKS[name](), tmp_path / "whole", checkpoint_seconds=0)
    whole = content(tmp_path / "whole")
    steps_of_an_epoch = -(-TASKS[name]().num_rows(TRAIN) // SCHEDULE.batch_size)
    ended_inside = 0
    for stop in range(1, 2 * steps_of_an_epoch + 1):
        folder = tmp_path / str(stop)
        with pytest.raises(Stop):
            train(TASKS[name](), folder, listener=StopAfter(stop), checkpoint_seconds=0)
        # The step that was heard of last is done again.
        ended_inside += torch.load(folder / CHECKPOINT, weights_only=True)["state"]["progress"]["step"] > 0
        torch.manual_seed(12345)
        assert train(TASKS[name](), folder, resume=True) == result
        assert content(folder) == whole
    assert ended_inside > steps_of_an_epoch


def test_a_run_ended_within_an_epoch_without_a_checkpoint_there_starts_the_epoch_again(tmp_path):
    train(TASKS["hstu"](), tmp_path / "whole")
    with pytest.raises(Stop):
        train(TASKS["hstu"](), tmp_path / "ended", listener=StopAfter(5))
    assert torch.load(tmp_path / "ended" / CHECKPOINT)["state"]["progress"]["step"] == 0
    train(TASKS["hstu"](), tmp_path / "ended", resume=True)
    assert content(tmp_path / "ended") == content(tmp_path / "whole")


def test_a_finished_run_continues_to_its_result(tmp_path):
    result = train(TASKS["sgd"](), tmp_path)
    before = content(tmp_path)
    assert train(TASKS["sgd"](), tmp_path, resume=True, listener=StopAfter(1)) == result
    assert content(tmp_path) == before


def test_the_seed_decides_everything(tmp_path):
    for seed in (3, 3, 4):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        train(TASKS["hstu"](), folder, schedule=Schedule(2, 2, 5, seed))
        torch.rand(7)
    best = [(tmp_path / name / BEST).read_bytes() for name in "012"]
    assert best[0] == best[1] != best[2]


def test_the_callers_random_numbers_go_on_as_if_nothing_was_trained(tmp_path):
    task = TASKS["hstu"]()
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    train(task, tmp_path)
    assert torch.equal(torch.rand(3), expected)


class Scripted:
    """A task whose validation losses are given; its one weight counts the steps."""

    def __init__(self, losses: list[float]) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.lengths = None
        self.optimizers = (torch.optim.SGD(self.model.parameters(), lr=1.0),)
        self._losses = losses

    def num_rows(self, part):
        return 1

    def loss(self, part, rows_B, generator):
        if part == VALIDATION:
            return torch.tensor(self._losses.pop(0)), 1
        return -self.model.weight.sum(), 1


class Epochs(Listener):
    """The epochs that were best so far."""

    def __init__(self) -> None:
        self.best: list[int] = []

    def on_epoch(self, epoch, losses, is_best):
        self.best += [epoch] if is_best else []


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5, 4, 3, 3, 3.5, 1], 2, 4, 2),  # an equal loss is no better
        ([5, 4, 4.5, 3, 4, 4, 1], 2, 5, 3),  # patience starts anew
        ([5, 6, 7], 2, 2, 0),  # nothing is better than the initial weights
        ([5, 4, 3, 2, 1, 0.5, 0.25], 1, 6, 6),  # up to the limit
    ],
)
def test_training_stops_when_the_validation_loss_has_not_fallen_for_long_enough(
    losses, patience, epochs, best, tmp_path
):
    task, heard = Scripted(list(losses)), Epochs()
    result = train(task, tmp_path, schedule=Schedule(6, patience, 1, 0), listener=heard)
    assert (result.epochs, result.best_epoch) == (epochs, best)
    assert result.best.validation == losses[best]
    assert task.model.weight.item() == best
    assert safetensors.torch.load_file(tmp_path / BEST)["weight"].item() == best
    assert heard.best == [n for n in range(1, epochs + 1) if losses[n] < min(losses[:n])]


class Weighed(Scripted):
    """Row n has n + 1 predictions, each with loss n; notes in which mode the model was asked for them."""

    def __init__(self) -> None:
        super().__init__([])
        self.modes: list[tuple[str, bool, bool]] = []

    def num_rows(self, part):
        return {TRAIN: 5, VALIDATION: 3}[part]

    def loss(self, part, rows_B, generator):
        self.modes.append((part, self.model.training, torch.is_grad_enabled()))
        predictions = rows_B + 1
        mean = (rows_B * predictions).sum() / predictions.sum()
        return mean + 0 * self.model.weight.sum(), int(predictions.sum())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_losses_are_means_over_predictions_whatever_the_batches(size, tmp_path):
    task = Weighed()
    result = train(task, tmp_path, schedule=Schedule(1, 1, size, 0))
    assert result.initial.train == result.best.train == pytest.approx(40 / 15)
    assert result.initial.validation == pytest.approx(8 / 6)
    history = torch.load(tmp_path / CHECKPOINT)["state"]["progress"]["history"]
    assert history[1] == pytest.approx([40 / 15, 8 / 6])


def test_the_model_is_in_training_mode_for_steps_alone(tmp_path):
    task = Weighed()
    train(task, tmp_path, schedule=Schedule(2, 2, 5, 0))
    measured, trained = (TRAIN, False, False), (TRAIN, True, True)
    validated = (VALIDATION, False, False)
    assert task.modes == [measured, validated, trained, validated, trained, validated, measured]


@pytest.mark.parametrize("losses", [[float("nan")], [5.0, float("inf")]])
def test_a_loss_that_is_not_finite_ends_training_and_says_what_to_change(losses, tmp_path):
    with pytest.raises(TrainingError, match=r"learning rate: 1.0 makes the loss (nan|inf) in epoch 1; train"):
        train(Scripted(losses), tmp_path)


@pytest.mark.parametrize("field", ["epochs", "patience", "batch_size"])
def test_a_schedule_of_nothing_is_refused(field):
    with pytest.raises(ValueError, match=rf"{field}=0: must be an integer of at least 1"):
        Schedule(**{"epochs": 1, "patience": 1, "batch_size": 1, "seed": 0, field: 0})


# The folder.


def test_nothing_is_written_over(tmp_path):
    train(TASKS["sgd"](), tmp_path)
    with pytest.raises(TrainingError, match="is not empty; choose a new folder, or continue with --resume"):
        TrainingFolder(tmp_path, resume=False)


def test_nothing_to_continue_is_an_error(tmp_path):
    with pytest.raises(TrainingError, match=r"--resume: .*missing is no folder"):
        TrainingFolder(tmp_path / "missing", resume=True)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match=r"has no checkpoint.pt"):
        TrainingFolder(tmp_path, resume=True)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"out: .*deep cannot be written \(Not a directory\)"):
        TrainingFolder(tmp_path / "file" / "deep", resume=False)


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path):
    (tmp_path / f".{CHECKPOINT}.part").write_bytes(b"half")
    train(TASKS["sgd"](), tmp_path, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, CHECKPOINT]


@pytest.mark.parametrize("moment", ["the checkpoint's replacement", "the best weights' replacement"])
def test_an_end_during_writing_leaves_a_whole_checkpoint(moment, tmp_path, monkeypatch):
    train(TASKS["hstu"](), tmp_path / "whole", checkpoint_seconds=0)
    name = CHECKPOINT if "checkpoint" in moment else BEST
    replace, replaced = Path.replace, []

    def replace_until(self, target):
        replaced.append(target.name)
        if replaced.count(name) == 3 and target.name == name:
            raise Stop
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_until)
        with pytest.raises(Stop):
            train(TASKS["hstu"](), tmp_path / "ended", checkpoint_seconds=0)
    train(TASKS["hstu"](), tmp_path / "ended", resume=True)
    assert content(tmp_path / "ended") == content(tmp_path / "whole")
    assert sorted(path.name for path in (tmp_path / "ended").iterdir()) == [BEST, CHECKPOINT]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, calls = tmp_path / "file", []
    path.write_bytes(b"old")
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        checkpoints.os, "fsync", lambda fd: (calls.append(("fsync", path.read_bytes())), fsync(fd))
    )
    monkeypatch.setattr(Path, "replace", lambda *names: (calls.append(("replace",)), replace(*names)))
    write_atomically(path, lambda stream: stream.write(b"new"))
    assert calls == [("fsync", b"old"), ("replace",)]
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_best_weights_that_are_lost_or_old_come_back(tmp_path):
    train(TASKS["sgd"](), tmp_path)
    best = (tmp_path / BEST).read_bytes()
    for damage in (Path.unlink, lambda path: path.write_bytes(b"old")):
        damage(tmp_path / BEST)
        train(TASKS["sgd"](), tmp_path, resume=True)
        assert (tmp_path / BEST).read_bytes() == best


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"is damaged, or no checkpoint"),
        (_flip, r"is damaged"),
        (lambda path: path.write_bytes(b""), r"is damaged, or no checkpoint"),
        (lambda path: path.write_bytes(b"text"), r"is damaged, or no checkpoint"),
        (lambda path: torch.save({"model": 1}, path), r"is no checkpoint of reference.training/1"),
        (lambda path: torch.save([1], path), r"is no checkpoint of reference.training/1"),
        (lambda path: torch.save({"schema": SCHEMA}, path), r"is no checkpoint of reference.training/1"),
        (lambda path: torch.save({"schema": Stop("evil")}, path), r"is damaged, or no checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage, message, tmp_path, trained):
    shutil.copytree(trained("sgd"), tmp_path, dirs_exist_ok=True)
    damage(tmp_path / CHECKPOINT)
    with pytest.raises(
        TrainingError, match=rf"--resume: .*{CHECKPOINT} {message}.*start again in a new folder"
    ):
        TrainingFolder(tmp_path, resume=True).load(ALL_SETTINGS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(task)`: the folder of a whole run of one of `TASKS`, made once. Not to be changed: copy it."""

    @functools.cache
    def run(task):
        folder = tmp_path_factory.mktemp(task)
        train(TASKS[task](), folder)
        return folder

    return run


def _change(path, part, value):
    """Put a value into the state; None takes the part out."""
    content = torch.load(path, weights_only=True)
    *owners, last = part
    owner = content["state"]
    for name in owners:
        owner = owner[name]
    if value is None:
        del owner[last]
    else:
        owner[last] = value
    torch.save(content, path)


@pytest.mark.parametrize("optimizer", TASKS)
@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(((name,), None) for name in ("model", "best", "optimizers", "rng", "progress")),
        *(((name,), [1]) for name in ("model", "best", "optimizers", "rng", "progress")),
        *(((name, "x"), torch.ones(1)) for name in ("model", "best", "progress")),
        (("rng",), torch.ones(4)),
        (("optimizers", 0, "param_groups"), []),
        (("optimizers", 0, "state"), {0: {"x": 1}}),
        (("optimizers", 0, "state"), {99: {}}),
        *((("progress", name), value) for name in ("epoch", "step") for value in (None, "1", -1, 1.5, True)),
        *(
            (("progress", "history"), value)
            for value in (None, [], [[0.5]], [["a", "b"]], [[float("nan"), 1.0]])
        ),
        (("progress", "loss_sum"), float("inf")),
        (("progress", "best_epoch"), 50),
        (("progress", "epoch"), 10**9),
    ],
    ids=str,
)
def test_a_state_with_missing_or_mistyped_fields_is_refused(optimizer, part, value, tmp_path, trained):
    shutil.copytree(trained(optimizer), tmp_path, dirs_exist_ok=True)
    best = (tmp_path / BEST).read_bytes()
    _change(tmp_path / CHECKPOINT, part, value)
    with pytest.raises(TrainingError, match=rf"has a state whose {part[0]} cannot be used; start again"):
        train(TASKS[optimizer](), tmp_path, resume=True)
    assert (tmp_path / BEST).read_bytes() == best


def test_a_run_with_other_settings_is_not_continued(tmp_path):
    train(TASKS["sgd"](), tmp_path)
    for settings, message in (
        ({**ALL_SETTINGS, "case": "other"}, "case small there, other here"),
        ({**ALL_SETTINGS, "seed": 4}, "seed 3 there, 4 here"),
    ):
        with pytest.raises(TrainingError, match=rf"was made with other settings \({message}\)"):
            TrainingFolder(tmp_path, resume=True).load(settings)


@pytest.mark.parametrize(
    ("settings", "name"), [({**ALL_SETTINGS, "rate": 3}, "rate"), (asdict(SCHEDULE), "case")]
)
def test_a_run_of_another_version_is_told_how_to_go_on(tmp_path, settings, name):
    train(TASKS["sgd"](), tmp_path)
    message = f"is of another version of this program: only one has the settings {name}; start again in a new"
    with pytest.raises(TrainingError, match=message):
        TrainingFolder(tmp_path, resume=True).load(settings)
