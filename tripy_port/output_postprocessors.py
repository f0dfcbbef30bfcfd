"""Output postprocessors. Counterpart of reference/output_postprocessors.py.

Both keep the first ``embedding_dim`` columns: with ratings concatenated, the item's share of the state.
"""

from __future__ import annotations

import abc

import nvtripy as tp

from tripy_port.numerics import layer_norm, vector_norm
from tripy_port.validation import require, require_positive


class OutputPostprocessorModule(tp.Module):
    """Interface: the encoder's output to states that are compared with item embeddings."""

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name."""

    @abc.abstractmethod
    def forward(self, output_embeddings: tp.Tensor) -> tp.Tensor:
        """(..., at least embedding_dim) -> (..., embedding_dim)."""


class L2NormEmbeddingPostprocessor(OutputPostprocessorModule):
    """Divides by the Euclidean norm, which is taken as at least eps."""

    def __init__(self, embedding_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        require(eps > 0, "eps", eps, "must be positive")
        self._embedding_dim = embedding_dim
        self._eps = eps

    def debug_str(self) -> str:
        return "l2"

    def forward(self, output_embeddings: tp.Tensor) -> tp.Tensor:
        x = output_embeddings[..., : self._embedding_dim]
        return x / tp.maximum(vector_norm(x), self._eps)


class LayerNormEmbeddingPostprocessor(OutputPostprocessorModule):
    """Layer norm without weight and bias."""

    def __init__(self, embedding_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        require(eps > 0, "eps", eps, "must be positive")
        self._embedding_dim = embedding_dim
        self._eps = eps

    def debug_str(self) -> str:
        return "ln"

    def forward(self, output_embeddings: tp.Tensor) -> tp.Tensor:
        x = output_embeddings[..., : self._embedding_dim]
        return layer_norm(x, self._embedding_dim, self._eps)
