"""Arguments of `triton_kernel_packs.packed_attention_kernel`; `triton_launch` launches it."""

from __future__ import annotations

import torch

from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.schedules import Schedule, padded_dim

# Of the tensors of `hstu_attention_kernel`: Q, K, V, Out, offsets, num_targets, attn_scale.
PACK_TENSORS = (0, 1, 2, 3, 6, 12, 13)


def pack_programs(sequences: int, heads: int, schedule: Schedule) -> int:
    """Programs of a call."""
    return -(-sequences // schedule.packed) * (heads // schedule.heads)


def pack_numbers(
    of_mask: tuple[object, ...], sequences: int, schedule: Schedule, divisor: float
) -> tuple[object, ...]:
    """The kernel's arguments from num_sequences to scale; of_mask: contextual, window and alpha."""
    return (sequences, schedule.packed, schedule.heads, *of_mask, 1.0 / divisor)


def pack_constants(
    call: Call, out: torch.Tensor, flags: tuple[object, ...], dot_precision: str, schedule: Schedule
) -> tuple[object, ...]:
    """The kernel's arguments from stride_ql to MOST; flags: from HAS_TARGETS to HAS_SCALE."""
    dims = (call.q.size(2), call.v.size(2))
    return (
        *(stride for x in (call.q, call.k, call.v, out) for stride in x.stride()[:2]),
        call.q.size(1),
        *flags,
        *dims,
        *(padded_dim(dim) for dim in dims),
        schedule.block_m,
        dot_precision,
        schedule.sigmoid,
        1 << (schedule.packed - 1).bit_length(),
    )
