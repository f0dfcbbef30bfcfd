"""Rows behind elements at stated discontinuities that two runs take otherwise; see `Case.boundaries`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from parity.verdict.evidence import Evidence

POSITIONED = 3
"""Number of axes of a tap with positions: batch, positions, width."""


def flipped_rows(
    evidence: Evidence, one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]
) -> np.ndarray | None:
    """(B, N) mask of rows that depend on a boundary element on which two runs differ.

    With causal attention, a flip in row n of a bias (B, N, ...) reaches row n and all later rows of its
    sequence. Without, it reaches all of its sequence. A flip in a tap without positions, such as the indices
    of a top-k (B, k), reaches its row of the batch, and N is 1.

    Args:
        evidence: Has the elements at discontinuities.
        one, other: Results of both runs, by tap.
    """
    rows = None
    for tap, boundary in evidence.boundary.items():
        first, second = one.get(tap), other.get(tap)
        if first is None or second is None or not first.shape == second.shape == boundary.shape:
            continue
        flipped = boundary & (first != second).numpy()
        if flipped.ndim == POSITIONED:
            reached = flipped.any(axis=-1)
            if evidence.causal:
                reached = np.logical_or.accumulate(reached, axis=-1)
            else:
                reached = np.broadcast_to(reached.any(axis=-1, keepdims=True), reached.shape)
        else:
            reached = flipped.reshape(len(flipped), -1).any(axis=-1, keepdims=True)
        rows = reached if rows is None else _either(rows, reached)
    return rows if rows is not None and rows.any() else None


def rows_left_out(
    evidence: Evidence, port: Mapping[str, torch.Tensor], before: Evidence | None = None
) -> np.ndarray | None:
    """`flipped_rows` of a port and the reference: rows that are not compared.

    A search for hidden choices may take a flip that comes nearer to the port and explains nothing. Such a
    flip leaves no row out: the port is judged under it.

    Args:
        evidence: The evidence of the comparison.
        port: The port's results, by tap.
        before: The evidence before a search for choices; None without one.
    """
    rows = flipped_rows(evidence, port, evidence.reference.tensors)
    if rows is None or before is None:
        return rows
    earlier = flipped_rows(before, port, before.reference.tensors)
    return None if earlier is None or not (rows & earlier).any() else rows & earlier


def _either(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Rows in one mask (B, N) or the other; of whole sequences where their numbers of positions differ."""
    if 1 in (rows.shape[1], others.shape[1]) or rows.shape == others.shape:
        return rows | others
    return rows.any(axis=1, keepdims=True) | others.any(axis=1, keepdims=True)


def row_mask(rows: np.ndarray | None, tensor: torch.Tensor) -> np.ndarray | None:
    """Mask of a tensor's elements in flipped (B, N) rows; of a (B, ...) tensor in whole batch rows."""
    shape = tuple(tensor.shape)
    if rows is None or not shape or shape[0] != rows.shape[0]:
        return None
    if len(shape) > 1 and shape[1] == rows.shape[1]:
        reduced = rows.reshape(rows.shape + (1,) * (len(shape) - 2))
    else:
        reduced = rows.any(axis=1).reshape((rows.shape[0],) + (1,) * (len(shape) - 1))
    return np.broadcast_to(reduced, shape)
