"""Postprocessors of the production model's target states. Counterpart of reference/postprocessors.py.

Legend: B batch, T targets, D embedding, F time features.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import nvtripy as tp

from tripy_port.numerics import vector_norm
from tripy_port.validation import require, require_positive

# The public code's 2 pi.
_TURN = 2 * 3.14


class OutputPostprocessor(tp.Module):
    """Interface: the stack's output to a ranking head's input."""

    @abc.abstractmethod
    def forward(self, seq_embeddings: tp.Tensor, seq_timestamps: tp.Tensor) -> tp.Tensor:
        """(B, T, D) and (B, T) int64 seconds -> (B, T, D)."""


class L2NormPostprocessor(OutputPostprocessor):
    """Divides by the Euclidean norm, which is taken as at least 1e-6."""

    def forward(self, seq_embeddings: tp.Tensor, seq_timestamps: tp.Tensor) -> tp.Tensor:
        return seq_embeddings / tp.maximum(vector_norm(seq_embeddings), 1e-6)


class LayerNormPostprocessor(OutputPostprocessor):
    """Layer norm with weight and bias."""

    def __init__(self, embedding_dim: int, eps: float = 1e-5, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        require(eps > 0, "eps", eps, "must be positive")
        self._layer_norm = tp.LayerNorm(embedding_dim, dtype=dtype, eps=eps)

    def forward(self, seq_embeddings: tp.Tensor, seq_timestamps: tp.Tensor) -> tp.Tensor:
        return self._layer_norm(seq_embeddings)


class TimestampLayerNormPostprocessor(OutputPostprocessor):
    """A linear layer over state and time of day or week, then a layer norm with weight and bias.

    Args:
        time_duration_features: (seconds of a unit, units of a period) of each time feature.
        dtype: of the weights.
    """

    def __init__(
        self,
        embedding_dim: int,
        time_duration_features: Sequence[tuple[int, int]] = ((60 * 60, 24), (24 * 60 * 60, 7)),
        eps: float = 1e-5,
        dtype: tp.dtype = tp.float32,
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
        self._layer_norm = tp.LayerNorm(embedding_dim, dtype=dtype, eps=eps)
        width = embedding_dim + 2 * len(self._time_duration_features)
        self._time_feature_combiner = tp.Linear(width, embedding_dim, dtype=dtype)

    def forward(self, seq_embeddings: tp.Tensor, seq_timestamps: tp.Tensor) -> tp.Tensor:
        # The public code rounds timestamps to float32: to 64 seconds in this century's first years.
        seconds = tp.cast(tp.cast(seq_timestamps, tp.float32), tp.int64)
        features = []
        for unit, period in self._time_duration_features:
            # Tripy's // floors; % is written out, since its sign for negative times is not documented.
            units = seconds // unit
            elapsed = units - units // period * period
            angle = tp.cast(elapsed, tp.float32) / float(period) * _TURN
            features += [tp.unsqueeze(tp.cos(angle), -1), tp.unsqueeze(tp.sin(angle), -1)]
        time = tp.cast(tp.concatenate(features, dim=-1), seq_embeddings.dtype)
        return self._layer_norm(self._time_feature_combiner(tp.concatenate([seq_embeddings, time], dim=-1)))
