"""Inputs of the attention plugin that its tests share."""

from __future__ import annotations

import torch

from kernels.plugins.schema import HSTUAttentionSettings

HEADS, K_DIM, V_DIM, WIDTH = 2, 6, 7, 12
SETTINGS = HSTUAttentionSettings(divisor=12.0, bucket_divisor=0.301)


def attention_inputs(
    lengths: tuple[int, ...], dtype: torch.dtype, width: int = WIDTH, buckets: int = 16
) -> list[torch.Tensor]:
    """q, k, v, offsets, timestamps, position weights, time weights: the order of `kernels.plugins.schema`."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    total, times = sum(lengths), max(10, *lengths)
    steps = torch.randint(0, 10**6, (len(lengths), times), generator=generator)
    return [
        draw(total, HEADS, K_DIM),
        draw(total, HEADS, K_DIM),
        draw(total, HEADS, V_DIM),
        torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
        1_600_000_000 + steps.cumsum(1),
        draw(2 * width - 1),
        draw(buckets + 1),
    ]
