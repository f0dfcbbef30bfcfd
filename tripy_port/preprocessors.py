"""Embeddings of history, targets and context -> the rows of the production ranking model's sequence.
Counterpart of reference/preprocessors.py.

Legend: B batch, H history rows, T target rows, M rows of both, C contextual rows, N = C + M,
E columns of the embedding tables, D embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import nvtripy as tp

from tripy_port.action_encoder import ActionEncoder
from tripy_port.layer_norm import SwishLayerNorm
from tripy_port.parameters import parameter
from tripy_port.validation import require, require_positive

ACTION_EMBEDDING_DIM = 8
"""Columns of an action in the public ranking model."""


def embedding_mlp(
    input_dim: int, hidden_dim: int, output_dim: int, dtype: tp.dtype = tp.float32
) -> tp.Sequential:
    """Two linear layers: a gating norm behind the first, a layer norm behind the second."""
    require_positive(input_dim=input_dim, hidden_dim=hidden_dim, output_dim=output_dim)
    return tp.Sequential(
        tp.Linear(input_dim, hidden_dim, dtype=dtype),
        SwishLayerNorm(hidden_dim, dtype=dtype),
        tp.Linear(hidden_dim, output_dim, dtype=dtype),
        tp.LayerNorm(output_dim, dtype=dtype, eps=1e-5),
    )


class ContextualFeatures(tp.Module):
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

    def forward(self, contextual_embeddings: tp.Tensor, seq_lengths: tp.Tensor) -> tp.Tensor:
        """(B, C, E) and (B,) int -> (B, C, E)."""
        # Made here: a tensor on the module would be a parameter.
        least_C = tp.cast(tp.Tensor(self._min_by_row), seq_lengths.dtype)
        has_enough_BC1 = tp.unsqueeze(tp.unsqueeze(seq_lengths, 1) >= least_C, 2)
        return tp.where(has_enough_BC1, contextual_embeddings, 0.0)


class ContextualPreprocessor(tp.Module):
    """The sum of content, category and action of each row; contextual rows in front.

    Args:
        input_embedding_dim, hidden_dim, output_embedding_dim: E, the inner width of each MLP, D.
        contextual_max_lengths, contextual_min_seq_lengths: see `ContextualFeatures`; empty for no context.
        action_weights: see `ActionEncoder`; None for a model without actions.
        dtype: of the weights.
    """

    def __init__(
        self,
        input_embedding_dim: int,
        hidden_dim: int,
        output_embedding_dim: int,
        contextual_max_lengths: Sequence[int] = (),
        contextual_min_seq_lengths: Sequence[int] = (),
        action_weights: Sequence[int] | None = None,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        self._contextual_seq_len = sum(contextual_max_lengths)
        widths = (hidden_dim, output_embedding_dim)
        if self._contextual_seq_len > 0:
            self._contextual_features = ContextualFeatures(contextual_max_lengths, contextual_min_seq_lengths)
            rows = self._contextual_seq_len
            self._batched_contextual_linear_weights = parameter(
                (rows, input_embedding_dim, output_embedding_dim), dtype
            )
            self._batched_contextual_linear_bias = parameter((rows, output_embedding_dim), dtype)
        self._content_embedding_mlp = embedding_mlp(input_embedding_dim, *widths, dtype=dtype)
        self._additional_embedding_mlp = embedding_mlp(input_embedding_dim, *widths, dtype=dtype)
        self._has_actions = action_weights is not None
        if action_weights is not None:
            self._action_encoder = ActionEncoder(ACTION_EMBEDDING_DIM, action_weights, dtype)
            self._action_embedding_mlp = embedding_mlp(
                self._action_encoder.output_embedding_dim, *widths, dtype=dtype
            )

    @property
    def contextual_seq_len(self) -> int:
        """C."""
        return self._contextual_seq_len

    def forward(
        self,
        uih_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        seq_timestamps: tp.Tensor,
        seq_embeddings: tp.Tensor,
        additional_embeddings: tp.Tensor,
        targets: tp.Tensor,
        uih_actions: tp.Tensor | None = None,
        contextual_embeddings: tp.Tensor | None = None,
    ) -> tuple[tp.Tensor, tp.Tensor, tp.Tensor]:
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
        context_CBE = tp.transpose(context_BCE, 0, 1)
        context_CBD = context_CBE @ self._batched_contextual_linear_weights
        context_CBD = context_CBD + tp.unsqueeze(self._batched_contextual_linear_bias, 1)
        no_times = tp.zeros((seq_timestamps.shape[0], self._contextual_seq_len), dtype=seq_timestamps.dtype)
        return (
            seq_lengths + self._contextual_seq_len,
            tp.concatenate([no_times, seq_timestamps], dim=1),
            tp.concatenate([tp.transpose(context_CBD, 0, 1), x], dim=1),
        )
