"""Training DLRMv3 with its tables: binary cross entropy of each candidate, as the public program does.

Source of the settings: meta-recsys/generative-recommenders, generative_recommenders/dlrm_v3,
``train/gin/streaming_400m.gin`` (Adam, row-wise Adagrad for the tables, betas and epsilon, 64 requests a
step) and ``modules/multitask_module.py`` (the loss). Departures: larger learning rates, since there are fewer
steps; tables in float32, with larger initial numbers; on a GPU products in TF32 in place of bfloat16.

Legend: B requests of a batch, H events, T candidates, E columns of the tables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional as F

from configs import DLRMv3CaseConfig, DLRMv3Config, with_fields
from datasets.dlrmv3 import streaming
from datasets.dlrmv3.generator import Settings
from reference.build import build_dlrmv3
from reference.checkpoints import TrainingError
from reference.row_wise_adagrad import RowWiseAdagrad
from reference.training import TRAIN, VALIDATION

LEARNING_RATE, BETAS, EPSILON = 3e-3, (0.95, 0.999), 1e-8
_RATE_OF_TABLES = 10.0
"""The learning rate of the tables, in those of the model behind them."""
BATCH_SIZE = 64
EPOCHS, PATIENCE = 8, 2
TABLES = ("item_id", "item_category_id", "user_id")
"""Names of the public tables."""
DEVICES = ("cpu", "cuda")
"""Devices that train the model."""
_INITIAL_STD = 0.3
"""Standard deviation of the tables' initial numbers."""


def is_trainable(config: DLRMv3Config) -> bool:
    """Whether generated requests have all that a model takes, and labels for all of its tasks."""
    return (
        config.action_weights is not None
        and config.contextual_max_lengths == (1,)
        and (config.num_classification_tasks, config.num_regression_tasks) == (1, 0)
    )


class DLRMv3WithTables(torch.nn.Module):
    """The ranking model behind the tables of items, of their categories, and of users.

    Args:
        config: a model with one contextual row, the user's.
        num_items, num_categories, num_users: rows of the tables.
    """

    def __init__(self, config: DLRMv3Config, num_items: int, num_categories: int, num_users: int) -> None:
        super().__init__()
        self.dense = build_dlrmv3(config)
        rows = dict(zip(TABLES, (num_items, num_categories, num_users), strict=True))
        self.tables = torch.nn.ModuleDict(
            {
                name: torch.nn.Embedding(count, config.embedding_table_dim, sparse=True)
                for name, count in rows.items()
            }
        )
        for table in self.tables.values():
            torch.nn.init.normal_(table.weight, std=_INITIAL_STD)
        self._items_per_category = num_items // num_categories

    def embed(self, requests: streaming.Requests) -> dict[str, torch.Tensor]:
        """The arguments of the ranking model for some requests, on the model's device."""
        arrays = {name: getattr(requests, name) for name in requests.__dataclass_fields__}
        device = self.tables[TABLES[0]].weight.device
        ids = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        items, categories, users = (self.tables[name] for name in TABLES)

        def category(of: torch.Tensor) -> torch.Tensor:
            return categories(of // self._items_per_category)

        return {
            "uih_lengths": ids["uih_lengths"],
            "num_candidates": ids["num_candidates"],
            "uih_embeddings": items(ids["items"]),
            "uih_category_embeddings": category(ids["items"]),
            "uih_timestamps": torch.full_like(ids["items"], streaming.MOMENT),
            "candidate_embeddings": items(ids["candidates"]),
            "candidate_category_embeddings": category(ids["candidates"]),
            "query_times": torch.full_like(ids["candidates"], streaming.MOMENT),
            "uih_actions": ids["actions"],
            "contextual_embeddings": users(ids["users"]).unsqueeze(1),
        }

    def forward(self, requests: streaming.Requests) -> torch.Tensor:
        """(B, T): the probability that the user likes a candidate; zero behind a request's candidates."""
        return self.dense(**self.embed(requests)).squeeze(2)


def generated(
    case: DLRMv3CaseConfig, num_users: int | None = None
) -> tuple[dict[str, streaming.Part], DLRMv3WithTables]:
    """Generated requests and a model for them: the periods of training train, the evaluation validates.

    The model has as many candidates as a request of these periods, which are fewer than in the inference. The
    tables have rows for all users.

    Args:
        case: the case.
        num_users: so many users have requests, the first ones; None for all.

    Raises:
        DataError: there are fewer users.
    """
    settings = streaming.SETTINGS[case.requests or "small"]
    most = min(settings.num_eval_candidates, case.model.max_num_candidates)
    config = with_fields(case, {"model.max_num_candidates": most}).model
    parts = streaming.generate(settings, config.max_uih_len, most, num_users)
    return {TRAIN: parts[streaming.TRAIN], VALIDATION: parts[streaming.EVALUATION]}, with_tables(
        config, settings
    )


def with_tables(config: DLRMv3Config, settings: Settings) -> DLRMv3WithTables:
    """A model with the tables of some data."""
    return DLRMv3WithTables(config, settings.num_items, settings.num_categories, settings.num_users)


def placed(model: DLRMv3WithTables, device: str) -> DLRMv3WithTables:
    """The model on one of `DEVICES`, where a seed gives the same bits at every run.

    On a GPU these are PyTorch's deterministic algorithms, with products in TF32, for the whole process.

    Raises:
        TrainingError: there is no such device.
    """
    if device != "cpu":
        if not torch.cuda.is_available():
            raise TrainingError("--device", device, "is absent: PyTorch sees no GPU", "leave --device out")
        # cuBLAS reads it when its first product comes.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # No operation here reads what it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.set_float32_matmul_precision("high")
    return model.to(device)


class DLRMv3Task:
    """See `reference.training.Task`; a row is a request.

    Args:
        model: the model with its tables.
        parts: requests of `TRAIN` and of `VALIDATION`.
        learning_rate: the learning rate of the model behind the tables.
    """

    def __init__(
        self,
        model: DLRMv3WithTables,
        parts: Mapping[str, streaming.Part],
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        self.model = model
        self._parts = {part: parts[part] for part in (TRAIN, VALIDATION)}
        self.lengths: np.ndarray | None = self._parts[TRAIN].uih_lengths
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Adam(model.dense.parameters(), lr=learning_rate, betas=BETAS, eps=EPSILON),
            RowWiseAdagrad(model.tables.parameters(), lr=_RATE_OF_TABLES * learning_rate, eps=EPSILON),
        )

    def num_rows(self, part: str) -> int:
        return len(self._parts[part])

    def loss(self, part: str, rows_B: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, int]:
        """Mean binary cross entropy of the candidates, and their number. ``generator`` is not used."""
        requests = self._parts[part].rows(rows_B.numpy())
        counts_BT = torch.from_numpy(requests.is_candidate())
        labels_P = torch.from_numpy(requests.labels)[counts_BT]
        predictions_BT = self.model(requests)
        predictions_P = predictions_BT[counts_BT.to(predictions_BT.device)]
        return F.binary_cross_entropy(predictions_P, labels_P.to(predictions_P)), len(labels_P)
