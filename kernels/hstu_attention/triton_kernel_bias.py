"""The research form's bias of positions and times, as parts of the attention kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def time_bucket(delta, table, SHIFT: tl.constexpr):
    """Differences, int32 or int64 -> buckets, int32, by `buckets.bucket_table`'s entries."""
    # A difference of 0 becomes the pattern of 0.0, far below the pattern of 1.0.
    pattern = tl.maximum(tl.abs(delta).to(tl.float32).to(tl.int32, bitcast=True) - 0x3F800000, 0)
    entry = tl.load(table + (pattern >> SHIFT))
    return (entry >> 32).to(tl.int32) + (pattern >= entry.to(tl.int32)).to(tl.int32)


@triton.jit
def times_of(own_time, rows, length, num_times, BLOCK_M: tl.constexpr):
    """A sequence's first timestamp, the rows' successors' times, and whether all differences fit an int32."""
    earliest = tl.full([BLOCK_M], 0x7FFFFFFFFFFFFFFF, tl.int64)
    latest = -earliest
    count = tl.minimum(length + 1, num_times)
    for start in tl.range(0, count, BLOCK_M):
        index = start + tl.arange(0, BLOCK_M)
        time = tl.load(own_time + tl.minimum(index, count - 1))
        earliest = tl.minimum(earliest, time)
        latest = tl.maximum(latest, time)
    base = tl.min(earliest, axis=0)
    top = tl.max(latest, axis=0)
    # A difference of two int64 that wraps around is negative.
    span = top - base
    narrow = (span >= 0) & (span < 0x7FFFFFFF)
    successor = tl.load(own_time + tl.minimum(rows + 1, count - 1))
    return base, successor, narrow


@triton.jit
def relative_bias(rows, cols, base, successor, narrow, length, own_time,
          position_weights, time_weights, bucket_table, width,
          HAS_TIME: tl.constexpr, BUCKET_SHIFT: tl.constexpr):  # fmt: skip
    """(BLOCK_M, BLOCK_N) float32; see `masks.ResearchMask`."""
    # Clamped: invisible rows and columns may reach beyond the weights.
    last = width - 1
    offset = (last - tl.minimum(rows, last))[:, None] + tl.minimum(cols, last)[None, :]
    bias = tl.load(position_weights + offset).to(tl.float32)
    if HAS_TIME:
        time = tl.load(own_time + tl.minimum(cols, length - 1))
        if narrow:
            delta = (successor - base).to(tl.int32)[:, None] - (time - base).to(tl.int32)[None, :]
            bucket = time_bucket(delta, bucket_table, BUCKET_SHIFT)
        else:
            bucket = time_bucket(successor[:, None] - time[None, :], bucket_table, BUCKET_SHIFT)
        bias += tl.load(time_weights + bucket).to(tl.float32)
    return bias
