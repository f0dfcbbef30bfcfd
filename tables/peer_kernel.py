"""A Triton kernel that reads rows of a table by id from the memory of several GPUs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_rows_kernel(
    ids_L,
    near,
    distances_W,
    ends_W,
    rows_LE,
    count,
    columns,
    SHARDS: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Write the rows of ids. A program has `ROWS` ids and `COLUMNS` columns.

    Addresses are distances from one pointer, so that Triton knows how they are aligned.

    Args:
        ids_L: (L,) int64, rows of the table.
        near: The first element of some shard.
        distances_W: (W,) int64, the first element of each shard, in `UNIT` elements behind `near`.
        ends_W: (W,) int64, the row behind each shard's last one, ascending.
        rows_LE: (L, E), the result.
        count: L.
        columns: E.
        SHARDS: W.
        UNIT: Elements; it divides all distances.
        ROWS, COLUMNS: Powers of two.
        IS_WHOLE: Whether `COLUMNS` divides E.
    """
    place_L = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_id_L = place_L < count
    id_L = tl.load(ids_L + place_L, mask=is_id_L, other=0)
    distance_L = tl.zeros([ROWS], tl.int64)
    first_L = tl.zeros([ROWS], tl.int64)
    for shard in tl.static_range(SHARDS):
        is_here_L = id_L < tl.load(ends_W + shard)
        if shard:
            is_here_L &= id_L >= tl.load(ends_W + shard - 1)
            first_L = tl.where(is_here_L, tl.load(ends_W + shard - 1), first_L)
        distance_L = tl.where(is_here_L, tl.load(distances_W + shard), distance_L)
    column_E = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source = distance_L[:, None] * UNIT + (id_L - first_L)[:, None] * columns + column_E[None, :]
    target = place_L.to(tl.int64)[:, None] * columns + column_E[None, :]
    is_element = is_id_L[:, None] if IS_WHOLE else is_id_L[:, None] & (column_E < columns)[None, :]
    row = tl.load(near + source, mask=is_element)
    tl.store(rows_LE + target, row, mask=is_element)
