"""Packing and padding of a batch's valid rows, for the models with fused attention.

Counterpart of reference/fused_attention.py. The number of valid rows is a dimension of an input: shapes of a
graph cannot follow from values.

Legend: B batch, N sequence, L valid rows, D embedding.
"""

from __future__ import annotations

import nvtripy as tp

from kernels.head_sizes import LARGEST_HEAD
from tripy_port.validation import require


def row_offsets(x_lengths: tp.Tensor) -> tp.Tensor:
    """(B,) int, valid rows of each sequence -> (B + 1,) int32, where each sequence begins, and L."""
    lengths_1B = tp.unsqueeze(tp.cast(x_lengths, tp.int32), 0)
    b = x_lengths.shape[0]
    # Not `tp.cumsum`, a matrix product in floating point: it would round to TF32 where products do.
    row, column = (tp.iota((b + 1, b), dim=dim, dtype=tp.int32) for dim in (0, 1))
    return tp.sum(tp.where(column < row, lengths_1B, 0), dim=1)


def valid_rows_of(x: tp.Tensor, valid_rows: tp.Tensor) -> tp.Tensor:
    """The valid rows, one after the other.

    Args:
        x: (B, N, ...), anything in the padded rows.
        valid_rows: (L,) int, ascending: n + N * b for each valid row n of each sequence b.

    Returns:
        (L, ...).
    """
    b, n, *rest = x.shape
    return tp.gather(tp.reshape(x, (b * n, *rest)), 0, tp.cast(valid_rows, tp.int32))


def padded_rows(values: tp.Tensor, x_lengths: tp.Tensor, x_offsets: tp.Tensor, like: tp.Tensor) -> tp.Tensor:
    """Inverse of `valid_rows_of`: valid rows at their places, zeros elsewhere.

    Args:
        values: (L, D).
        x_lengths, x_offsets: see `row_offsets`.
        like: (B, N, D), gives N.

    Returns:
        (B, N, D).
    """
    b, n, d = like.shape
    position_1N = tp.iota((1, n), dim=1, dtype=tp.int32)
    is_valid_BN = position_1N < tp.unsqueeze(tp.cast(x_lengths, tp.int32), 1)
    row_BN = position_1N + tp.unsqueeze(x_offsets[:b], 1)
    # Row 0 of the gathered tensor is zero.
    padded_from = tp.concatenate([tp.zeros((1, d), dtype=values.dtype), values], dim=0)
    return tp.gather(padded_from, 0, tp.where(is_valid_BN, row_BN + 1, 0))


def require_heads(**dims: int) -> None:
    """Checks that the kernel takes heads of these sizes.

    Raises:
        ValueError: naming the field, its value and the largest.
    """
    for name, dim in dims.items():
        require(dim <= LARGEST_HEAD, name, dim, f"fused attention takes heads of at most {LARGEST_HEAD}")
