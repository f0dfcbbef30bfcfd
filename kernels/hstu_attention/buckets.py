"""The time buckets of research HSTU as a table of exact integer comparisons.

The bucket of a time difference is floor(ln(max(|dt|, 1)) / divisor), with |dt|, logarithm and division in
float32. A logarithm with another last bit changes buckets: at the public divisor, those of 22 differences up
to 3e6 seconds. The kernels therefore take no logarithm. As a function of the float32 |dt|, the bucket is a
staircase, and its edges define it.

Floats of at least 1 have the order of their bit patterns. The table divides the patterns into cells of
2**shift, narrower than a bucket, so that a cell holds at most one edge:

    bucket = base[cell] + (pattern >= edge[cell]),    cell = pattern >> shift,

with the pattern of 1.0 subtracted from all patterns. Base and edge share one int64: a kernel reads one entry
a difference.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

_ONE = 0x3F800000  # the bit pattern of 1.0
_HIGHEST = 0x5F000000  # of 2**63, the largest |int64|
_MANTISSA_BITS = 23
# A table with smaller cells no longer fits a cache beside the keys.
_MOST_CELL_BITS = 7


@dataclass(frozen=True)
class BucketTable:
    """`entries[cell] = base << 32 | edge`, int64 on the CPU; a cell without an edge has the next cell's."""

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
    """The table of a model's buckets, from the definition on the CPU: all devices share it.

    Raises:
        ValueError: the divisor is not positive, or so small that the table is too large.
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
    """`bucket_table`'s entries on a device, cached, and its shift."""
    table = bucket_table(num_buckets, bucket_divisor)
    return table.entries.to(device), table.shift


def _bucket_of_pattern(pattern: torch.Tensor, num_buckets: int, bucket_divisor: float) -> torch.Tensor:
    return _bucket(pattern.to(torch.int32).view(torch.float32), num_buckets, bucket_divisor)
