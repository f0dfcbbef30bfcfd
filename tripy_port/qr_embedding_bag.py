"""Quotient-remainder embeddings: two small tables in place of one tall one. Counterpart of
reference/qr_embedding_bag.py, after arXiv:1909.02107, section 3.

Legend: B batch (bags), L total number of indices, D embedding.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.embedding_bags import pool_bags
from tripy_port.parameters import parameter
from tripy_port.validation import require_choice, require_positive

QR_OPERATIONS = ("mult", "add", "concat")


class QREmbeddingBag(tp.Module):
    """Compose two sum-pooled tables. Keys: ``weight_q`` (ceil(n / c), D) and ``weight_r`` (c, D).

    Bags are pooled in each table first and composed afterwards, as the public code does.

    Args:
        num_embeddings: categories n; valid indices run from 0 to n - 1.
        embedding_dim: columns D of each of the two tables.
        num_collisions: categories c that share a quotient row.
        operation: "mult" and "add" give D output columns, "concat" gives 2 D.
        max_bag_size: see `tripy_port.embedding_bags`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        num_collisions: int,
        operation: str = "mult",
        max_bag_size: int | None = None,
        dtype: tp.dtype = tp.float32,
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
        self.max_bag_size = max_bag_size
        self.weight_q = parameter((-(-num_embeddings // num_collisions), embedding_dim), dtype)
        self.weight_r = parameter((num_collisions, embedding_dim), dtype)

    @property
    def output_dim(self) -> int:
        """Columns of the composed output."""
        return 2 * self.embedding_dim if self.operation == "concat" else self.embedding_dim

    def forward(
        self,
        indices_L: tp.Tensor,
        offsets_B: tp.Tensor,
        per_sample_weights_L: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """Return the composed bag vectors, (B, output_dim); zero for empty bags. See `pool_bags`."""
        # Indices are at least 0: truncating and flooring division agree.
        quotients_L = indices_L // self.num_collisions
        remainders_L = indices_L - quotients_L * self.num_collisions
        q_BD = pool_bags(self.weight_q, quotients_L, offsets_B, per_sample_weights_L, self.max_bag_size)
        r_BD = pool_bags(self.weight_r, remainders_L, offsets_B, per_sample_weights_L, self.max_bag_size)
        if self.operation == "mult":
            return q_BD * r_BD
        if self.operation == "add":
            return q_BD + r_BD
        return tp.concatenate([q_BD, r_BD], dim=1)
