"""The Triton forms of `kernels.dlrm.bags`: a program looks up one row of the batch in several tables.

A tile is (tables, columns). Each step of the loop over a bag's indices loads one row of every table of the
tile. A program thus has as many independent reads of whole rows in flight as its tile has tables. Rows of
codes are dequantised in registers.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.dlrm.interaction_triton import block_sizes, store_interaction
from kernels.dlrm.tables import Bags, TableGroup

# Tables of a tile of `embedding_bags`: 16 rows of 128 float32 are 8 KiB in flight a program.
_TABLES = 16
_BAG_WARPS = 2
# Warps of a tile of rows of codes, by a sweep in benchmarks/results/quantisation.md.
_CODED_WARPS = 1
_INTERACTION_WARPS = 4


@triton.jit
def dequantised(rows, more, BITS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ALIGNMENT: tl.constexpr):
    """Float32 values (rows, BD) of coded rows at addresses; zero in rows without ``more`` and behind D."""
    byte = tl.arange(0, BD * BITS // 8)
    codes_ptr = tl.multiple_of(rows.to(tl.pointer_type(tl.uint8)), ALIGNMENT)
    inside = more[:, None] & (byte[None, :] < D * BITS // 8)
    codes = tl.load(codes_ptr[:, None] + byte[None, :], mask=inside, other=0)
    if BITS == 4:
        codes = tl.interleave(codes & 15, codes >> 4)
        ends_ptr = (rows + D // 2).to(tl.pointer_type(tl.float16))
    else:
        ends_ptr = (rows + D).to(tl.pointer_type(tl.float32))
    scale = tl.load(ends_ptr, mask=more, other=0.0).to(tl.float32)
    bias = tl.load(ends_ptr + 1, mask=more, other=0.0).to(tl.float32)
    values = codes.to(tl.float32) * scale[:, None] + bias[:, None]
    if BD != D:
        values = tl.where(tl.arange(0, BD)[None, :] < D, values, 0.0)
    return values


@triton.jit
def pool(
    table, wanted, row, batch, addresses_ptr, indices_ptr, weights_ptr, offsets_ptr,
    ELEMENT: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, ROUNDED: tl.constexpr,
    WEIGHTED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Sums (tables of the tile, BD) in float32 of the bags of ``row``; zero where ``wanted`` is false."""
    column = tl.arange(0, BD)
    address = tl.load(addresses_ptr + table, mask=wanted, other=0)
    bag = table.to(tl.int64) * batch + row
    at = tl.load(offsets_ptr + bag, mask=wanted, other=0)
    end = tl.load(offsets_ptr + bag + 1, mask=wanted, other=0)
    total = tl.zeros((table.shape[0], BD), dtype=tl.float32)
    longest = tl.max(end - at, axis=0)
    while longest > 0:
        more = at < end
        index = tl.load(indices_ptr + at, mask=more, other=0).to(tl.int64)
        rows = address + index * ROW_BYTES
        if BITS:
            values = dequantised(rows, more, BITS, D, BD, ALIGNMENT).to(ROUNDED).to(tl.float32)
        else:
            # The compiler cannot see the alignment of an address made of an integer, and would load single
            # elements.
            rows = tl.multiple_of(rows.to(tl.pointer_type(ELEMENT)), ALIGNMENT)
            inside = more[:, None] & (column[None, :] < D)
            values = tl.load(rows[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if WEIGHTED:
            values *= tl.load(weights_ptr + at, mask=more, other=0.0).to(tl.float32)[:, None]
        total += values
        at += 1
        longest -= 1
    return total


@triton.jit
def _bags_kernel(
    out_ptr, out_stride, batch, addresses_ptr, indices_ptr, weights_ptr, offsets_ptr,
    ELEMENT: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, WEIGHTED: tl.constexpr,
    T: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, ALIGNMENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    table = tl.program_id(1) * BT + tl.arange(0, BT)
    wanted = table < T
    total = pool(
        table, wanted, row, batch, addresses_ptr, indices_ptr, weights_ptr, offsets_ptr,
        ELEMENT, BITS, ROW_BYTES, out_ptr.dtype.element_ty, WEIGHTED, D, BD, ALIGNMENT,
    )  # fmt: skip
    column = tl.arange(0, BD)
    at = row * out_stride + table[:, None] * D + column[None, :]
    inside = wanted[:, None] & (column[None, :] < D)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _bags_interaction_kernel(
    dense_ptr, out_ptr, out_stride, batch, addresses_ptr, indices_ptr, weights_ptr, offsets_ptr,
    ELEMENT: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, WEIGHTED: tl.constexpr,
    T: tl.constexpr, D: tl.constexpr, ITSELF: tl.constexpr, BF: tl.constexpr, BD: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    # Vector 0 is the dense one, vector v table v - 1.
    vector = tl.arange(0, BF)
    total = pool(
        vector - 1, (vector > 0) & (vector <= T), row, batch,
        addresses_ptr, indices_ptr, weights_ptr, offsets_ptr,
        ELEMENT, BITS, ROW_BYTES, dense_ptr.dtype.element_ty, WEIGHTED, D, BD, ALIGNMENT,
    )  # fmt: skip
    column = tl.arange(0, BD)
    dense = tl.load(dense_ptr + row * D + column, mask=column < D, other=0.0)
    features = tl.where(vector[:, None] == 0, dense[None, :], total.to(dense_ptr.dtype.element_ty))
    store_interaction(dense, features, out_ptr + row * out_stride, T + 1, D, ITSELF, BF, BD)


_ELEMENTS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.uint8: tl.uint8,
}


def _lookup_arguments(group: TableGroup, bags: Bags) -> tuple[list[torch.Tensor], dict[str, object]]:
    """The tensors that `pool` reads, and its compile-time constants."""
    row_bytes = group.tables[0].shape[1] * group.tables[0].element_size()
    # The greatest common divisor of these numbers divides the address of every row.
    alignment = math.gcd(16, row_bytes, *(table.data_ptr() for table in group.tables))
    weights = bags.indices_L if bags.weights_L is None else bags.weights_L
    facts = {
        "ELEMENT": _ELEMENTS[group.tables[0].dtype],
        "BITS": group.bits,
        "ROW_BYTES": row_bytes,
        "WEIGHTED": bags.weights_L is not None,
        "T": len(group.tables),
        "D": group.columns,
        "ALIGNMENT": alignment,
        # A dequantised value is rounded after the product: one instruction for product and sum rounds once.
        "enable_fp_fusion": group.bits == 0,
    }
    return [group.addresses_T, bags.indices_L, weights, bags.offsets], facts


def launch_bags(group: TableGroup, bags: Bags, out: torch.Tensor) -> None:
    """Write the pooled rows of all tables to ``out`` (B, T, D)."""
    tensors, facts = _lookup_arguments(group, bags)
    batch, tables = out.shape[:2]
    block_tables = min(_TABLES, triton.next_power_of_2(tables))
    _bags_kernel[(batch, triton.cdiv(tables, block_tables))](
        out,
        out.stride(0),
        batch,
        *tensors,
        **facts,
        BT=block_tables,
        BD=triton.next_power_of_2(group.columns),
        num_warps=_CODED_WARPS if group.bits else _BAG_WARPS,
    )


def launch_bags_interaction(
    dense_BD: torch.Tensor, group: TableGroup, bags: Bags, itself: bool, out: torch.Tensor
) -> None:
    """Write the interaction of ``dense_BD`` and the pooled rows to ``out``."""
    tensors, facts = _lookup_arguments(group, bags)
    batch = dense_BD.shape[0]
    block_vectors, block_columns = block_sizes(len(group.tables) + 1, group.columns)
    _bags_interaction_kernel[(batch,)](
        dense_BD,
        out,
        out.stride(0),
        batch,
        *tensors,
        **facts,
        ITSELF=itself,
        BF=block_vectors,
        BD=block_columns,
        num_warps=_INTERACTION_WARPS,
    )
