"""Embeddings of history, targets and context -> the rows of the production ranking model's sequence.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/preprocessors.py,
`ContextualPreprocessor`. Departures: dense only; contextual features come padded to their longest, with zeros
for the values that a user lacks; one additional feature, the category.

Legend: B batch, H history rows, T target rows, M rows of both, C contextual rows, N = C + M,
E columns of the embedding tables, D embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference.action_encoder import ActionEncoder
from reference.layer_norm import SwishLayerNorm
from reference.validation import require, require_positive

ACTION_EMBEDDING_DIM = 8
"""Columns of an action in the public ranking model."""


def embedding_mlp(input_dim: int, hidden_dim: int, output_dim: int) -> torch.nn.Sequential:
    """Two linear layers: a gating norm behind the first, a layer norm behind the second."""
    require_positive(input_dim=input_dim, hidden_dim=hidden_dim, output_dim=output_dim)
    layers = torch.nn.Sequential(
        torch.nn.Linear(input_dim, hidden_dim),
        SwishLayerNorm(hidden_dim),
        torch.nn.Linear(hidden_dim, output_dim),
        torch.nn.LayerNorm(output_dim, eps=1e-5),
    )
    for layer in (layers[0], layers[2]):
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    return layers


class ContextualFeatures(torch.nn.Module):
    """Contextual embeddings of the users whose sequence is long enough, zeros for the others.

    Args:
        max_lengths: rows of each contextual feature, in order.
        min_seq_lengths: by feature, the fewest rows of history and targets together that it needs.
    """

    def __init__(self, max_lengths: Sequence[int], min_seq_lengths: Sequence[int]) -> None:
        super().__init__()
        require(
            len(max_lengths) == len(min_seq_lengths),
            "min_seq_lengths",
            min_seq_lengths,
            f"give one for each of the {len(max_lengths)} features",
        )
        for rows in max_lengths:
            require_positive(max_length=rows)
        self._min_by_row = [
            least for rows, least in zip(max_lengths, min_seq_lengths, strict=True) for _ in range(rows)
        ]

    def forward(self, contextual_embeddings: torch.Tensor, seq_lengths: torch.Tensor) -> torch.Tensor:
        """(B, C, E) and (B,) int -> (B, C, E)."""
        # Comparisons with numbers: a tensor of them would be a copy from the host, which no CUDA graph takes.
        has_enough_BC1 = torch.stack([seq_lengths >= least for least in self._min_by_row], 1).unsqueeze(2)
        return torch.where(has_enough_BC1, contextual_embeddings, torch.zeros_like(contextual_embeddings))


class ContextualPreprocessor(torch.nn.Module):
    """The sum of content, category and action of each row; contextual rows in front.

    Args:
        input_embedding_dim, hidden_dim, output_embedding_dim: E, the inner width of each MLP, D.
        contextual_max_lengths, contextual_min_seq_lengths: see `ContextualFeatures`; empty for no context.
        action_weights: see `ActionEncoder`; None for a model without actions.
    """

    def __init__(
        self,
        input_embedding_dim: int,
        hidden_dim: int,
        output_embedding_dim: int,
        contextual_max_lengths: Sequence[int] = (),
        contextual_min_seq_lengths: Sequence[int] = (),
        action_weights: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self._contextual_seq_len = sum(contextual_max_lengths)
        widths = (hidden_dim, output_embedding_dim)
        if self._contextual_seq_len > 0:
            self._contextual_features = ContextualFeatures(contextual_max_lengths, contextual_min_seq_lengths)
            weights = torch.empty(self._contextual_seq_len, input_embedding_dim, output_embedding_dim)
            weights.normal_(0.0, (2.0 / (input_embedding_dim + output_embedding_dim)) ** 0.5)
            self._batched_contextual_linear_weights = torch.nn.Parameter(weights)
            bias = torch.zeros(self._contextual_seq_len, output_embedding_dim)
            self._batched_contextual_linear_bias = torch.nn.Parameter(bias)
        self._content_embedding_mlp = embedding_mlp(input_embedding_dim, *widths)
        self._additional_embedding_mlp = embedding_mlp(input_embedding_dim, *widths)
        self._has_actions = action_weights is not None
        if action_weights is not None:
            self._action_encoder = ActionEncoder(ACTION_EMBEDDING_DIM, action_weights)
            self._action_embedding_mlp = embedding_mlp(self._action_encoder.output_embedding_dim, *widths)

    @property
    def contextual_seq_len(self) -> int:
        """C."""
        return self._contextual_seq_len

    def forward(
        self,
        uih_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        seq_timestamps: torch.Tensor,
        seq_embeddings: torch.Tensor,
        additional_embeddings: torch.Tensor,
        targets: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Args:
            uih_lengths, num_targets: (B,) int, rows of history and of targets.
            seq_timestamps: (B, M) int64 seconds.
            seq_embeddings, additional_embeddings: (B, M, E), of items and of their categories.
            targets: (B, T, *), gives T.
            uih_actions: (B, H) int64, see `ActionEncoder`; None for a model without actions.
            contextual_embeddings: (B, C, E); None for a model without context.

        Returns:
            (B,) rows of each sequence, (B, N) timestamps with 0 for contextual rows, (B, N, D) embeddings;
            anything in the padded rows.
        """
        x = self._content_embedding_mlp(seq_embeddings)
        x = x + self._additional_embedding_mlp(additional_embeddings)
        if self._has_actions:
            actions = self._action_encoder(uih_actions, uih_lengths, targets)
            x = x + self._action_embedding_mlp(actions)
        seq_lengths = uih_lengths + num_targets
        if self._contextual_seq_len == 0:
            return seq_lengths, seq_timestamps, x
        context_BCE = self._contextual_features(contextual_embeddings, seq_lengths)
        context_CBD = torch.baddbmm(
            self._batched_contextual_linear_bias.unsqueeze(1),
            context_BCE.transpose(0, 1),
            self._batched_contextual_linear_weights,
        )
        no_times = seq_timestamps.new_zeros(seq_timestamps.size(0), self._contextual_seq_len)
        return (
            seq_lengths + self._contextual_seq_len,
            torch.cat([no_times, seq_timestamps], dim=1),
            torch.cat([context_CBD.transpose(0, 1), x], dim=1),
        )
