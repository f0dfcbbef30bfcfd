"""Postprocessors of the production model's target states.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/postprocessors.py. Departures:
the periods are settings, since a checkpoint in half precision would change buffers. Integers count the place
within a period; the result equals the public float32 operations' exactly.

Legend: B batch, T targets, D embedding, F time features.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch

from reference.validation import require, require_positive

# The public code's 2 pi.
_TURN = 2 * 3.14


class OutputPostprocessor(torch.nn.Module):
    """Interface: the stack's output to a ranking head's input."""

    @abc.abstractmethod
    def forward(self, seq_embeddings: torch.Tensor, seq_timestamps: torch.Tensor) -> torch.Tensor:
        """(B, T, D) and (B, T) int64 seconds -> (B, T, D)."""


class L2NormPostprocessor(OutputPostprocessor):
    """Divides by the Euclidean norm, which is taken as at least 1e-6."""

    def forward(self, seq_embeddings: torch.Tensor, seq_timestamps: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(seq_embeddings, dim=-1, keepdim=True)
        return seq_embeddings / norm.clamp(min=1e-6)


class LayerNormPostprocessor(OutputPostprocessor):
    """Layer norm with weight and bias."""

    def __init__(self, embedding_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        require(eps > 0, "eps", eps, "must be positive")
        self._layer_norm = torch.nn.LayerNorm(embedding_dim, eps=eps)

    def forward(self, seq_embeddings: torch.Tensor, seq_timestamps: torch.Tensor) -> torch.Tensor:
        return self._layer_norm(seq_embeddings)


class TimestampLayerNormPostprocessor(OutputPostprocessor):
    """A linear layer over state and time of day or week, then a layer norm with weight and bias.

    Args:
        time_duration_features: (seconds of a unit, units of a period) of each time feature.
    """

    def __init__(
        self,
        embedding_dim: int,
        time_duration_features: Sequence[tuple[int, int]] = ((60 * 60, 24), (24 * 60 * 60, 7)),
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        require(eps > 0, "eps", eps, "must be positive")
        require(
            len(time_duration_features) > 0,
            "time_duration_features",
            time_duration_features,
            "give one, or use LayerNormPostprocessor",
        )
        for seconds, units in time_duration_features:
            require_positive(seconds_per_unit=seconds, units_per_period=units)
        self._time_duration_features = tuple(time_duration_features)
        self._layer_norm = torch.nn.LayerNorm(embedding_dim, eps=eps)
        width = embedding_dim + 2 * len(self._time_duration_features)
        self._time_feature_combiner = torch.nn.Linear(width, embedding_dim)
        torch.nn.init.xavier_uniform_(self._time_feature_combiner.weight)
        torch.nn.init.zeros_(self._time_feature_combiner.bias)

    def forward(self, seq_embeddings: torch.Tensor, seq_timestamps: torch.Tensor) -> torch.Tensor:
        # The public code rounds timestamps to float32: to 64 seconds in this century's first years.
        seconds = seq_timestamps.to(torch.float32).to(torch.int64)
        wide = torch.promote_types(seq_embeddings.dtype, torch.float32)
        features = []
        for unit, period in self._time_duration_features:
            elapsed = torch.div(seconds, unit, rounding_mode="floor").remainder(period)
            angle = elapsed.to(wide) / period * _TURN
            features += [torch.cos(angle), torch.sin(angle)]
        time = torch.stack(features, dim=-1).to(seq_embeddings.dtype)
        return self._layer_norm(self._time_feature_combiner(torch.cat([seq_embeddings, time], dim=-1)))
