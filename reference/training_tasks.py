"""What `reference.train` trains: the model, its data and their digest, by family.

The readers are those of parity runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from configs import CaseConfig
from datasets import movielens
from datasets.criteo import logs as criteo
from reference import training_dlrm, training_dlrmv3, training_hstu
from reference.build import build_dlrm, build_hstu
from reference.checkpoints import TrainingError
from reference.training import Task


def task_of(
    case: CaseConfig, path: Path | None, optimizer: str, rate: float, device: str, users: int | None
) -> tuple[Task, str]:
    """The task and its data's digest.

    Args:
        case: a case that can be trained.
        path: recorded data; None for generated requests.
        optimizer, rate: name and learning rate.
        device: one of `training_dlrmv3.DEVICES`.
        users: number of users with generated requests; None for all.

    Raises:
        TrainingError: the data or the device are not for this case.
        DataError: the data cannot be read.
    """
    if case.family == "dlrmv3":
        if path is not None:
            raise TrainingError("--data", path, "is not read for DLRMv3", "leave --data out")
        parts, whole = training_dlrmv3.generated(case, users)
        arrays = [getattr(part, name) for part in parts.values() for name in part.__dataclass_fields__]
        model = training_dlrmv3.placed(whole, device)
        return training_dlrmv3.DLRMv3Task(model, parts, rate), _digest(arrays)
    if device != "cpu":
        raise TrainingError("--device", device, f"does not train {case.family}", "leave --device out")
    if users is not None:
        raise TrainingError("--users", users, f"is not taken for {case.family}", "leave --users out")
    if path is None:
        raise TrainingError(
            "--data", "no file", f"is given for {case.family}", "give Criteo logs or MovieLens ratings"
        )
    return (_dlrm if case.family == "dlrm" else _hstu)(case, path, optimizer, rate)


def _dlrm(case: CaseConfig, path: Path, optimizer: str, rate: float) -> tuple[Task, str]:
    """The task and its data's digest: the rows that a parity run of the same file sees."""
    _refuse_other_family(case, path, criteo.recognises(path), movielens.recognises(path))
    model = case.model
    criteo.check_features(path, case.name, model.bottom_widths[0], len(model.table_rows))
    read = criteo.preprocess(criteo.find_files(path), criteo.Preprocessing())
    if len(read) < 2:
        raise TrainingError(
            "data", str(path), f"has {len(read)} rows", "give at least two, to train and to validate"
        )
    arrays = {
        "counts": criteo.counts_of(read.dense_ND),
        "rows": criteo.fold_rows(read.sparse_TN, model.table_rows),
        "labels": read.labels_N,
    }
    log = training_dlrm.ClickLog(*map(torch.tensor, arrays.values()))
    # The tables' sparse gradients are PyTorch's own; unless told, it warns that it does not check them.
    torch.sparse.check_sparse_tensor_invariants.disable()
    net = build_dlrm(model, validate_inputs=False)  # folded rows are inside their tables
    return training_dlrm.DLRMTask(net, log, optimizer, rate), _digest(arrays.values())


def _hstu(case: CaseConfig, path: Path, optimizer: str, rate: float) -> tuple[Task, str]:
    """The task and its data's digest: the last item of each user validates, the others train."""
    _refuse_other_family(case, path, movielens.recognises(path), criteo.recognises(path))
    ratings = movielens.read_ratings(path)
    if int(np.diff(ratings.offsets).max()) < 3:
        raise TrainingError(
            "data", str(path), "has no user with three ratings", "give a file with histories to learn from"
        )
    model = case.model
    parts = []
    for part in (movielens.without_last(ratings), ratings):
        movielens.check_fits(part, model.num_items, model.num_ratings)
        users = movielens.histories(part, part.with_history, model.max_sequence_len, model.padded_length)
        parts.append(training_hstu.Histories.of(users))
    catalogue = torch.from_numpy(np.unique(ratings.item_ids))
    task = training_hstu.HSTUTask(build_hstu(model), *parts, catalogue, rate)
    return task, _digest([ratings.offsets, ratings.item_ids, ratings.ratings, ratings.timestamps])


def _refuse_other_family(case: CaseConfig, path: Path, ours: bool, theirs: bool) -> None:
    """Refuses files of the other family; the reader refuses all other unknown files."""
    if theirs and not ours:
        kind, fitting = ("MovieLens ratings", "hstu") if case.family == "dlrm" else ("Criteo logs", "dlrm")
        raise TrainingError(
            "data", str(path), f"holds {kind}, and {case.name} is of {case.family}",
            f"use a case of {fitting}, or other data",
        )  # fmt: skip


def _digest(arrays: Iterator[np.ndarray] | list[np.ndarray]) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(np.ascontiguousarray(array))
    return sha.hexdigest()
