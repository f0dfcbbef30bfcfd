"""Rows behind a cache, as the launch of the attention takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Appended:
    """New rows behind cached ones.

    Attributes:
        firsts: (B,) int, the position of each sequence's first new row.
        capacity: rows of a sequence in the cache.
        max_new: most new rows of a sequence, or more.
    """

    firsts: torch.Tensor
    capacity: int
    max_new: int

    def blocks(self, block_m: int) -> int:
        """Most blocks of so many positions that a sequence's new rows touch."""
        return (self.max_new + 2 * block_m - 2) // block_m
