"""The Triton forms of `kernels.dlrm.bags`.

A tile is (bags, columns). Each step of the loop over the bags' indices loads one row of every bag. A program
thus has as many independent reads of whole rows in flight as its tile has bags. `embedding_bags` has tiles of
one table, whose bags lie side by side in the memory of offsets and indices. With the interaction, a tile has
one row of the batch in all tables. Rows of codes are dequantised in registers.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.dlrm.interaction_triton import block_sizes, store_interaction
from kernels.dlrm.tables import Bags, TableGroup

# Elements of a tile of `embedding_bags`, and its most bags: those of a tile wait for the longest one, and few
# elements leave registers for many tiles. By a sweep in benchmarks/results/quantisation.md.
_ELEMENTS = 1024
_MOST_BAGS = 16
_BAG_WARPS = 1
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
    address, bag, wanted, indices_ptr, weights_ptr, offsets_ptr,
    ELEMENT: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, ROUNDED: tl.constexpr,
    WEIGHTED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ALIGNMENT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Sums (bags of the tile, BD) in float32; zero where ``wanted`` is false. Tables lie at ``address``.

    With AHEAD, a bag's next index is on its way while the row of this one is.
    """
    column = tl.arange(0, BD)
    at = tl.load(offsets_ptr + bag, mask=wanted, other=0)
    end = tl.load(offsets_ptr + bag + 1, mask=wanted, other=0)
    total = tl.zeros((bag.shape[0], BD), dtype=tl.float32)
    longest = tl.max(end - at, axis=0)
    if AHEAD:
        index = tl.load(indices_ptr + at, mask=at < end, other=0).to(tl.int64)
    while longest > 0:
        more = at < end
        if AHEAD:
            next_index = tl.load(indices_ptr + at + 1, mask=at + 1 < end, other=0).to(tl.int64)
        else:
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
        if AHEAD:
            index = next_index
        longest -= 1
    return total


@triton.jit
def _bags_kernel(
    out_ptr, out_stride, batch, addresses_ptr, indices_ptr, weights_ptr, offsets_ptr,
    ELEMENT: tl.constexpr, BITS: tl.constexpr, ROW_BYTES: tl.constexpr, WEIGHTED: tl.constexpr,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, ALIGNMENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    table = tl.program_id(1).to(tl.int64)
    wanted = row < batch
    total = pool(
        tl.load(addresses_ptr + table), table * batch + row, wanted, indices_ptr, weights_ptr, offsets_ptr,
        ELEMENT, BITS, ROW_BYTES, out_ptr.dtype.element_ty, WEIGHTED, D, BD, ALIGNMENT, AHEAD=True,
    )  # fmt: skip
    column = tl.arange(0, BD)
    at = row[:, None] * out_stride + table * D + column[None, :]
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
    wanted = (vector > 0) & (vector <= T)
    address = tl.load(addresses_ptr + vector - 1, mask=wanted, other=0)
    total = pool(
        address, (vector - 1).to(tl.int64) * batch + row, wanted, indices_ptr, weights_ptr, offsets_ptr,
        ELEMENT, BITS, ROW_BYTES, dense_ptr.dtype.element_ty, WEIGHTED, D, BD, ALIGNMENT, AHEAD=False,
    )  # fmt: skip
    column = tl.arange(0, BD)
    dense = tl.load(dense_ptr + row * D + column, mask=column < D, other=0.0)
    features = tl.where(vector[:, None] == 0, dense[None, :], total.to(dense_ptr.dtype.element_ty))
    store_interaction(dense, features, out_ptr + row * out_stride, T + 1, D, ITSELF, BF, BD)


_TYPES = {
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
        "ELEMENT": _TYPES[group.tables[0].dtype],
        "BITS": group.bits,
        "ROW_BYTES": row_bytes,
        "WEIGHTED": bags.weights_L is not None,
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
    columns = triton.next_power_of_2(group.columns)
    rows = max(1, min(_MOST_BAGS, _ELEMENTS // columns))
    _bags_kernel[(triton.cdiv(batch, rows), tables)](
        out,
        out.stride(0),
        batch,
        *tensors,
        **facts,
        BR=rows,
        BD=columns,
        num_warps=_BAG_WARPS,
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
        T=len(group.tables),
        ITSELF=itself,
        BF=block_vectors,
        BD=block_columns,
        num_warps=_INTERACTION_WARPS,
    )
