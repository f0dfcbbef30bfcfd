"""Pooled sums against float64, judged by the verdict's rule."""

from __future__ import annotations

import torch

from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge
from tables.interface import Tables

BY_TYPE = {precision.dtype: precision for name, precision in PRECISIONS.items() if name != "tf32"}
Bags = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def drawn_bags(rows: int, seed: int, bags: int, longest: int, weighted: bool) -> Bags:
    """Random ids, offsets and weights; some bags may be empty, and ids repeat."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (bags,), generator=draw)
    count = int(lengths.sum())
    ids = torch.randint(0, rows, (count,), generator=draw)
    weights = torch.randn(count, generator=draw) if weighted else None
    return ids, lengths.cumsum(0) - lengths, weights


def assert_pooled(
    tables: Tables, name: str, rows: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor, weights=None
) -> None:
    """The engine's sums against PyTorch's own in float32, with a bound from the longest bag."""
    sums = tables.pooled(name, ids, offsets, weights)
    assert sums.shape == (len(offsets), rows.shape[1])
    assert sums.dtype == rows.dtype
    if len(offsets) == 0:
        return
    oracle, plain = (_bags(rows.to(dtype), ids, offsets, weights) for dtype in (torch.float64, torch.float32))
    ends = torch.cat([offsets[1:], torch.tensor([len(ids)])])
    longest = max(1, int((ends - offsets).max()))
    verdict = judge(oracle, plain.to(rows.dtype), sums, BY_TYPE[rows.dtype], longest)
    assert verdict.passed, verdict.reason


def _bags(rows: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor, weights) -> torch.Tensor:
    factors = None if weights is None else weights.to(rows.dtype)
    bag = torch.nn.functional.embedding_bag
    return bag(ids, rows, offsets, mode="sum", per_sample_weights=factors)
