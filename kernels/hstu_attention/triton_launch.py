"""Launches `triton_kernel.hstu_attention_kernel`: which block sizes, which arguments.

This module imports triton; `interface` imports it when a call asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hstu_attention.buckets import bucket_table_on
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.triton_kernel import hstu_attention_kernel

# Of the keys and values of the pairs that run beside each other: well below the cache of the smallest GPU meant (40 MB).
_CACHED_BYTES = 24 << 20
# What was compiled, by all that the compiler looks at.
_COMPILED: dict[tuple[object, ...], object] = {}


@dataclass(frozen=True)
class Schedule:
    """How the kernel is cut and compiled: what it computes does not depend on it, but for the order of sums."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    group: int = 1
    sigmoid: str = "exact"
    use_tma: bool = False
    heads: int = 1
    one_loop: bool = False


def padded_dim(dim: int) -> int:
    """A head's size as the kernel sees it: the next power of two, at least 16, the smallest that a dot takes."""
    return max(16, triton.next_power_of_2(dim))


def choose_schedule(
    q: torch.Tensor, v: torch.Tensor, max_seq_len: int, mask: ResearchMask | ProductionMask
) -> Schedule:
    """The schedule for these inputs; docs/kernels_hstu.md says what the choices were measured against."""
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    widest = max(padded_dim(q.size(2)), padded_dim(v.size(2)))
    pair_bytes = max_seq_len * (q.size(2) + v.size(2)) * q.element_size()
    group = max(1, min(64, _CACHED_BYTES // max(pair_bytes, 1)))
    sigmoid = "half" if is_half else "exact"
    if not is_half:
        block = 64 if widest <= 64 else 32
        return Schedule(block, 32, num_warps=4, num_stages=2, group=group)
    if isinstance(mask, ResearchMask) or max_seq_len <= 512 or widest > 128:
        return Schedule(
            64, 64 if widest <= 128 else 32, num_warps=4, num_stages=2, group=group, sigmoid=sigmoid
        )
    return Schedule(128, 64, num_warps=4, num_stages=2, group=group, sigmoid=sigmoid)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    dot_precision: str,
    schedule: Schedule | None = None,
) -> torch.Tensor:
    """(L, H, K), (L, H, K), (L, H, V), (B + 1,) -> (L, H, V); arguments as `interface.hstu_attention` checked them."""
    schedule = schedule or choose_schedule(q, v, max_seq_len, mask)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    sequences, heads = offsets.numel() - 1, q.size(1)
    blocks = -(-max_seq_len // schedule.block_m)
    if out.numel() == 0 or blocks == 0:
        return out
    tensors, numbers, constants = kernel_arguments(
        q, k, v, out, offsets, blocks, mask, dot_precision, schedule
    )
    grid = (blocks * sequences * heads // schedule.heads, 1, 1)
    # Triton looks at every argument of every launch to find the kernel that was compiled for it, which takes longer
    # than the kernel itself on short rows. These decide: constants, types, alignment, device.
    facts = tuple((x.dtype, x.data_ptr() % 16) for x in tensors if isinstance(x, torch.Tensor))
    key = (facts, constants, schedule.num_warps, schedule.num_stages, q.device)
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = hstu_attention_kernel[grid](
            *tensors, *numbers, *constants, num_warps=schedule.num_warps, num_stages=schedule.num_stages
        )
    else:
        compiled[grid](*tensors, *numbers, *constants)
    return out


def kernel_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    offsets: torch.Tensor,
    num_blocks: int,
    mask: ResearchMask | ProductionMask,
    dot_precision: str,
    schedule: Schedule,
) -> tuple[tuple[object, ...], tuple[object, ...], tuple[object, ...]]:
    """The kernel's arguments in their order: tensors, numbers, constexprs."""
    block_k, block_v = padded_dim(q.size(2)), padded_dim(v.size(2))
    k_descriptor, v_descriptor = k, v
    if schedule.use_tma:
        k_descriptor = _descriptor(k, schedule.block_n, block_k)
        v_descriptor = _descriptor(v, schedule.block_n, block_v)
    side = _research(mask, q) if isinstance(mask, ResearchMask) else _production(mask, q)
    tensors = (q, k, v, out, k_descriptor, v_descriptor, offsets, *side.tensors)
    stride_tb, num_times, *rest = side.numbers
    numbers = (stride_tb, num_times, offsets.numel() - 1, num_blocks, *rest, 1.0 / mask.divisor)
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2])
    blocks = (q.size(2), v.size(2), block_k, block_v, schedule.block_m, schedule.block_n)
    how = (
        schedule.heads,
        schedule.group,
        dot_precision,
        schedule.sigmoid,
        schedule.use_tma,
        schedule.one_loop,
    )
    return tensors, numbers, (*strides, q.size(1), *side.flags, *blocks, *how)


def _descriptor(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    shape = [x.size(0), x.size(1) * x.size(2)]
    return TensorDescriptor(x, shape=shape, strides=[x.stride(0), 1], block_shape=[rows, columns])


@dataclass(frozen=True)
class _MaskArguments:
    """What a mask adds to the kernel's arguments. A tensor that is not used is q: a launch needs some tensor.

    tensors: timestamps, position_weights, time_weights, bucket_table, num_targets, attn_scale. numbers: stride_tb,
    num_times, width, contextual, window, alpha. flags: from HAS_BIAS to HAS_SCALE.
    """

    tensors: tuple[object, ...]
    numbers: tuple[object, ...]
    flags: tuple[object, ...]


def _research(mask: ResearchMask, q: torch.Tensor) -> _MaskArguments:
    times, weights = mask.timestamps, mask.position_weights
    if times is None or mask.time_weights is None:
        flags = (True, False, 0, False, False, False, False)
        return _MaskArguments((q, weights, q, q, q, q), (0, 0, mask.width, 0, 0, 1.0), flags)
    table, shift = bucket_table_on(mask.num_buckets, mask.bucket_divisor, q.device)
    return _MaskArguments(
        tensors=(times, weights, mask.time_weights, table, q, q),
        numbers=(times.stride(0), times.size(1), mask.width, 0, 0, 1.0),
        flags=(True, True, shift, False, False, False, False),
    )


def _production(mask: ProductionMask, q: torch.Tensor) -> _MaskArguments:
    targets, scale = mask.num_targets, mask.attn_scale
    window, contextual = mask.max_attn_len, mask.contextual_seq_len
    return _MaskArguments(
        tensors=(q, q, q, q, q if targets is None else targets, q if scale is None else scale),
        numbers=(0, 0, 0, contextual, window, mask.alpha),
        flags=(False, False, 0, targets is not None, window > 0, contextual > 0, scale is not None),
    )
