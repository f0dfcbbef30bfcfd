"""Embedding tables in 4 bits with a scale and a bias for each row. Counterpart of
reference/int4_embedding_bags.py, which has the rule.

`tp.int4` cannot be gathered: a graph has it between quantize and dequantize alone. Integer arithmetic packs
two codes in a byte, as fbgemm has them. The bytes follow from constants, so that a builder may compute them
once.

Legend: N rows of the table, D embedding, P bytes of a row, B batch (bags), L total number of indices.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.embedding_bags import EmbeddingBag, pool_bags

CODES = 16
"""Codes of 4 bits."""
ZERO = 128
"""The distance between the unsigned bytes of fbgemm and the signed ones."""


class Int4Rows(tp.Module):
    """Quantises the rows of a table.

    Args:
        embedding_dim: D.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim

    def forward(self, weight_ND: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor, tp.Tensor]:
        """(N, D) -> bytes (N, P) in int8, scales (N, 1) and biases (N, 1) in float32."""
        weight_ND = tp.cast(weight_ND, tp.float32)
        low_N1 = tp.cast(tp.cast(tp.min(weight_ND, dim=1, keepdim=True), tp.float16), tp.float32)
        range_N1 = tp.max(weight_ND, dim=1, keepdim=True) - low_N1
        scale_N1 = tp.cast(tp.cast(range_N1 / (CODES - 1.0), tp.float16), tp.float32)
        scale_N1 = tp.where(scale_N1 == 0.0, tp.ones_like(scale_N1), scale_N1)
        steps_ND = (weight_ND - low_N1) * (1.0 / scale_N1)
        codes_ND = tp.cast(tp.quantize(steps_ND, 1.0, tp.int8), tp.int32)
        codes_ND = tp.minimum(tp.maximum(codes_ND, 0), CODES - 1)
        last = [codes_ND[:, 0:1] * 0] * (self.embedding_dim % 2)
        codes_ND = tp.concatenate([codes_ND, *last], dim=1)
        codes_NP2 = tp.reshape(codes_ND, (codes_ND.shape[0], -1, 2))
        low_NP, high_NP = tp.squeeze(codes_NP2[:, :, 0:1], 2), tp.squeeze(codes_NP2[:, :, 1:2], 2)
        return tp.cast(low_NP + high_NP * CODES - ZERO, tp.int8), scale_N1, low_N1


class Int4EmbeddingBag(EmbeddingBag):
    """A table whose rows are looked up as bytes and dequantised. Key: ``weight``, as of a plain table."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_bag_size: int | None = None,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, max_bag_size, dtype)
        self.quantise = Int4Rows(embedding_dim)

    def forward(
        self,
        indices_L: tp.Tensor,
        offsets_B: tp.Tensor,
        per_sample_weights_L: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """Return each bag's (weighted) sum of dequantised rows, (B, D). See `pool_bags`."""
        bytes_NP, scale_N1, bias_N1 = self.quantise(self.weight)
        length = indices_L.shape[0]
        # One more: there may be no index at all, and places behind the last bag look up a row too.
        indices_L = tp.concatenate([indices_L, tp.cast(tp.Tensor([0]), indices_L.dtype)], dim=0)
        bytes_LP = tp.cast(tp.gather(bytes_NP, 0, indices_L), tp.int32) + ZERO
        high_LP = bytes_LP / CODES
        low_LP = bytes_LP - high_LP * CODES
        codes_LP2 = tp.concatenate([tp.unsqueeze(low_LP, 2), tp.unsqueeze(high_LP, 2)], dim=2)
        codes_LD = tp.cast(tp.flatten(codes_LP2, start_dim=1)[:, : self.embedding_dim], tp.float32)
        rows_LD = codes_LD * tp.gather(scale_N1, 0, indices_L) + tp.gather(bias_N1, 0, indices_L)
        rows_LD = tp.cast(rows_LD, self.weight.dtype)
        places_L = tp.iota((length,), dim=0, dtype=tp.int32)
        return pool_bags(rows_LD, places_L, offsets_B, per_sample_weights_L, self.max_bag_size)
