"""What a row of HSTU attention sees and how it weighs it: the research and the production form."""

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
        bucket_divisor: width of a bucket in units of ln(second).
    """

    position_weights: torch.Tensor
    divisor: float
    timestamps: torch.Tensor | None = None
    time_weights: torch.Tensor | None = None
    bucket_divisor: float = 0.301

    @property
    def width(self) -> int:
        """W, the longest row that the position weights serve."""
        return (self.position_weights.numel() + 1) // 2

    @property
    def num_buckets(self) -> int:
        """The last bucket's number, 0 without time weights."""
        return 0 if self.time_weights is None else self.time_weights.numel() - 1


@dataclass(frozen=True)
class ProductionMask:
    """Production STU: weight = SiLU(alpha q k) * scale, no bias.

    A row sees the past and itself; targets, a sequence's last rows, see history and themselves and never
    each other; contextual rows, its first, together count as one position and see all history. Source:
    generative_recommenders/ops/pytorch/pt_hstu_attention.py, as in `reference/`.

    Attributes:
        alpha: factor of the dot product.
        divisor: the call's max_seq_len; what the weights are divided by where there is no attn_scale.
        attn_scale: (L,), what each row's weights are multiplied by in place of 1 / divisor; or None.
        num_targets: (B,) int, how many of a sequence's last rows are targets; or None for none.
        max_attn_len: how far back a row sees, contextual rows excepted; 0 for no window.
        contextual_seq_len: how many rows in front of the history; every sequence has them.
    """

    alpha: float
    divisor: float
    attn_scale: torch.Tensor | None = None
    num_targets: torch.Tensor | None = None
    max_attn_len: int = 0
    contextual_seq_len: int = 0
