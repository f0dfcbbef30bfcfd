"""Initializers. Source: generative_recommenders/research/modeling/initialization.py."""

from __future__ import annotations

import torch


def truncated_normal(x: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    """Fill ``x`` in place from N(mean, std^2) cut at two standard deviations, and return it.

    As in the public code, an element keeps the first of four draws within the cut. For about 4 elements in a
    million all four fall outside; they keep the first draw.
    """
    with torch.no_grad():
        draws = x.new_empty(x.shape + (4,)).normal_()
        within = ((draws > -2) & (draws < 2)).to(torch.int8)
        # argmax of 0/1 is the first 1, and 0 where there is none.
        first = within.max(dim=-1, keepdim=True).indices
        x.copy_(draws.gather(-1, first).squeeze(-1) * std + mean)
    return x
