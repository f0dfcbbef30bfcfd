"""Visible columns and weights of a row of HSTU attention: the research and the production form."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ResearchMask:
    """Research HSTU: weight = SiLU(q k + bias) / divisor, causal with the diagonal.

    The bias of row i and column j is position_weights[W - 1 + j - i], plus, with timestamps,
    time_weights[bucket of timestamps[i + 1] - timestamps[j]]. A row without a successor repeats its own time.
    Source: generative_recommenders/research/modeling/sequential/hstu.py, as in `reference/`.

    Attributes:
        position_weights: (2W - 1,) in any floating type.
        divisor: W of the public model, the width of its mask.
        timestamps: (B, N) int64 seconds with the query time at a row's length, N at least the longest row;
            or None.
        time_weights: (num_buckets + 1,) in the type of position_weights, with timestamps.
        bucket_divisor: width of a bucket in ln(seconds).
    """

    position_weights: torch.Tensor
    divisor: float
    timestamps: torch.Tensor | None = None
    time_weights: torch.Tensor | None = None
    bucket_divisor: float = 0.301

    @property
    def width(self) -> int:
        """W, the length of the longest row that the position weights cover."""
        return (self.position_weights.numel() + 1) // 2

    @property
    def num_buckets(self) -> int:
        """Number of the last bucket; 0 without time weights."""
        return 0 if self.time_weights is None else self.time_weights.numel() - 1


@dataclass(frozen=True)
class ProductionMask:
    """Production STU: weight = SiLU(alpha q k) * scale, no bias.

    A row attends to the past and itself. Targets, the last rows of a sequence, attend to the history and
    themselves, not each other. Contextual rows, the first ones, together count as one position and attend to
    all history. Source: generative_recommenders/ops/pytorch/pt_hstu_attention.py, as in `reference/`.

    Attributes:
        alpha: factor of the dot product.
        divisor: divisor of the weights without attn_scale; the call's max_seq_len.
        attn_scale: (L,) factor of each row's weights in place of 1 / divisor; or None.
        num_targets: (B,) int, number of targets at the end of each sequence; or None for none.
        max_attn_len: largest distance that a row attends to, except contextual rows; 0 for no window.
        contextual_seq_len: number of contextual rows in front of each sequence's history.
    """

    alpha: float
    divisor: float
    attn_scale: torch.Tensor | None = None
    num_targets: torch.Tensor | None = None
    max_attn_len: int = 0
    contextual_seq_len: int = 0
