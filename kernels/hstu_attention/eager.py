"""HSTU attention in plain PyTorch, a row of the batch at a time: the definition of the kernels' result.

Any device, any floating type, float64 included. Each operation rounds to the inputs' type, as PyTorch does.

Legend: L total jagged length, H heads, K attention dim, V value dim, N a row's length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.hstu_attention.argument_checks import check_bounds, check_firsts
from kernels.hstu_attention.buckets import time_bucket
from kernels.hstu_attention.masks import ProductionMask, ResearchMask


def hstu_attention_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    mask: ResearchMask | ProductionMask,
    out: torch.Tensor | None = None,
    max_seq_len: int | None = None,
) -> torch.Tensor:
    """(L, H, K), (L, H, K), (L, H, V) and (B + 1,) offsets -> (L, H, V), in `out` if there is one.

    Raises ValueError for offsets that are no rows, or a row longer than `max_seq_len`.
    """
    if out is None:
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
    bounds = offsets.tolist()
    check_bounds(bounds, q.size(0), max_seq_len)
    for row, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        if start == end:
            continue
        q_HNK, k_HNK, v_HNV = (x[start:end].transpose(0, 1) for x in (q, k, v))
        logits_HNN = q_HNK @ k_HNK.transpose(1, 2)
        if isinstance(mask, ResearchMask):
            weights_HNN = (
                F.silu(logits_HNN + relative_bias(mask, row, end - start).to(q.dtype)) / mask.divisor
            )
        else:
            weights_HNN = F.silu(logits_HNN * mask.alpha)
            weights_HNN = _scaled(weights_HNN, mask, start, end)
        weights_HNN = weights_HNN * visible(mask, row, end - start, q.device).to(q.dtype)
        out[start:end] = (weights_HNN @ v_HNV).transpose(0, 1)
    return out


def hstu_attention_eager_cached(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    firsts: torch.Tensor,
    mask: ProductionMask,
    out: torch.Tensor,
) -> torch.Tensor:
    """New rows (L, H, K) against (B, capacity, H, K) and (B, capacity, H, V) -> (L, H, V), in `out`.

    Raises ValueError for offsets that are no rows, or a sequence that does not fit into the cache.
    """
    bounds = offsets.tolist()
    check_bounds(bounds, q.size(0))
    check_firsts(firsts.tolist(), bounds, k.size(1))
    for row, first in enumerate(firsts.tolist()):
        start, end = bounds[row : row + 2]
        if start == end:
            continue
        n = first + end - start
        k_HNK, v_HNV = (x[row, :n].transpose(0, 1) for x in (k, v))
        weights_HMN = F.silu(q[start:end].transpose(0, 1) @ k_HNK.transpose(1, 2) * mask.alpha)
        weights_HMN = _scaled(weights_HMN, mask, start, end)
        weights_HMN = weights_HMN * visible(mask, row, n, q.device)[first:].to(q.dtype)
        out[start:end] = (weights_HMN @ v_HNV).transpose(0, 1)
    return out


def _scaled(weights_HNN: torch.Tensor, mask: ProductionMask, start: int, end: int) -> torch.Tensor:
    if mask.attn_scale is None:
        return weights_HNN / mask.divisor
    return weights_HNN * mask.attn_scale[start:end].to(weights_HNN.dtype).view(1, -1, 1)


def relative_bias(mask: ResearchMask, row: int, n: int) -> torch.Tensor:
    """The bias of one row of the batch, (n, n) in the type of the position weights."""
    position = torch.arange(n, device=mask.position_weights.device)
    bias_NN = mask.position_weights[mask.width - 1 + position.unsqueeze(0) - position.unsqueeze(1)]
    if mask.timestamps is None or mask.time_weights is None:
        return bias_NN
    own_N = mask.timestamps[row]
    next_N = own_N[(position + 1).clamp(max=own_N.numel() - 1)]
    delta_NN = next_N.unsqueeze(1) - own_N[:n].unsqueeze(0)
    # On the CPU, like the kernels' table: another device's logarithm may give other buckets.
    bucket_NN = time_bucket(delta_NN.cpu(), mask.num_buckets, mask.bucket_divisor).to(delta_NN.device)
    return bias_NN + mask.time_weights[bucket_NN]


def visible(mask: ResearchMask | ProductionMask, row: int, n: int, device: torch.device) -> torch.Tensor:
    """(n, n) bool, True where a row of the sequence attends to a column."""
    index = torch.arange(n, device=device)
    is_diagonal_NN = index.unsqueeze(1) == index.unsqueeze(0)
    if isinstance(mask, ResearchMask):
        return index.unsqueeze(1) >= index.unsqueeze(0)
    targets = 0 if mask.num_targets is None else int(mask.num_targets[row])
    merged = max(mask.contextual_seq_len - 1, 0)
    first_target = n - targets - merged
    position_N = (index - merged).clamp(min=0).clamp(max=first_target)
    distance_NN = position_N.unsqueeze(1) - position_N.unsqueeze(0)
    sees_NN = distance_NN > 0
    if mask.max_attn_len > 0:
        sees_NN = sees_NN & (distance_NN <= mask.max_attn_len)
    sees_NN = sees_NN | is_diagonal_NN
    if mask.contextual_seq_len > 0:
        is_contextual = (index < mask.contextual_seq_len).unsqueeze(1)
        sees_NN = sees_NN | (is_contextual & (position_N < first_target).unsqueeze(0))
    return sees_NN
