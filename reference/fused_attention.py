"""Packing and padding of a batch's valid rows, for the models with fused attention.

The shapes of a compiled graph cannot follow from values, so the caller says which rows are valid.

Legend: B batch, N sequence, L valid rows, D embedding.
"""

from __future__ import annotations

import torch

from kernels.head_sizes import LARGEST_HEAD
from reference.validation import require


def row_offsets(x_lengths: torch.Tensor) -> torch.Tensor:
    """(B,) int, valid rows of each sequence -> (B + 1,) int, where each sequence begins, and L."""
    return torch.cat([x_lengths.new_zeros(1), torch.cumsum(x_lengths, 0)])


def valid_rows_of(x: torch.Tensor, valid_rows: torch.Tensor) -> torch.Tensor:
    """The valid rows, one after the other.

    Args:
        x: (B, N, ...), anything in the padded rows.
        valid_rows: (L,) int, ascending: n + N * b for each valid row n of each sequence b.

    Returns:
        (L, ...).
    """
    return x.flatten(0, 1)[valid_rows]


def padded_rows(
    values: torch.Tensor, x_lengths: torch.Tensor, x_offsets: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """Inverse of `valid_rows_of`: valid rows at their places, zeros elsewhere.

    Args:
        values: (L, D).
        x_lengths, x_offsets: see `row_offsets`.
        like: (B, N, D), gives N.

    Returns:
        (B, N, D).
    """
    row_N = torch.arange(like.size(1), device=values.device)
    row_BN = row_N.unsqueeze(0) + x_offsets[:-1].unsqueeze(1)
    is_valid_BN = row_N.unsqueeze(0) < x_lengths.unsqueeze(1)
    # Row 0 of the gathered tensor is zero.
    padded_from = torch.cat([values.new_zeros(1, values.size(1)), values])
    return padded_from[torch.where(is_valid_BN, row_BN + 1, 0)]


def require_heads(**dims: int) -> None:
    """Checks that the kernel takes heads of these sizes.

    Raises:
        ValueError: naming the field, its value and the largest.
    """
    for name, dim in dims.items():
        require(dim <= LARGEST_HEAD, name, dim, f"fused attention takes heads of at most {LARGEST_HEAD}")
