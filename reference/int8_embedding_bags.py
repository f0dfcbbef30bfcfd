"""Embedding tables in 8 bits with a scale and a bias for each row.

The rule is that of fbgemm's ``FloatToFused8BitRowwiseQuantized``, whose rows are D codes, a float32 scale and
a float32 bias. Codes, scales and biases follow from float32 numbers in a model of any type, the float64
oracle's included: the rounding to codes is part of the function.

    low    = min of the row
    range  = max of the row - low
    scale  = range / 255
    code   = round((x - low) * (255 / (range + 1e-8)))      halves to even
    value  = code * scale + low

fbgemm stores codes as unsigned bytes, 0 to 255. Tripy has signed bytes alone, so codes here are 128 less,
-128 to 127, and saturate there. 128 is subtracted before the rounding, because the port's operation rounds to
signed bytes. A code may change by one where its pre-image lies within round-off of a tie, and nowhere else.

Rows are dequantised in float32, rounded to the model's type, and then summed as those of a plain table.

Legend: N rows of the table, D embedding, B batch (bags), L total number of indices.
"""

from __future__ import annotations

import torch
from torch import nn

from reference.embedding_bags import EmbeddingBag, NumpyRandom, pool_bags

EPSILON = 1e-8
"""The number that keeps the factor of a constant row finite."""
ZERO = 128
"""The distance between the unsigned codes of fbgemm and the signed ones."""


class Int8Rows(nn.Module):
    """Quantises the rows of a table, by the rule above."""

    def forward(self, weight_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(N, D) -> codes (N, D) in int8, scales (N, 1) and biases (N, 1) in float32."""
        weight_ND = weight_ND.float()
        low_N1 = weight_ND.amin(1, keepdim=True)
        range_N1 = weight_ND.amax(1, keepdim=True) - low_N1
        steps_ND = (weight_ND - low_N1) * (255.0 / (range_N1 + EPSILON)) - ZERO
        codes_ND = steps_ND.round().clamp(-128.0, 127.0).to(torch.int8)
        return codes_ND, range_N1 / 255.0, low_N1


class Int8EmbeddingBag(EmbeddingBag):
    """A table whose rows are looked up as codes and dequantised. Key: ``weight``, as of a plain table."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, sparse: bool = True, rng: NumpyRandom | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, sparse, rng)
        self.quantise = Int8Rows()

    def forward(
        self,
        indices_L: torch.Tensor,
        offsets_B: torch.Tensor,
        per_sample_weights_L: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each bag's (weighted) sum of dequantised rows, (B, D). See `pool_bags`."""
        codes_ND, scale_N1, bias_N1 = self.quantise(self.weight)
        # float32, or the float64 of the oracle.
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        steps_LD = codes_ND[indices_L].to(wide) + ZERO
        rows_LD = steps_LD * scale_N1[indices_L].to(wide) + bias_N1[indices_L].to(wide)
        places_L = torch.arange(indices_L.shape[0], device=indices_L.device)
        return pool_bags(rows_LD.to(self.weight.dtype), places_L, offsets_B, per_sample_weights_L)
