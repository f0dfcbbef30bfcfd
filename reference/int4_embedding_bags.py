"""Embedding tables in 4 bits with a scale and a bias for each row.

The rule is that of fbgemm's ``FloatToFusedNBitRowwiseQuantizedSBHalf`` with 4 bits. A row has two codes a
byte, then scale and bias in half precision. As in `reference.int8_embedding_bags`, codes, scales and biases
follow from float32 numbers in a model of any type.

    low    = min of the row, rounded to half precision
    range  = max of the row - low
    scale  = range / 15, rounded to half precision; 1 in place of 0
    code   = round((x - low) * (1 / scale))      halves to even, 0 to 15
    value  = code * scale + low

The range of a row of equal numbers is negative if its low end was rounded up, and so is the scale.

The code of an even column is the low half of a byte, and that of the next column the high half. Tripy has
signed bytes alone, so bytes here are 128 less than fbgemm's. A row of an odd number of columns ends with a
code of 0, which fbgemm does not have.

Legend: N rows of the table, D embedding, P bytes of a row, B batch (bags), L total number of indices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from reference.embedding_bags import EmbeddingBag, NumpyRandom, pool_bags

CODES = 16
"""Codes of 4 bits."""
ZERO = 128
"""The distance between the unsigned bytes of fbgemm and the signed ones."""


class Int4Rows(nn.Module):
    """Quantises the rows of a table, by the rule above.

    Args:
        embedding_dim: D.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim

    def forward(self, weight_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(N, D) -> bytes (N, P) in int8, scales (N, 1) and biases (N, 1) in float32."""
        weight_ND = weight_ND.float()
        low_N1 = weight_ND.amin(1, keepdim=True).half().float()
        range_N1 = weight_ND.amax(1, keepdim=True) - low_N1
        scale_N1 = (range_N1 / (CODES - 1.0)).half().float()
        scale_N1 = torch.where(scale_N1 == 0.0, 1.0, scale_N1)
        steps_ND = (weight_ND - low_N1) * (1.0 / scale_N1)
        codes_ND = steps_ND.round().clamp(0.0, CODES - 1.0)
        codes_ND = F.pad(codes_ND, (0, self.embedding_dim % 2))
        bytes_NP = codes_ND[:, 0::2] + CODES * codes_ND[:, 1::2] - ZERO
        return bytes_NP.to(torch.int8), scale_N1, low_N1


class Int4EmbeddingBag(EmbeddingBag):
    """A table whose rows are looked up as bytes and dequantised. Key: ``weight``, as of a plain table."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, sparse: bool = True, rng: NumpyRandom | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, sparse, rng)
        self.quantise = Int4Rows(embedding_dim)

    def forward(
        self,
        indices_L: torch.Tensor,
        offsets_B: torch.Tensor,
        per_sample_weights_L: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each bag's (weighted) sum of dequantised rows, (B, D). See `pool_bags`."""
        bytes_NP, scale_N1, bias_N1 = self.quantise(self.weight)
        bytes_LP = bytes_NP[indices_L].to(torch.int32) + ZERO
        codes_LP2 = torch.stack((bytes_LP % CODES, bytes_LP // CODES), -1)
        # float32, or the float64 of the oracle.
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        codes_LD = codes_LP2.flatten(1)[:, : self.embedding_dim].to(wide)
        rows_LD = codes_LD * scale_N1[indices_L].to(wide) + bias_N1[indices_L].to(wide)
        places_L = torch.arange(indices_L.shape[0], device=indices_L.device)
        return pool_bags(rows_LD.to(self.weight.dtype), places_L, offsets_B, per_sample_weights_L)
