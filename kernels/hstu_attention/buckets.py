"""The time buckets of research HSTU as a table of exact integer comparisons.

The bucket of a time difference is floor(ln(max(|dt|, 1)) / divisor) with |dt|, the logarithm and the
division in
float32: it is part of the model's function, and another logarithm, off by one unit in the last place, gives
    other
buckets (at the public divisor, for 22 differences up to 3e6 seconds). So a kernel must not take a
logarithm. It doesn't have to: seen as a function of the float32 |dt|, the bucket is a staircase, which is
known by its edges.

A float32 that is at least 1 orders like its bit pattern. The patterns are cut into cells of 2**shift, each
narrower than a bucket, so that a cell holds one edge at most, and

    bucket = base[cell] + (pattern >= edge[cell]),    cell = pattern >> shift,

with the pattern of 1.0 subtracted from all patterns.

Base and edge share one int64, so that a kernel reads one table entry a difference.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

_ONE = 0x3F800000  # the bit pattern of 1.0
_HIGHEST = 0x5F000000  # of 2**63, the largest |int64|
_MANTISSA_BITS = 23
# A smaller cell than this needs a table that no longer fits a cache beside the keys.
_MOST_CELL_BITS = 7


@dataclass(frozen=True)
class BucketTable:
    """`entries[cell] = base << 32 | edge`, int64 on the CPU; a cell without an edge has that of the next."""

    entries: torch.Tensor
    shift: int


def time_bucket(delta: torch.Tensor, num_buckets: int, bucket_divisor: float) -> torch.Tensor:
    """The definition, in torch: int64 differences in seconds, any shape -> int64 in [0, num_buckets]."""
    magnitude = delta.abs().clamp(min=1).to(torch.float32)
    return _bucket(magnitude, num_buckets, bucket_divisor)


def _bucket(magnitude: torch.Tensor, num_buckets: int, bucket_divisor: float) -> torch.Tensor:
    return (torch.log(magnitude) / bucket_divisor).to(torch.int64).clamp(min=0, max=num_buckets)


@functools.lru_cache(maxsize=64)
def bucket_table(num_buckets: int, bucket_divisor: float) -> BucketTable:
    """The table of a model's buckets. Evaluates the definition on the CPU, so that every device agrees with
    it.

    Raises:
        ValueError: a divisor so small that the table would be too large.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets={num_buckets}: must be at least 1")
    if not (math.isfinite(bucket_divisor) and bucket_divisor > 0):
        raise ValueError(f"bucket_divisor={bucket_divisor}: must be positive and finite")
    cell_bits = 0
    # The widest cell of an octave is its first, log2(1 + 2**-bits) wide.
    while math.log(1 + 2.0**-cell_bits) >= bucket_divisor:
        cell_bits += 1
    shift = _MANTISSA_BITS - cell_bits
    if cell_bits > _MOST_CELL_BITS:
        raise ValueError(
            f"bucket_divisor={bucket_divisor}: buckets this narrow need a table that fits no cache; "
            "use a divisor of at least 0.01, or the eager backend"
        )
    first = torch.arange(_ONE, _HIGHEST + 1, 1 << shift, dtype=torch.int64)
    last = (first + (1 << shift) - 1).clamp(max=_HIGHEST)
    base = _bucket_of_pattern(first, num_buckets, bucket_divisor)
    has_edge = _bucket_of_pattern(last, num_buckets, bucket_divisor) > base
    low, high = first, last
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        above = _bucket_of_pattern(middle, num_buckets, bucket_divisor) > base
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    edge = torch.where(has_edge, high, last + 1) - _ONE
    entries = (base << 32) | edge
    return BucketTable(entries=entries, shift=shift)


@functools.lru_cache(maxsize=64)
def bucket_table_on(
    num_buckets: int, bucket_divisor: float, device: torch.device
) -> tuple[torch.Tensor, int]:
    """`bucket_table`'s entries on a device, kept there, and its shift."""
    table = bucket_table(num_buckets, bucket_divisor)
    return table.entries.to(device), table.shift


def _bucket_of_pattern(pattern: torch.Tensor, num_buckets: int, bucket_divisor: float) -> torch.Tensor:
    return _bucket(pattern.to(torch.int32).view(torch.float32), num_buckets, bucket_divisor)
