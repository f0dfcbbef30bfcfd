"""Mixed-dimension embeddings: tall tables get few columns and a projection to the common dimension.

Ginart et al., "Mixed Dimension Embeddings", arXiv:1909.11810, algorithm 1; public counterpart:
``tricks/md_embedding_bag.py`` of facebookresearch/dlrm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from reference.embedding_bags import EmbeddingBag, NumpyRandom, fill_uniform
from reference.validation import require, require_positive


class PrEmbeddingBag(nn.Module):
    """A table of ``embedding_dim`` columns, projected to ``base_dim`` after pooling.

    Keys: ``embs.weight`` (num_embeddings, embedding_dim) and ``proj.weight`` (base_dim, embedding_dim). With
    equal dimensions the projection is the identity and has no key.

    Args:
        num_embeddings: rows.
        embedding_dim: columns of the table, at most ``base_dim``.
        base_dim: columns of the output.
        sparse: whether training gives the table a sparse gradient.
        rng: source of initial values; ``numpy.random`` itself by default.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        base_dim: int,
        sparse: bool = True,
        rng: NumpyRandom | None = None,
    ) -> None:
        super().__init__()
        require_positive(base_dim=base_dim)
        fix = f"must not exceed base_dim={base_dim}"
        require(embedding_dim <= base_dim, "embedding_dim", embedding_dim, fix)
        rng = rng or np.random
        self.base_dim = base_dim
        self.embs = EmbeddingBag(num_embeddings, embedding_dim, sparse=sparse, rng=rng)
        if embedding_dim < base_dim:
            self.proj = nn.Linear(embedding_dim, base_dim, bias=False)
            bound = float(np.sqrt(6 / (embedding_dim + base_dim)))  # Xavier uniform
            fill_uniform(self.proj.weight, -bound, bound, rng)
        else:
            self.proj = nn.Identity()

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
        indices_L: torch.Tensor,
        offsets_B: torch.Tensor,
        per_sample_weights_L: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the projected bag sums, (B, base_dim); zero for empty bags. See `pool_bags`."""
        return self.proj(self.embs(indices_L, offsets_B, per_sample_weights_L))


def mixed_dimensions(
    num_embeddings: Sequence[int], temperature: float, base_dim: int, round_dims: bool = False
) -> list[int]:
    """Choose a dimension for each table by the power rule: ``base_dim * (smallest / rows) ** temperature``.

    The smallest table gets ``base_dim``, no table less than 1. With ``round_dims`` every dimension, the
    smallest table's included, is rounded to the nearest power of two (in the exponent). As in the public
    code, the computation is float32 and halves go to even.

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
    rows_T = torch.tensor(list(num_embeddings), dtype=torch.float32)
    scale = base_dim * rows_T.min() ** temperature
    dims_T = torch.round((scale * rows_T ** (-temperature)).clamp(min=1.0))
    dims_T[rows_T.argmin()] = base_dim
    if round_dims:
        dims_T = 2.0 ** torch.round(torch.log2(dims_T))
    return [int(dim) for dim in dims_T]
