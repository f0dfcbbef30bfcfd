"""Quotient-remainder embeddings: two small tables in place of one tall one.

Shi et al., "Compositional Embeddings Using Complementary Partitions", arXiv:1909.02107, section 3; public
counterpart: ``tricks/qr_embedding_bag.py`` of facebookresearch/dlrm. With ``c`` collisions, category ``i``
combines row ``i // c`` of the quotient table and row ``i mod c`` of the remainder table.

Departures from the public code:

* the quotient is an integer division; the public code truncates a float32 division and reads a wrong row for
  some indices above 2**24;
* an unknown operation is a ``ValueError``, not an assertion.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from reference.embedding_bags import NumpyRandom, fill_uniform, pool_bags
from reference.validation import require_choice, require_positive

QR_OPERATIONS = ("mult", "add", "concat")


class QREmbeddingBag(nn.Module):
    """Compose two sum-pooled tables. Keys: ``weight_q`` (ceil(n / c), D) and ``weight_r`` (c, D).

    Bags are pooled in each table first and composed afterwards, as the public code does. For bags of several
    indices, ``mult`` is the product of sums, not the sum of products. Per-sample weights enter both sums.

    Args:
        num_embeddings: categories n; valid indices run from 0 to n - 1.
        embedding_dim: columns D of each of the two tables.
        num_collisions: categories c that share a quotient row.
        operation: "mult" and "add" give D output columns, "concat" gives 2 D.
        sparse: whether training gives the tables sparse gradients.
        rng: source of initial values; ``numpy.random`` itself by default.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        num_collisions: int,
        operation: str = "mult",
        sparse: bool = True,
        rng: NumpyRandom | None = None,
    ) -> None:
        super().__init__()
        require_positive(
            num_embeddings=num_embeddings, embedding_dim=embedding_dim, num_collisions=num_collisions
        )
        require_choice("operation", operation, QR_OPERATIONS)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.num_collisions = num_collisions
        self.operation = operation
        self.sparse = sparse
        num_quotients = -(-num_embeddings // num_collisions)
        self.weight_q = nn.Parameter(torch.empty(num_quotients, embedding_dim))
        self.weight_r = nn.Parameter(torch.empty(num_collisions, embedding_dim))
        # The public range: one-sided, so that products of the two tables do not start around zero.
        low = float(np.sqrt(1 / num_embeddings))
        for weight in (self.weight_q, self.weight_r):
            fill_uniform(weight, low, 1.0, rng or np.random)

    @property
    def output_dim(self) -> int:
        """Columns of the composed output."""
        return 2 * self.embedding_dim if self.operation == "concat" else self.embedding_dim

    def forward(
        self,
        indices_L: torch.Tensor,
        offsets_B: torch.Tensor,
        per_sample_weights_L: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the composed bag vectors, (B, output_dim); zero for empty bags. See `pool_bags`."""
        quotients_L = torch.div(indices_L, self.num_collisions, rounding_mode="floor")
        remainders_L = torch.remainder(indices_L, self.num_collisions)
        q_BD = pool_bags(self.weight_q, quotients_L, offsets_B, per_sample_weights_L, self.sparse)
        r_BD = pool_bags(self.weight_r, remainders_L, offsets_B, per_sample_weights_L, self.sparse)
        if self.operation == "mult":
            return q_BD * r_BD
        if self.operation == "add":
            return q_BD + r_BD
        return torch.cat((q_BD, r_BD), dim=1)

    def extra_repr(self) -> str:
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, num_collisions={self.num_collisions}, "
            f"operation={self.operation}, mode=sum"
        )
