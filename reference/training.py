"""Training: epochs over shuffled rows, a validation loss after each, early stopping, and resumption.

A killed run continues to the same bits. Random numbers come from PyTorch's default generators of the CPU and
of the model's GPU, whose states are in the checkpoint, or from the seed and the epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from reference.checkpoints import TrainingError, TrainingFolder
from reference.training_state import problem_of, random_states, set_random_states
from reference.validation import require_positive

TRAIN, VALIDATION = "train", "validation"
#: The time between two checkpoints of an epoch.
CHECKPOINT_SECONDS = 60.0
_QUICK = 6.0
"""Seconds of writing from which checkpoints come more seldom: they take a tenth of the time at most."""
#: The largest number of rows whose mean loss is told for a part of the data. They are equally spaced.
MOST_EVALUATED = 1 << 14
_GROUP = 64
"""Batches whose rows are sorted by length together."""


class Task(Protocol):
    """A model, its optimizers, and its losses on rows of the two parts of the data.

    Each optimizer has parameters of its own.

    Attributes:
        lengths: of the rows that train, if a batch is padded to its longest row. Rows of like lengths then
            share a batch. None for rows of one length.
    """

    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    lengths: np.ndarray | None

    def num_rows(self, part: str) -> int:
        """The number of rows of a part, `TRAIN` or `VALIDATION`."""
        ...

    def loss(self, part: str, rows_B: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, int]:
        """The mean loss over the predictions of some rows, and the number of predictions.

        Random numbers of the loss come from ``generator``.
        """
        ...


@dataclass(frozen=True)
class Schedule:
    """The length of a training run, and its seed.

    Attributes:
        epochs: the largest number of epochs.
        patience: the number of epochs in a row without a smaller validation loss after which training stops.
        batch_size: the number of rows of a step.
        seed: the seed of all random numbers.
    """

    epochs: int
    patience: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        require_positive(epochs=self.epochs, patience=self.patience, batch_size=self.batch_size)


@dataclass(frozen=True)
class Losses:
    """Mean losses of both parts."""

    train: float
    validation: float


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        initial: losses before training.
        best: losses of the weights with the smallest validation loss, which the model has at the end.
        best_epoch: the epoch of these weights; 0 is before training.
        epochs: the number of epochs.
    """

    initial: Losses
    best: Losses
    best_epoch: int
    epochs: int


class Listener:
    """Gets the progress of a run. This class ignores it."""

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        """A step of an epoch's ``steps`` is done; epochs and steps count from 1."""

    def on_epoch(self, epoch: int, losses: Losses, is_best: bool) -> None:
        """An epoch is done. The training loss is the mean over its steps, each before its update."""


@dataclass
class _Progress:
    """The progress of a run: ``step`` steps of epoch ``epoch`` are done, with sums over their predictions."""

    epoch: int
    step: int = 0
    loss_sum: float = 0.0
    predictions: int = 0
    best_epoch: int = 0
    #: Training and validation loss of each epoch; the first pair is from before training.
    history: list[list[float]] = field(default_factory=list)


