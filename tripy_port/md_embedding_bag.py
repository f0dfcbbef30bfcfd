"""Mixed-dimension embeddings: tall tables get few columns and a projection to the common dimension.
Counterpart of reference/md_embedding_bag.py, after arXiv:1909.11810, algorithm 1.

Legend: B batch (bags), L total number of indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import nvtripy as tp

from tripy_port.dlrm_layers import Identity
from tripy_port.embedding_bags import EmbeddingBag
from tripy_port.validation import require, require_positive


class PrEmbeddingBag(tp.Module):
    """A table of ``embedding_dim`` columns, projected to ``base_dim`` after pooling.

    Keys: ``embs.weight`` (num_embeddings, embedding_dim) and ``proj.weight`` (base_dim, embedding_dim). With
    equal dimensions the projection is the identity and has no key.

    Args:
        num_embeddings: rows.
        embedding_dim: columns of the table, at most ``base_dim``.
        base_dim: columns of the output.
        max_bag_size: see `tripy_port.embedding_bags`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        base_dim: int,
        max_bag_size: int | None = None,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(base_dim=base_dim)
        fix = f"must not exceed base_dim={base_dim}"
        require(embedding_dim <= base_dim, "embedding_dim", embedding_dim, fix)
        self.base_dim = base_dim
        self.embs = EmbeddingBag(num_embeddings, embedding_dim, max_bag_size=max_bag_size, dtype=dtype)
        projects = embedding_dim < base_dim
        self.proj = tp.Linear(embedding_dim, base_dim, bias=False, dtype=dtype) if projects else Identity()

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        return self.embs.num_embeddings

    @property
    def output_dim(self) -> int:
        """Columns of the projected output."""
        return self.base_dim

    def forward(
        self,
        indices_L: tp.Tensor,
        offsets_B: tp.Tensor,
        per_sample_weights_L: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """Return the projected bag sums, (B, base_dim); zero for empty bags. See `pool_bags`."""
        return self.proj(self.embs(indices_L, offsets_B, per_sample_weights_L))


def mixed_dimensions(
    num_embeddings: Sequence[int], temperature: float, base_dim: int, round_dims: bool = False
) -> list[int]:
    """Choose a dimension for each table by the power rule: ``base_dim * (smallest / rows) ** temperature``.

    The smallest table gets ``base_dim``, no table less than 1. With ``round_dims`` every dimension, the
    smallest table's included, is rounded to the nearest power of two (in the exponent). Halves go to even, as
    in the public code.

    Args:
        num_embeddings: rows of each table.
        temperature: 0 gives every table ``base_dim``; larger values shrink tall tables more.
        base_dim: dimension of the smallest table.
        round_dims: round to powers of two.

    Returns:
        One dimension for each table, in the given order.
    """
    require(len(num_embeddings) > 0, "num_embeddings", list(num_embeddings), "give at least one table")
    require(temperature >= 0, "temperature", temperature, "must not be negative")
    require_positive(base_dim=base_dim, smallest_table=min(num_embeddings))
    smallest = min(num_embeddings)
    scale = base_dim * smallest**temperature
    dims = [round(max(1.0, scale * rows**-temperature)) for rows in num_embeddings]
    dims[list(num_embeddings).index(smallest)] = base_dim
    return [2 ** round(math.log2(dim)) for dim in dims] if round_dims else dims
