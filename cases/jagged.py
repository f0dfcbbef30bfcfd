"""Rows of sequences between the two layouts: padded (B, N, ...) and jagged (L, ...).

Legend: B batch, N sequence, L total jagged length.
"""

from __future__ import annotations

import torch


def offsets_of(lengths_B: torch.Tensor) -> torch.Tensor:
    """(B,) lengths -> (B + 1,) offsets."""
    return torch.cat([lengths_B.new_zeros(1), lengths_B.cumsum(0)])


def pad(values: torch.Tensor, lengths_B: torch.Tensor, width: int) -> torch.Tensor:
    """(L, ...) and (B,) lengths -> (B, width, ...), padded with zeros."""
    padded = values.new_zeros(lengths_B.numel(), width, *values.shape[1:])
    padded[_valid(lengths_B, width)] = values
    return padded


def unpad(padded: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """(B, N, ...) and (B,) lengths -> (L, ...), the valid rows."""
    return padded[_valid(lengths_B, padded.shape[1]).to(padded.device)]


def _valid(lengths_B: torch.Tensor, width: int) -> torch.Tensor:
    return torch.arange(width) < lengths_B[:, None]
