"""Launches `triton_kernel.hstu_attention_kernel`: which block sizes, which arguments.

This module imports triton; `interface` imports it when a call asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hstu_attention.buckets import bucket_table_on
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.triton_kernel import hstu_attention_kernel

# How many (sequence, heads) pairs run beside each other.
_GROUP = 64
# Programs that fill a large GPU once.
_MANY_PROGRAMS = 132
# Rows up to here are a few blocks.
_SHORT = 512
# What was compiled, by all that the compiler looks at.
_COMPILED: dict[tuple[object, ...], object] = {}


@dataclass(frozen=True)
class Schedule:
    """How the kernel is cut and compiled: what it computes does not depend on it, but for the order of
    sums.
    """

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
    """A head's size as the kernel sees it: the next power of two, at least 16, the smallest that a dot
    takes.
    """
    return max(16, triton.next_power_of_2(dim))


def choose_schedule(
    q: torch.Tensor, v: torch.Tensor, max_seq_len: int, mask: ResearchMask | ProductionMask
) -> Schedule:
    """The schedule for these inputs; docs/kernels_hstu.md says what the choices were measured against.

    Inputs without rows stand for any number of them, as where a kernel is compiled ahead of time.
    """
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    # The interpreter, which runs on the CPU, has no assembly.
    sigmoid = "half" if is_half and q.device.type != "cpu" else "exact"
    widest = max(padded_dim(q.size(2)), padded_dim(v.size(2)))
    if 0 < q.size(0) * q.size(1) < 64 * _MANY_PROGRAMS:
        # Few programs: the longest one is what a call takes, so that its blocks are small.
        return Schedule(16, 32, num_warps=4, num_stages=1, group=_GROUP, sigmoid=sigmoid)
    if not is_half:
        block_m, block_n = (64, 32) if widest <= 64 else (32, 32) if widest <= 128 else (16, 16)
        return Schedule(block_m, block_n, num_warps=4, num_stages=1, group=_GROUP)
    if isinstance(mask, ResearchMask):
        heads = 2 if q.size(1) % 2 == 0 and widest <= 64 else 1
        return Schedule(64, 32, num_warps=4, num_stages=2, group=_GROUP, sigmoid=sigmoid, heads=heads)
    if max_seq_len <= _SHORT or widest > 128:
        return Schedule(
            64, 64 if widest <= 128 else 32, num_warps=4, num_stages=2, group=_GROUP, sigmoid=sigmoid
        )
    return Schedule(128, 32, num_warps=4, num_stages=3, group=_GROUP, sigmoid=sigmoid)


def with_descriptors(schedule: Schedule, k: torch.Tensor, v: torch.Tensor) -> Schedule:
    """The schedule with whole blocks through the copy engine, where the GPU has one and takes these tensors.

    On long rows alone: making two descriptors takes the host longer than short rows take the GPU.
    """
    if schedule.block_m < 128 or k.device.type != "cuda" or torch.cuda.get_device_capability(k.device)[0] < 9:
        return schedule
    return replace(schedule, use_tma=_takes_descriptor(k) and _takes_descriptor(v))


def _takes_descriptor(x: torch.Tensor) -> bool:
    """Heads side by side without padding, rows and their start aligned to 16 bytes."""
    aligned = x.stride(0) * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0
    return aligned and x.stride(1) == x.size(2) == padded_dim(x.size(2))


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
    """(L, H, K), (L, H, K), (L, H, V), (B + 1,) -> (L, H, V); arguments as `interface.hstu_attention`
    checked them.
    """
    schedule = schedule or with_descriptors(choose_schedule(q, v, max_seq_len, mask), k, v)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    sequences, heads = offsets.numel() - 1, q.size(1)
    blocks = -(-max_seq_len // schedule.block_m)
    if out.numel() == 0 or blocks == 0:
        return out
    tensors, numbers, constants = kernel_arguments(
        q, k, v, out, offsets, blocks, mask, dot_precision, schedule
    )
    grid = (blocks * sequences * heads // schedule.heads, 1, 1)
    # Triton looks at every argument of every launch to find the kernel that was compiled for it, which
    # takes longer than the kernel itself on short rows. These decide: constants, types, alignment, device.
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

    tensors: timestamps, position_weights, time_weights, bucket_table, num_targets, attn_scale. numbers:
    stride_tb, num_times, width, contextual, window, alpha. flags: from HAS_BIAS to HAS_SCALE.
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
        numbers=(0, 0, 0, contextual, window, float(mask.alpha)),
        flags=(False, False, 0, targets is not None, window > 0, contextual > 0, scale is not None),
    )
