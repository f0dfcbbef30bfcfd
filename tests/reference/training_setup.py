"""Small training tasks, and files that they can be read from."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from configs import DLRMConfig, HSTUConfig, load_case, with_fields
from datasets.dlrmv3 import streaming
from reference.build import build_dlrm, build_hstu
from reference.checkpoints import TrainingFolder
from reference.training import TRAIN, VALIDATION, Listener, Schedule, Task, fit
from reference.training_dlrm import ClickLog, DLRMTask
from reference.training_dlrmv3 import DLRMv3Task, with_tables
from reference.training_hstu import Histories, HSTUTask
from tests.reference.hstu_setup import MAX_LENGTH, small_config

SETTINGS = {"case": "small"}
SCHEDULE = Schedule(epochs=4, patience=4, batch_size=5, seed=3)


def make_log(rows: int = 40, tables: tuple[int, ...] = (7, 30), dense: int = 3) -> ClickLog:
    """Labels that follow from the first table's row and the first count."""
    rng = np.random.default_rng(0)
    counts = rng.integers(-1, 1000, (rows, dense))
    indices = np.stack([rng.integers(0, size, rows) for size in tables])
    labels = (indices[0] % 2 == 0) & (counts[:, 0] > 100)
    return ClickLog(torch.tensor(counts), torch.tensor(indices), torch.tensor(labels))


def dlrm_task(
    optimizer: str = "sgd", learning_rate: float | None = None, log: ClickLog | None = None
) -> DLRMTask:
    config = DLRMConfig(
        arch_mlp_bot="3-8-4",
        arch_mlp_top="6-1",
        arch_sparse_feature_size=4,
        arch_embedding_size=[7, 30],
        weighted_pooling="learned",
    )
    np.random.seed(0)
    torch.manual_seed(0)
    return DLRMTask(build_dlrm(config), log or make_log(), optimizer, learning_rate)


def make_histories(users: int = 12, seed: int = 0, width: int = MAX_LENGTH + 3) -> Histories:
    """Users go up the items in steps of one, from where they start; lengths from 1 to the longest."""
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.resize(np.arange(1, MAX_LENGTH + 1), users))
    starts = rng.integers(1, 40, users)
    valid = np.arange(width) < lengths[:, None]
    ids = (starts[:, None] + np.arange(width)) % 40 + 1
    seconds = np.cumsum(rng.integers(0, 10**5, (users, width)), axis=1)
    return Histories(
        past_lengths=torch.tensor(lengths),
        past_ids=torch.tensor(np.where(valid, ids, 0)),
        ratings=torch.tensor(np.where(valid, rng.integers(1, 6, (users, width)), 0)),
        timestamps=torch.tensor(np.where(np.arange(width) <= lengths[:, None], seconds, 0)),
        targets=torch.tensor(ids[np.arange(users), lengths]),
    )


def hstu_config(preprocessor: str = "positional", **changes: object) -> HSTUConfig:
    return small_config(preprocessor, num_blocks=2, linear_dropout_rate=0.2, **changes)


def hstu_task(preprocessor: str = "positional", learning_rate: float = 0.01, **changes: object) -> HSTUTask:
    torch.manual_seed(0)
    model = build_hstu(hstu_config(preprocessor, **changes))
    histories = make_histories()
    return HSTUTask(model, histories, make_histories(seed=1), torch.arange(1, 41), learning_rate)


@functools.cache
def make_requests() -> dict[str, streaming.Part]:
    """Twelve requests that train, and six that validate."""
    parts = streaming.generate(streaming.TINY, MAX_LENGTH, 2)
    rows = ("users", "starts", "uih_lengths", "candidates", "labels")
    return {
        own: replace(parts[name], **{row: getattr(parts[name], row)[:count] for row in rows})
        for own, name, count in ((TRAIN, streaming.TRAIN, 12), (VALIDATION, streaming.EVALUATION, 6))
    }


def dlrmv3_task(learning_rate: float = 0.01) -> DLRMv3Task:
    widths = dict.fromkeys(("preprocessor_hidden_dim", "item_hidden_dim", "prediction_hidden_dim"), 4)
    widths |= {
        "embedding_table_dim": 4,
        "embedding_dim": 4,
        "attention_dim": 3,
        "hidden_dim": 2,
        "num_layers": 1,
    }
    sizes = {"max_uih_len": MAX_LENGTH, "max_num_candidates": 2, "contextual_min_seq_lengths": [2]}
    changes = {f"model.{name}": size for name, size in (widths | sizes).items()}
    torch.manual_seed(0)
    model = with_tables(with_fields(load_case("dlrmv3_streaming"), changes).model, streaming.TINY)
    return DLRMv3Task(model, make_requests(), learning_rate)


TASKS = {
    "dlrmv3": dlrmv3_task,
    "hstu": hstu_task,
    "sgd": lambda: dlrm_task("sgd"),
    "adagrad": lambda: dlrm_task("adagrad"),
}


class Stop(Exception):
    """Stands for the end of a process."""


class StopAfter(Listener):
    """Ends the process after some steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        self._left -= 1
        if self._left == 0:
            raise Stop


def train(task: Task, folder: Path, resume: bool = False, schedule: Schedule = SCHEDULE, **options):
    """`fit` with a folder of its own."""
    return fit(task, schedule, TrainingFolder(folder, resume), SETTINGS, **options)


def write_ratings(path: Path, users: int = 30) -> Path:
    """A ``u.data`` whose users go up the items."""
    rng = np.random.default_rng(0)
    lines = []
    for user in range(1, users + 1):
        start, count = rng.integers(1, 50), rng.integers(3, 11)
        lines += [f"{user}\t{(start + i) % 60 + 1}\t{i % 5 + 1}\t{1000 * i + user}\n" for i in range(count)]
    path.write_text("".join(lines))
    return path


def write_clicks(path: Path, rows: int = 40) -> Path:
    """A ``train.txt`` with gaps."""
    rng = np.random.default_rng(0)
    lines = []
    for row in range(rows):
        dense = ["" if rng.random() < 0.1 else str(rng.integers(0, 500)) for _ in range(13)]
        sparse = ["" if rng.random() < 0.1 else f"{rng.integers(0, 9):08x}" for _ in range(26)]
        lines.append("\t".join([str(row % 2), *dense, *sparse]) + "\n")
    path.write_text("".join(lines))
    return path


CRITEO_CASE = """
name: dlrm_small
description: two rows of tables each
family: dlrm
model:
  arch_mlp_bot: "13-8-4"
  arch_mlp_top: "6-1"
  arch_sparse_feature_size: 4
  arch_embedding_size: [{sizes}]
input:
  batch_size: 8
"""


def write_case(path: Path, text: str = CRITEO_CASE, sizes: int = 26) -> Path:
    """A small case of the Criteo architecture."""
    path.write_text(text.format(sizes=", ".join(["5"] * sizes)))
    return path
