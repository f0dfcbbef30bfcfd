"""Predictions of several tasks from a user's state and an item's.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/multitask_module.py. Departures:
dense only, (B, T, K) in place of (K, L); at least one class; no labels and losses.

Legend: B batch, T targets, D embedding, K tasks.
"""

from __future__ import annotations

import torch

from reference.layer_norm import SwishLayerNorm
from reference.validation import require, require_positive


class TaskActivation(torch.nn.Module):
    """Logits of the tasks: a probability for classes, the number itself for regressions.

    Args:
        num_classification_tasks: tasks with a sigmoid; they come first.
        num_regression_tasks: the others.
    """

    def __init__(self, num_classification_tasks: int, num_regression_tasks: int) -> None:
        super().__init__()
        self._sizes = [num_classification_tasks, num_regression_tasks]

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """(B, T, K) -> (B, T, K)."""
        classes, numbers = logits.split(self._sizes, dim=-1)
        return torch.cat([torch.sigmoid(classes), numbers], dim=-1)


class MultitaskModule(torch.nn.Module):
    """An MLP over the product of both states, with one logit a task.

    Args:
        num_classification_tasks, num_regression_tasks: at least 1, and at least 0.
        embedding_dim: D.
        hidden_dim: width of the MLP's inner layer.
    """

    def __init__(
        self, num_classification_tasks: int, num_regression_tasks: int, embedding_dim: int, hidden_dim: int
    ) -> None:
        super().__init__()
        num_tasks = num_classification_tasks + num_regression_tasks
        require_positive(
            num_classification_tasks=num_classification_tasks,
            embedding_dim=embedding_dim,
            hidden_dim=hidden_dim,
        )
        require(num_regression_tasks >= 0, "num_regression_tasks", num_regression_tasks, "must be at least 0")
        self._prediction_module = torch.nn.Sequential(
            torch.nn.Linear(embedding_dim, hidden_dim),
            SwishLayerNorm(hidden_dim),
            torch.nn.Linear(hidden_dim, num_tasks),
        )
        self._activation = TaskActivation(num_classification_tasks, num_regression_tasks)

    def forward(self, encoded_user_embeddings: torch.Tensor, item_embeddings: torch.Tensor) -> torch.Tensor:
        """(B, T, D) twice -> (B, T, K)."""
        return self._activation(self._prediction_module(encoded_user_embeddings * item_embeddings))
