"""Launches of `triton_kernel.hstu_attention_kernel`: block sizes and arguments.

This module imports triton; `interface` imports it at the first call of that backend.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from operator import or_
from typing import Any, NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hstu_attention.buckets import bucket_table_on
from kernels.hstu_attention.layout import Call, Layout, layout_of
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.triton_kernel import hstu_attention_kernel

# Number of (sequence, heads) pairs that run side by side; of long sequences, the cache holds the keys and
# values of fewer.
_GROUP = 64
_GROUP_OF_LONG = 16
# Number of programs that fill a large GPU once.
_MANY_PROGRAMS = 132
# Sequences up to here are a few blocks. Their schedule is for programs that fill a large GPU fewer times than
# this.
_SHORT = 512
_MOST_FILLS_OF_SHORT = 15
# From this average length on, sequences are long.
_MIDDLE = 4096


@dataclass(frozen=True)
class Schedule:
    """Block sizes and compiler options of the kernel; of the result they change the order of sums only."""

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
    """A head's size in the kernel: the next power of two, at least 16, the least size of a dot."""
    return max(16, triton.next_power_of_2(dim))


def size_class(rows: int, heads: int, max_seq_len: int, sequences: int) -> tuple[str, str]:
    """The sizes that `choose_schedule` distinguishes: the number of programs, and the length of sequences.

    Very many programs of short sequences count as middle. Without rows or sequences, programs are many and
    all sequences have the greatest length.
    """
    average = rows // sequences if rows and sequences else max_seq_len
    filled = rows * heads / (64 * _MANY_PROGRAMS) if rows else math.inf
    is_short = max_seq_len <= _SHORT and not (rows and filled >= _MOST_FILLS_OF_SHORT)
    lengths = "short" if is_short else "middle" if average <= _MIDDLE else "long"
    return "few" if filled < 1 else "many", lengths


def choose_schedule(
    q: torch.Tensor,
    v: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    sequences: int = 0,
) -> Schedule:
    """The schedule for these inputs, with the copy engine where it is faster; see `with_descriptors`.

    benchmarks/results/ has the measurements behind the choices: hstu_kernels.md, drawn_shapes.md. Inputs
    without rows stand for any number of rows, for compilation ahead of time.
    """
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    # The interpreter runs on the CPU and has no assembly.
    sigmoid = "half" if is_half and q.device.type != "cpu" else "exact"
    widest = max(padded_dim(q.size(2)), padded_dim(v.size(2)))
    programs, lengths = size_class(q.size(0), q.size(1), max_seq_len, sequences)
    if programs == "few":
        # The longest program decides the time of a call: small blocks.
        return Schedule(16, 32, num_warps=4, num_stages=1, group=_GROUP, sigmoid=sigmoid)
    if not is_half:
        block_m, block_n = (64, 32) if widest <= 64 else (32, 32) if widest <= 128 else (16, 16)
        return Schedule(block_m, block_n, num_warps=4, num_stages=1, group=_GROUP)
    if isinstance(mask, ResearchMask):
        heads = 2 if q.size(1) % 2 == 0 and widest <= 64 else 1
        return Schedule(64, 32, num_warps=4, num_stages=2, group=_GROUP, sigmoid=sigmoid, heads=heads)
    if widest > 128:
        return Schedule(64, 32, num_warps=4, num_stages=2, group=_GROUP, sigmoid=sigmoid)
    if lengths == "short":
        # All programs run at once. Programs of one multiprocessor have a fixed distance; with the pairs'
        # blocks in order, all multiprocessors get equal work.
        return Schedule(64, 64, num_warps=4, num_stages=2, group=256, sigmoid=sigmoid)
    # Making two descriptors takes the host longer than short rows take the GPU: longer rows only.
    group = _GROUP_OF_LONG if lengths == "long" else _GROUP
    return Schedule(64, 32, num_warps=4, num_stages=3, group=group, sigmoid=sigmoid, use_tma=True)


def with_descriptors(schedule: Schedule, k: torch.Tensor, v: torch.Tensor) -> Schedule:
    """The schedule, without the copy engine where the GPU lacks it or these tensors do not fit it."""
    if not schedule.use_tma:
        return schedule
    has_engine = k.device.type == "cuda" and torch.cuda.get_device_capability(k.device)[0] >= 9
    return replace(schedule, use_tma=has_engine and _takes_descriptor(k) and _takes_descriptor(v))


def _takes_descriptor(x: torch.Tensor) -> bool:
    """Whether heads lie side by side without padding, and rows are aligned to 16 bytes."""
    aligned = x.stride(0) * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0
    return aligned and x.stride(1) == x.size(2) == padded_dim(x.size(2))


@dataclass
class _Plan:
    """Launch of the calls of one layout: the kernel's constants, and the compiled kernel.

    The latter is None before the first launch and in the interpreter.
    """

    schedule: Schedule
    constants: tuple[object, ...]
    compiled: Any = None


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
    """(L, H, K), (L, H, K), (L, H, V), (B + 1,) -> (L, H, V), for arguments checked by `hstu_attention`."""
    call = Call(q, k, v, offsets, max_seq_len, mask)
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    return launch_call(call, layout_of(call), dot_precision, out, schedule)


