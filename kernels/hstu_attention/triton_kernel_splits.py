"""Programs that share the columns of a block of rows: their parts, and the sum of their results."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def part_of(begin, stop, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """This program's part of [begin, stop), of SPLITS along the grid's second axis, in whole blocks."""
    if SPLITS > 1:
        blocks = (tl.maximum(stop - begin, 0) + BLOCK_N - 1) // BLOCK_N
        size = (blocks + SPLITS - 1) // SPLITS * BLOCK_N
        begin += tl.program_id(1) * size
        stop = tl.minimum(begin + size, stop)
    return begin, stop


@triton.jit(do_not_specialize=["num_sequences", "count"])
def sum_of_splits_kernel(
    Parts, Out, offsets, num_sequences, count, stride_ol: tl.constexpr, stride_oh: tl.constexpr,
    NUM_HEADS: tl.constexpr, V_DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Out = the sum of Parts, (SPLITS, rows, NUM_HEADS, V_DIM) in float32, in order. Grid: blocks of `count`.

    rows is the last one of offsets, (num_sequences + 1,), as in the kernel that writes the parts. Rows of Out
    behind it stay as they are.

    Args:
        Out: (L, NUM_HEADS, V_DIM), rows stride_ol and heads stride_oh apart.
        count: L * NUM_HEADS * V_DIM.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    part = tl.load(offsets + num_sequences).to(tl.int64) * NUM_HEADS * V_DIM
    inside = at < tl.minimum(part, count)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(Parts + split * part + at, mask=inside, other=0.0)
    head = at // V_DIM
    place = head // NUM_HEADS * stride_ol + head % NUM_HEADS * stride_oh + at % V_DIM
    tl.store(Out + place, total.to(Out.dtype.element_ty), mask=inside)
