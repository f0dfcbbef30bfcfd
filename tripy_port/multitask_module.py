"""Predictions of several tasks from a user's state and an item's. Counterpart of
reference/multitask_module.py.

Legend: B batch, T targets, D embedding, K tasks.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.layer_norm import SwishLayerNorm
from tripy_port.validation import require, require_positive


class TaskActivation(tp.Module):
    """Logits of the tasks: a probability for classes, the number itself for regressions.

    Args:
        num_classification_tasks: tasks with a sigmoid; they come first.
        num_regression_tasks: the others.
    """

    def __init__(self, num_classification_tasks: int, num_regression_tasks: int) -> None:
        super().__init__()
        self._num_classification_tasks = num_classification_tasks
        self._num_regression_tasks = num_regression_tasks

    def forward(self, logits: tp.Tensor) -> tp.Tensor:
        """(B, T, K) -> (B, T, K)."""
        if self._num_regression_tasks == 0:
            return tp.sigmoid(logits)
        sizes = [self._num_classification_tasks, self._num_regression_tasks]
        classes, numbers = tp.split(logits, sizes, dim=-1)
        return tp.concatenate([tp.sigmoid(classes), numbers], dim=-1)


class MultitaskModule(tp.Module):
    """An MLP over the product of both states, with one logit a task.

    Args:
        num_classification_tasks, num_regression_tasks: at least 1, and at least 0.
        embedding_dim: D.
        hidden_dim: width of the MLP's inner layer.
        dtype: of the weights.
    """

    def __init__(
        self,
        num_classification_tasks: int,
        num_regression_tasks: int,
        embedding_dim: int,
        hidden_dim: int,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        num_tasks = num_classification_tasks + num_regression_tasks
        require_positive(
            num_classification_tasks=num_classification_tasks,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
        )
        require(num_regression_tasks >= 0, "num_regression_tasks", num_regression_tasks, "must be at least 0")
        self._prediction_module = tp.Sequential(
            tp.Linear(embedding_dim, hidden_dim, dtype=dtype),
            SwishLayerNorm(hidden_dim, dtype=dtype),
            tp.Linear(hidden_dim, num_tasks, dtype=dtype),
        )
        self._activation = TaskActivation(num_classification_tasks, num_regression_tasks)

    def forward(self, encoded_user_embeddings: tp.Tensor, item_embeddings: tp.Tensor) -> tp.Tensor:
        """(B, T, D) twice -> (B, T, K)."""
        return self._activation(self._prediction_module(encoded_user_embeddings * item_embeddings))