def fit(
    task: Task,
    schedule: Schedule,
    folder: TrainingFolder,
    settings: Mapping[str, Any],
    listener: Listener | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Result:
    """Trains, or continues to train, and leaves the best weights in the model and in the folder.

    Args:
        task: the task; its model keeps its weights at the start, unless the folder has a checkpoint.
        schedule: the length of the run.
        folder: gets a checkpoint before the first epoch, after each, and every ``checkpoint_seconds``, or
            more seldom if writing takes long.
        settings: the other settings of the run, by name. A run continues with the same settings only.
        listener: gets the progress.
        checkpoint_seconds: the time between two checkpoints of an epoch, at least.

    Raises:
        TrainingError: the loss is not finite; or the folder's checkpoint cannot be used or written.
    """
    listener = listener or Listener()
    with torch.random.fork_rng(devices=[]):
        run = _Run(task, schedule, folder, settings)
        while not run.is_done:
            run.train_epoch(listener, checkpoint_seconds)
            run.finish_epoch(listener)
        return run.result()


class _Run:
    """A run in memory. The checkpoint or the arguments have all of its state."""

    def __init__(
        self, task: Task, schedule: Schedule, folder: TrainingFolder, settings: Mapping[str, Any]
    ) -> None:
        self._task, self._schedule, self._folder = task, schedule, folder
        self._settings = {**settings, **asdict(schedule)}
        state = folder.load(self._settings)
        if state is None:
            torch.manual_seed(schedule.seed)
            self._best = self._weights()
            self._progress = _Progress(epoch=1)
            initial = Losses(self._evaluate(TRAIN), self._evaluate(VALIDATION))
            self._progress.history.append([initial.train, initial.validation])
            self._save()
        else:
            self._restore(state)
        # A run may be killed between its two files.
        folder.write_best(self._best)

    @property
    def is_done(self) -> bool:
        """Whether the last epoch is trained, or the validation loss has not fallen for long enough."""
        trained = self._progress.epoch - 1
        waited = trained - self._progress.best_epoch
        return trained >= self._schedule.epochs or waited >= self._schedule.patience

    def train_epoch(self, listener: Listener, checkpoint_seconds: float) -> None:
        """Does the remaining steps of the current epoch."""
        progress = self._progress
        rng = np.random.default_rng([self._schedule.seed, progress.epoch])
        batches = _batches(rng, self._task.num_rows(TRAIN), self._schedule.batch_size, self._task.lengths)
        steps = len(batches)
        saved, took = time.monotonic(), 0.0
        self._task.model.train()
        while progress.step < steps:
            loss, predictions = self._step(torch.from_numpy(batches[progress.step]))
            progress.step += 1
            progress.loss_sum += loss * predictions
            progress.predictions += predictions
            listener.on_step(progress.epoch, progress.step, steps, loss)
            if time.monotonic() - saved >= checkpoint_seconds * max(1.0, took / _QUICK):
                begun = time.monotonic()
                self._save()
                saved = time.monotonic()
                took = saved - begun

    def finish_epoch(self, listener: Listener) -> None:
        """Validates, notes the weights if they are the best so far, and writes a checkpoint."""
        progress = self._progress
        losses = Losses(progress.loss_sum / progress.predictions, self._evaluate(VALIDATION))
        is_best = losses.validation < progress.history[progress.best_epoch][1]
        progress.history.append([losses.train, losses.validation])
        if is_best:
            self._best, progress.best_epoch = self._weights(), progress.epoch
        listener.on_epoch(progress.epoch, losses, is_best)
        progress.epoch, progress.step, progress.loss_sum, progress.predictions = progress.epoch + 1, 0, 0.0, 0
        self._save()
        if is_best:
            self._folder.write_best(self._best)

    def result(self) -> Result:
        """Puts the best weights into the model and measures both losses."""
        progress = self._progress
        self._task.model.load_state_dict(self._best)
        best = Losses(self._evaluate(TRAIN), progress.history[progress.best_epoch][1])
        return Result(Losses(*progress.history[0]), best, progress.best_epoch, progress.epoch - 1)

    def _step(self, rows_B: torch.Tensor) -> tuple[float, int]:
        for optimizer in self._task.optimizers:
            optimizer.zero_grad()
        loss, predictions = self._task.loss(TRAIN, rows_B, torch.default_generator)
        loss.backward()
        for optimizer in self._task.optimizers:
            optimizer.step()
        return self._finite(loss.item()), predictions

    def _evaluate(self, part: str) -> float:
        """The mean loss of a part. Each call has the same rows and random numbers: epochs can be compared."""
        rows = self._task.num_rows(part)
        count = min(rows, MOST_EVALUATED)
        rows_R = torch.arange(count) * rows // count
        generator = torch.Generator().manual_seed(self._schedule.seed)
        loss_sum, total = 0.0, 0
        self._task.model.eval()
        with torch.no_grad():
            for rows_B in rows_R.split(self._schedule.batch_size):
                loss, predictions = self._task.loss(part, rows_B, generator)
                loss_sum += loss.item() * predictions
                total += predictions
        return self._finite(loss_sum / total)

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            rate = self._task.optimizers[0].param_groups[0]["lr"]
            problem = f"makes the loss {loss} in epoch {self._progress.epoch}"
            raise TrainingError("learning rate", rate, problem, "train again with a smaller one")
        return loss

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._task.model.state_dict().items()}

    def _save(self) -> None:
        state: dict[str, Any] = {
            "model": self._task.model.state_dict(),
            "best": self._best,
            "optimizers": [optimizer.state_dict() for optimizer in self._task.optimizers],
            "progress": asdict(self._progress),
            **random_states(self._task.model),
        }
        self._folder.save(self._settings, state)

    def _restore(self, state: dict[str, Any]) -> None:
        problem = problem_of(state, self._task.model, self._task.optimizers)
        if problem:
            raise TrainingError("--resume", self._folder.path, problem, "start again in a new folder")
        self._task.model.load_state_dict(state["model"])
        self._best = state["best"]
        for optimizer, own in zip(self._task.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        set_random_states(self._task.model, state)
        self._progress = _Progress(**state["progress"])


def _batches(rng: np.random.Generator, rows: int, size: int, lengths: np.ndarray | None) -> list[np.ndarray]:
    """The batches of an epoch: shuffled rows. With lengths, `_GROUP` batches at a time are sorted by them."""
    order = rng.permutation(rows)
    if lengths is not None:
        groups = np.split(order, range(_GROUP * size, rows, _GROUP * size))
        order = np.concatenate([group[np.argsort(lengths[group], kind="stable")] for group in groups])
    batches = np.split(order, range(size, rows, size))
    return batches if lengths is None else [batches[place] for place in rng.permutation(len(batches))]