def launch_call(
    call: Call, layout: Layout, dot_precision: str, out: torch.Tensor, schedule: Schedule | None = None
) -> torch.Tensor:
    """`launch` into `out` with a known layout, whose plan is reused."""
    q, k, v, offsets, max_seq_len, mask = call
    rows, heads, _ = q.shape
    sequences = offsets.numel() - 1
    if not (rows and sequences and max_seq_len):
        return out
    of_mask = _mask_arguments(mask, q.device)
    tensors = [q, k, v, out, None, None, offsets, *of_mask.tensors]
    # Addresses in place of tensors, which Triton's launcher would look up in the driver.
    arguments: list[object] = [0 if x is None else x.data_ptr() for x in tensors]
    # Triton compiles separately for addresses that are multiples of 16.
    odd = tuple(address % 16 for address in arguments) if functools.reduce(or_, arguments) % 16 else ()
    key = (
        schedule or size_class(rows, heads, max_seq_len, sequences),
        dot_precision,
        of_mask.flags,
        odd,
        out.stride(),
    )
    plan = layout.plans.get(key)
    if plan is None:
        chosen = schedule or with_descriptors(choose_schedule(q, v, max_seq_len, mask, sequences), k, v)
        constants = kernel_constants(q, k, v, out, of_mask.flags, dot_precision, chosen)
        plan = layout.plans[key] = _Plan(chosen, constants)
    if plan.schedule.use_tma:
        arguments[4:6] = tensors[4:6] = descriptors(k, v, plan.schedule)
    blocks = -(-max_seq_len // plan.schedule.block_m)
    grid = (blocks * sequences * heads // plan.schedule.heads, 1, 1)
    numbers = kernel_numbers(of_mask, sequences, blocks, mask.divisor)
    if plan.compiled is None:
        plan.compiled = hstu_attention_kernel[grid](
            *(q if x is None else x for x in tensors),
            *numbers,
            *plan.constants,
            num_warps=plan.schedule.num_warps,
            num_stages=plan.schedule.num_stages,
        )
    else:
        plan.compiled[grid](*arguments, *numbers, *plan.constants)
    return out


def kernel_arguments(
    call: Call, num_blocks: int, dot_precision: str, schedule: Schedule
) -> tuple[tuple[object, ...], tuple[object, ...], tuple[object, ...]]:
    """The kernel's arguments in order, with v for the result: tensors, numbers, constants.

    q takes the place of an unused tensor, since a launch needs one.
    """
    q, k, v, offsets, _, mask = call
    of_mask = _mask_arguments(mask, q.device)
    pair = descriptors(k, v, schedule) if schedule.use_tma else (q, q)
    tensors = (q, k, v, v, *pair, offsets, *(q if x is None else x for x in of_mask.tensors))
    numbers = kernel_numbers(of_mask, offsets.numel() - 1, num_blocks, mask.divisor)
    return tensors, numbers, kernel_constants(q, k, v, v, of_mask.flags, dot_precision, schedule)


def kernel_numbers(
    of_mask: _MaskArguments, sequences: int, num_blocks: int, divisor: float
) -> tuple[object, ...]:
    """The kernel's arguments from stride_tb to scale."""
    stride_tb, num_times, *rest = of_mask.numbers
    return (stride_tb, num_times, sequences, num_blocks, *rest, 1.0 / divisor)


def kernel_constants(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    flags: tuple[object, ...],
    dot_precision: str,
    schedule: Schedule,
) -> tuple[object, ...]:
    """The kernel's arguments from stride_ql to ONE_LOOP."""
    dims = (q.size(2), v.size(2))
    return (
        *(stride for x in (q, k, v, out) for stride in x.stride()[:2]),
        q.size(1),
        *flags,
        *dims,
        *(padded_dim(dim) for dim in dims),
        schedule.block_m,
        schedule.block_n,
        schedule.heads,
        schedule.group,
        dot_precision,
        schedule.sigmoid,
        schedule.use_tma,
        schedule.one_loop,
    )


def descriptors(
    k: torch.Tensor, v: torch.Tensor, schedule: Schedule
) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Descriptors of k and v as (L, H * dim), in blocks of the schedule's columns and one head."""

    def descriptor(x: torch.Tensor) -> TensorDescriptor:
        shape, block = [x.size(0), x.size(1) * x.size(2)], [schedule.block_n, padded_dim(x.size(2))]
        return TensorDescriptor(x, shape=shape, strides=[x.stride(0), 1], block_shape=block)

    return descriptor(k), descriptor(v)


class _MaskArguments(NamedTuple):
    """A mask's part of the kernel's arguments; None is a tensor that the kernel does not use.

    tensors: timestamps, position_weights, time_weights, bucket_table, num_targets, attn_scale. numbers:
    stride_tb, num_times, width, contextual, window, alpha. flags: from HAS_BIAS to HAS_SCALE.
    """

    tensors: tuple[torch.Tensor | None, ...]
    numbers: tuple[object, ...]
    flags: tuple[object, ...]


def _mask_arguments(mask: ResearchMask | ProductionMask, device: torch.device) -> _MaskArguments:
    if isinstance(mask, ResearchMask):
        return _research(mask, device)
    targets, scale = mask.num_targets, mask.attn_scale
    window, contextual = mask.max_attn_len, mask.contextual_seq_len
    return _MaskArguments(
        tensors=(None, None, None, None, targets, scale),
        numbers=(0, 0, 0, contextual, window, float(mask.alpha)),
        flags=(False, False, 0, targets is not None, window > 0, contextual > 0, scale is not None),
    )


def _research(mask: ResearchMask, device: torch.device) -> _MaskArguments:
    times, weights = mask.timestamps, mask.position_weights
    if times is None or mask.time_weights is None:
        flags = (True, False, 0, False, False, False, False)
        return _MaskArguments((None, weights, *[None] * 4), (0, 0, mask.width, 0, 0, 1.0), flags)
    table, shift = bucket_table_on(mask.num_buckets, mask.bucket_divisor, device)
    return _MaskArguments(
        tensors=(times, weights, mask.time_weights, table, None, None),
        numbers=(times.stride(0), times.size(1), mask.width, 0, 0, 1.0),
        flags=(True, True, shift, False, False, False, False),
    )
