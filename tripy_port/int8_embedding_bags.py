"""Embedding tables in 8 bits with a scale and a bias for each row. Counterpart of
reference/int8_embedding_bags.py, which has the rule.

`tp.quantize` rounds halves to even and saturates at -128 and 127. `tp.dequantize` takes a constant scale
alone, and the scales of looked-up rows follow from the indices. A cast, a product and a sum dequantise them
instead. The codes follow from constants, so that a builder may compute them once.

Legend: N rows of the table, D embedding, B batch (bags), L total number of indices.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.embedding_bags import EmbeddingBag, pool_bags

EPSILON = 1e-8
"""The number that keeps the factor of a constant row finite."""
ZERO = 128
"""The distance between the unsigned codes of fbgemm and the signed ones."""


class Int8Rows(tp.Module):
    """Quantises the rows of a table."""

    def forward(self, weight_ND: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor, tp.Tensor]:
        """(N, D) -> codes (N, D) in int8, scales (N, 1) and biases (N, 1) in float32."""
        weight_ND = tp.cast(weight_ND, tp.float32)
        low_N1 = tp.min(weight_ND, dim=1, keepdim=True)
        range_N1 = tp.max(weight_ND, dim=1, keepdim=True) - low_N1
        steps_ND = (weight_ND - low_N1) * (255.0 / (range_N1 + EPSILON)) - float(ZERO)
        codes_ND = tp.quantize(steps_ND, 1.0, tp.int8)
        return codes_ND, range_N1 / 255.0, low_N1


class Int8EmbeddingBag(EmbeddingBag):
    """A table whose rows are looked up as codes and dequantised. Key: ``weight``, as of a plain table."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_bag_size: int | None = None,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, max_bag_size, dtype)
        self.quantise = Int8Rows()

    def forward(
        self,
        indices_L: tp.Tensor,
        offsets_B: tp.Tensor,
        per_sample_weights_L: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """Return each bag's (weighted) sum of dequantised rows, (B, D). See `pool_bags`."""
        codes_ND, scale_N1, bias_N1 = self.quantise(self.weight)
        length = indices_L.shape[0]
        # One more: there may be no index at all, and places behind the last bag look up a row too.
        indices_L = tp.concatenate([indices_L, tp.cast(tp.Tensor([0]), indices_L.dtype)], dim=0)
        steps_LD = tp.cast(tp.gather(codes_ND, 0, indices_L), tp.float32) + float(ZERO)
        rows_LD = steps_LD * tp.gather(scale_N1, 0, indices_L) + tp.gather(bias_N1, 0, indices_L)
        rows_LD = tp.cast(rows_LD, self.weight.dtype)
        places_L = tp.iota((length,), dim=0, dtype=tp.int32)
        return pool_bags(rows_LD, places_L, offsets_B, per_sample_weights_L, self.max_bag_size)
