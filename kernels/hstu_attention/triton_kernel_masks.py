"""The attention kernel's masks: visible pairs, and the columns that a block of rows visits."""

from __future__ import annotations

import triton
import triton.language as tl

# More than any position, and far from the end of int32.
_BEHIND = tl.constexpr(1 << 30)


@triton.jit
def visible_pairs(
    rows, cols, length, first_target, contextual, window,
    HAS_TARGETS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CONTEXT: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N) bool, True where a row attends to a column; see `masks.ProductionMask`."""
    if not (HAS_TARGETS or HAS_CONTEXT):
        # A column behind the end lies to the right of every stored row.
        if HAS_WINDOW:
            return (rows[:, None] - cols[None, :]).to(tl.uint32, bitcast=True) <= window
        return rows[:, None] >= cols[None, :]
    row_position = rows
    col_position = cols
    last_position = first_target
    if HAS_CONTEXT:
        merged = tl.maximum(contextual - 1, 0)
        row_position = tl.maximum(rows - merged, 0)
        col_position = tl.maximum(cols - merged, 0)
        last_position = first_target - merged
    row_position = tl.minimum(row_position, last_position)
    # A column behind the end lies behind all rows.
    col_position = tl.where(cols < length, tl.minimum(col_position, last_position), _BEHIND)
    if HAS_WINDOW:
        distance = (row_position - 1)[:, None] - col_position[None, :]
        visible = distance.to(tl.uint32, bitcast=True) < window
    else:
        visible = row_position[:, None] > col_position[None, :]
    visible = visible | (rows[:, None] == cols[None, :])
    if HAS_CONTEXT:
        visible = visible | ((rows < contextual)[:, None] & (col_position < last_position)[None, :])
    return visible


@triton.jit
def column_ranges(start_m, length, first_target, contextual, window,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_TARGETS: tl.constexpr,
                  HAS_WINDOW: tl.constexpr, HAS_CONTEXT: tl.constexpr,
                  APART: tl.constexpr = False):  # fmt: skip
    """Ranges of columns for rows [start_m, start_m + BLOCK_M): [low, whole) cut, [whole, cut) whole, [cut,
    high) cut, [own, end) the targets' own, cut. All bounds but high and end are multiples of BLOCK_N.

    APART: without the block's contextual rows, which have ranges of their own, `context_ranges`.
    """
    end = tl.minimum(start_m + BLOCK_M, length)
    low = 0
    whole = 0
    cut = start_m
    high = end
    own = end
    if HAS_TARGETS:
        cut = tl.minimum(cut, first_target)
        if start_m >= first_target:
            high = tl.maximum(first_target, 0)
            own = tl.maximum(start_m // BLOCK_N, (high + BLOCK_N - 1) // BLOCK_N) * BLOCK_N
    merged = 0
    if HAS_CONTEXT:
        merged = tl.maximum(contextual - 1, 0)
        # No history: every column counts as the same position.
        cut = tl.where(first_target > merged, cut, 0)
    if HAS_WINDOW:
        first = tl.minimum(start_m, first_target) - window
        low = tl.where(first > merged, first // BLOCK_N * BLOCK_N, 0)
        last = tl.minimum(end - 1, first_target) - window
        whole = tl.where(last > merged, (last + BLOCK_N - 1) // BLOCK_N * BLOCK_N, 0)
    cut = cut // BLOCK_N * BLOCK_N
    if HAS_CONTEXT and not APART:
        if start_m < contextual:
            # Behind the block, contextual rows alone see the history, and all of it. No row of the block
            # sees a target there.
            low = 0
            whole = (end + BLOCK_N - 1) // BLOCK_N * BLOCK_N
            cut = tl.where(first_target > merged, tl.maximum(first_target, 0) // BLOCK_N * BLOCK_N, 0)
            high = tl.maximum(first_target, end)
            own = end
    # Without a whole block, all blocks count as cut.
    none = whole >= cut
    whole = tl.where(none, low, whole)
    cut = tl.where(none, low, cut)
    return low, whole, cut, high, own, end


@triton.jit
def context_ranges(start_m, length, first_target, contextual, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The same for the contextual rows of [start_m, start_m + BLOCK_M) alone: they see all history."""
    end = tl.minimum(tl.minimum(start_m + BLOCK_M, contextual), length)
    # No history: a row sees itself alone.
    cut = tl.where(first_target >= contextual, first_target // BLOCK_N * BLOCK_N, 0)
    return 0, 0, cut, tl.maximum(first_target, end), end, end
