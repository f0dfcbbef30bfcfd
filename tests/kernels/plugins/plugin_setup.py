"""The attention plugins' inputs, and the masks that these stand for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.hstu_attention import ProductionMask, ResearchMask
from kernels.plugins.schema import HSTUAttentionSettings, STUAttentionSettings

HEADS, K_DIM, V_DIM, WIDTH = 2, 6, 7, 12
SETTINGS = HSTUAttentionSettings(divisor=12.0, bucket_divisor=0.301)
STU_SETTINGS = {
    "plain": STUAttentionSettings(alpha=K_DIM**-0.5),
    "scaled": STUAttentionSettings(alpha=0.3, has_attn_scale=True),
    "window": STUAttentionSettings(alpha=K_DIM**-0.5, max_attn_len=2),
    "all": STUAttentionSettings(alpha=0.3, max_attn_len=3, contextual_seq_len=2, has_attn_scale=True),
}


def attention_inputs(
    lengths: tuple[int, ...], dtype: torch.dtype, width: int = WIDTH, buckets: int = 16
) -> list[torch.Tensor]:
    """q, k, v, offsets, timestamps, position weights, time weights: the order of `kernels.plugins.schema`."""
    draw, generator = _draws(dtype)
    times = max(10, *lengths)
    steps = torch.randint(0, 10**6, (len(lengths), times), generator=generator)
    return [
        *_rows(draw, lengths),
        1_600_000_000 + steps.cumsum(1),
        draw(2 * width - 1),
        draw(buckets + 1),
    ]


def research_mask(inputs: list[torch.Tensor]) -> ResearchMask:
    """The mask of `attention_inputs` and `SETTINGS`."""
    *_, timestamps, position, time = inputs
    return ResearchMask(position, SETTINGS.divisor, timestamps, time, SETTINGS.bucket_divisor)


def stu_attention_inputs(
    lengths: tuple[int, ...], dtype: torch.dtype, settings: STUAttentionSettings
) -> list[torch.Tensor]:
    """q, k, v, offsets, targets, scales, and the input whose extent is N: `schema.STU_ATTENTION`'s order."""
    draw, generator = _draws(dtype)
    rows = _rows(draw, lengths)
    # Every sequence has its contextual rows, and some have no history.
    most = torch.tensor([max(length - settings.contextual_seq_len, 0) for length in lengths])
    targets = (torch.rand(len(lengths), generator=generator) * (most + 1)).to(torch.int32)
    scale = torch.rand(sum(lengths) if settings.has_attn_scale else 1, generator=generator) + 0.5
    return [*rows, targets, (scale / 10).to(dtype), torch.zeros(max(10, *lengths), dtype=torch.int32)]


def production_mask(inputs: list[torch.Tensor], settings: STUAttentionSettings) -> ProductionMask:
    """The mask of `stu_attention_inputs` and its settings."""
    *_, num_targets, attn_scale, padded = inputs
    return ProductionMask(
        alpha=settings.alpha,
        divisor=padded.numel(),
        attn_scale=attn_scale if settings.has_attn_scale else None,
        num_targets=num_targets,
        max_attn_len=settings.max_attn_len,
        contextual_seq_len=settings.contextual_seq_len,
    )


def gate_inputs(rows: int, dtype: torch.dtype, norm_groups: int) -> list[torch.Tensor]:
    """u, a, weight, bias, of rows of 14: the order of `schema.STU_GATE`."""
    draw, _ = _draws(dtype)
    width = 2 * V_DIM
    return [draw(rows, width), draw(rows, width), draw(norm_groups or width), draw(norm_groups or width)]


def _draws(dtype: torch.dtype) -> tuple[Callable[..., torch.Tensor], torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator).to(dtype), generator


def _rows(draw: Callable[..., torch.Tensor], lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """q, k, v and offsets."""
    total = sum(lengths)
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    drawn = [draw(total, HEADS, dim) for dim in (K_DIM, K_DIM, V_DIM)]
    return [*drawn, torch.tensor(bounds, dtype=torch.int32)]
