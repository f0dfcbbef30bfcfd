"""Embeddings of the actions that a user took on an item: a click, a rating, a purchase.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/action_encoder.py. Departure: no
actions from thresholds on the time watched; the public ranking model has none either.

Legend: B batch, H history rows, T target rows, M rows of both, A actions, W bits of an action's weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference.sequence_utils import MergeSequences
from reference.validation import require, require_positive

_INIT_STD = 0.1


class ActionEncoder(torch.nn.Module):
    """A row of a table for each action that an event has, zeros for the others; one learned row for targets.

    Args:
        action_embedding_dim: columns of an action.
        action_weights: by action, the bits of an event's number that stand for it; at least 1 each.
    """

    def __init__(self, action_embedding_dim: int, action_weights: Sequence[int]) -> None:
        super().__init__()
        require_positive(action_embedding_dim=action_embedding_dim)
        require(len(action_weights) > 0, "action_weights", action_weights, "give at least one")
        for weight in action_weights:
            require_positive(action_weight=weight)
        self._width = len(action_weights) * action_embedding_dim
        self._merge = MergeSequences()
        self.register_buffer("_combined_action_weights", torch.tensor(list(action_weights)))
        table = torch.empty(len(action_weights), action_embedding_dim)
        self._action_embedding_table = torch.nn.Parameter(table.normal_(0.0, _INIT_STD))
        of_targets = torch.empty(1, self._width)
        self._target_action_embedding_table = torch.nn.Parameter(of_targets.normal_(0.0, _INIT_STD))

    @property
    def output_embedding_dim(self) -> int:
        """Columns of the result."""
        return self._width

    def forward(
        self, uih_actions: torch.Tensor, uih_lengths: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """
        Args:
            uih_actions: (B, H) int64, each at least 0: the actions of each event, as bits.
            uih_lengths: (B,) int.
            targets: (B, T, *), gives T.

        Returns:
            (B, M, A * action_embedding_dim), anything in the padded rows.
        """
        shared_BHA = torch.bitwise_and(uih_actions.unsqueeze(-1), self._combined_action_weights)
        has_action_BHA1 = (shared_BHA > 0).unsqueeze(-1)
        table = self._action_embedding_table
        of_uih = torch.where(has_action_BHA1, table, torch.zeros_like(table)).flatten(2)
        of_targets = self._target_action_embedding_table.expand(*targets.shape[:2], self._width)
        return self._merge(of_uih, of_targets, uih_lengths)
