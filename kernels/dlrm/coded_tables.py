"""Embedding tables whose rows are codes of 8 or 4 bits with a scale and a bias, in fbgemm's layout.

A row is its codes, then the scale, then the bias:

    8 bits    D bytes      float32 scale and bias
    4 bits    D / 2 bytes  float16 scale and bias; an even column is the low half of its byte
    value = code * scale + bias, in float32, rounded after the product and after the sum

Codes are unsigned. A row is one piece of memory, so that a lookup reads its scale from where its codes are.

Legend: T tables, N rows of a table, D embedding, L number of indices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.dlrm.checks import KernelError, require, require_rank, require_shape
from kernels.dlrm.tables import TableGroup

BITS = (8, 4)
_ENDS = {8: torch.float32, 4: torch.float16}
"""Type of a row's scale and bias by the codes' bits."""
_ZERO = 128
"""The distance between unsigned bytes and the signed ones of the models' quantisers."""
_COLUMN_MULTIPLE = 4
"""Rows of such widths have their scale at an address that the GPU can read at once."""


def row_bytes(columns: int, bits: int) -> int:
    """Bytes of a row of ``columns`` codes with its scale and bias."""
    return columns * bits // 8 + 2 * _ENDS[bits].itemsize


def packed_rows(
    codes_NP: torch.Tensor, scale_N1: torch.Tensor, bias_N1: torch.Tensor, bits: int
) -> torch.Tensor:
    """A table's rows in fbgemm's layout, (N, bytes of a row) uint8.

    Args:
        codes_NP: (N, P) int8, bytes less 128, as `reference.int8_embedding_bags` and
            `reference.int4_embedding_bags` quantise a table.
        scale_N1, bias_N1: (N, 1) float32; half precision must hold them for 4 bits.
        bits: 8 or 4.

    Raises:
        KernelError: a tensor does not fit; the message names it.
    """
    require(bits in BITS, "bits", bits, "give 8 or 4")
    require_rank("codes_NP", codes_NP, 2, "(rows, bytes)")
    require(codes_NP.dtype == torch.int8, "codes_NP.dtype", codes_NP.dtype, "give torch.int8")
    ends = []
    for name, end in (("scale_N1", scale_N1), ("bias_N1", bias_N1)):
        require_shape(name, end, (codes_NP.shape[0], 1))
        stored = end.to(_ENDS[bits])
        if not torch.equal(stored.to(end.dtype), end):
            raise KernelError(f"{name} has numbers that {_ENDS[bits]} cannot hold: round them before")
        ends.append(stored.contiguous().view(torch.uint8))
    unsigned = (codes_NP.to(torch.int16) + _ZERO).to(torch.uint8)
    return torch.cat((unsigned, *ends), dim=1)


class CodedTableGroup(TableGroup):
    """Tables of coded rows of one width, on one device, without a copy. Results are float32 by default.

    Args:
        tables: (N, bytes of a row) uint8 each, as `packed_rows` gives them.
        bits: 8 or 4.

    Raises:
        KernelError: a table does not fit, or D is no multiple of 4; the message names it.
    """

    def __init__(self, tables: Sequence[torch.Tensor], bits: int) -> None:
        require(bits in BITS, "bits", bits, "give 8 or 4")
        self.bits = bits
        super().__init__(tables)
        dtype = self.tables[0].dtype
        require(dtype == torch.uint8, "tables[0].dtype", dtype, "give rows of torch.uint8")
        fix = f"give rows of a multiple of {_COLUMN_MULTIPLE} codes and two numbers of {_ENDS[bits]} behind"
        require(self.columns % _COLUMN_MULTIPLE == 0, "columns", self.columns, fix)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def _columns_of(self, length: int) -> int:
        return (length - row_bytes(0, self.bits)) * 8 // self.bits

    def rows(self, number: int, indices_L: torch.Tensor) -> torch.Tensor:
        """The dequantised rows of a table, (L, D) float32."""
        bytes_LP = self.tables[number][indices_L.long()]
        end = _ENDS[self.bits].itemsize
        codes = self.columns * self.bits // 8
        codes_LP, scale, bias = bytes_LP.split((codes, end, end), dim=1)
        scale_L1, bias_L1 = (part.contiguous().view(_ENDS[self.bits]).float() for part in (scale, bias))
        if self.bits == 4:
            codes_LP = torch.stack((codes_LP & 15, codes_LP >> 4), -1).flatten(1)
        return codes_LP.float() * scale_L1 + bias_L1
