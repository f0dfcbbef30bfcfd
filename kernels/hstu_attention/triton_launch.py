"""Launches of `triton_kernel.hstu_attention_kernel`: block sizes and arguments.

This module imports triton; `interface` imports it at the first call of that backend.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import or_
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hstu_attention.ahead import (
    AHEAD_TENSORS,
    ahead_constants,
    ahead_descriptors,
    ahead_grid,
    ahead_kernel,
    ahead_numbers,
    ahead_schedule,
)
from kernels.hstu_attention.buckets import bucket_table_on
from kernels.hstu_attention.layout import Call, Layout, layout_of
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.new_rows import Appended
from kernels.hstu_attention.pack_launch import PACK_TENSORS, pack_constants, pack_numbers, pack_programs
from kernels.hstu_attention.schedules import (
    Schedule,
    choose_schedule,
    fitting,
    is_narrow,
    pack_of,
    padded_dim,
    size_class,
    splits_of_call,
    splits_of_new_rows,
    takes_descriptor,
)
from kernels.hstu_attention.triton_kernel import hstu_attention_kernel
from kernels.hstu_attention.triton_kernel_packs import packed_attention_kernel
from kernels.hstu_attention.triton_kernel_splits import sum_of_splits_kernel

# Rows of the blocks that a call of few programs has, and elements of a program that sums their results.
_FEW_ROWS = 16
_SUMMED = 512


def with_descriptors(schedule: Schedule, k: torch.Tensor, v: torch.Tensor) -> Schedule:
    """The schedule, without the copy engine where the GPU lacks it or these tensors do not fit it.

    It has as many stages as the GPU's shared memory holds.
    """
    if k.device.type == "cuda":
        facts = driver.active.utils.get_device_properties(k.device.index)
        schedule = fitting(schedule, k, v, facts["max_shared_mem"])
    if not schedule.use_tma:
        return schedule
    has_engine = k.device.type == "cuda" and torch.cuda.get_device_capability(k.device)[0] >= 9
    return replace(schedule, use_tma=has_engine and takes_descriptor(k) and takes_descriptor(v))


def derived_schedule(call: Call, splits: int, may_pack: bool = True) -> Schedule:
    """The schedule that the rules derive from a call, fitted to its GPU and tensors.

    Without `may_pack`, as with a cache, the kernels of tiny sequences and of `ahead` cannot run.
    """
    q, k, v, offsets, max_seq_len, mask = call
    chosen = choose_schedule(q, v, max_seq_len, mask, offsets.numel() - 1, may_pack)
    if may_pack and splits == 1 and not chosen.packed and (ahead := ahead_schedule(call)):
        return ahead
    return replace(with_descriptors(chosen, k, v), splits=splits, one_loop=chosen.one_loop and splits == 1)


@dataclass
class _Plan:
    """Launch of the calls of one layout: the kernel, its constants, and the compiled kernel.

    The latter is None before the first launch and in the interpreter.
    """

    schedule: Schedule
    kernel: Any
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
    call: Call,
    layout: Layout,
    dot_precision: str,
    out: torch.Tensor,
    schedule: Schedule | None = None,
    appended: Appended | None = None,
) -> torch.Tensor:
    """`launch` into `out` with a known layout, whose plan is reused.

    With `appended`, q, offsets and out have the new rows alone; k and v are a cache, (B * capacity, H, .).
    """
    q, k, v, offsets, max_seq_len, mask = call
    rows, heads, _ = q.shape
    sequences = offsets.numel() - 1
    if not (rows and sequences and max_seq_len):
        return out
    # No row is longer than all of them: a loose limit starts no more programs.
    longest = min(max_seq_len, rows)
    of_mask = _mask_arguments(mask, q.device)
    firsts = None if appended is None else appended.firsts
    pack = None
    if appended is None:
        splits = splits_of_call(q, mask, sequences)
        pack = pack_of(q, v, max_seq_len, mask, sequences)
    else:
        splits = splits_of_new_rows(appended.blocks(_FEW_ROWS) * sequences * heads, max_seq_len)
    tensors = [q, k, v, out, None, None, offsets, firsts, *of_mask.tensors]
    # Addresses in place of tensors, which Triton's launcher would look up in the driver.
    arguments: list[object] = [0 if x is None else x.data_ptr() for x in tensors]
    # Triton compiles separately for addresses that are multiples of 16.
    odd = tuple(address % 16 for address in arguments) if functools.reduce(or_, arguments) % 16 else ()
    key = (
        schedule or pack or (size_class(q, v, max_seq_len, sequences), is_narrow(of_mask.window)),
        appended is not None,
        splits,
        dot_precision,
        of_mask.flags,
        odd,
        out.stride(),
    )
    plan = layout.plans.get(key)
    if plan is None:
        chosen = schedule
        if chosen is None:
            # A cache has another kernel.
            chosen = derived_schedule(call, splits, appended is None)
        if chosen.packed:
            constants = pack_constants(call, out, of_mask.flags[3:], dot_precision, chosen)
            plan = _Plan(chosen, packed_attention_kernel, constants)
        elif chosen.ahead:
            plan = _Plan(chosen, ahead_kernel(), ahead_constants(call, out, of_mask.flags[3:], chosen))
        else:
            target = _target(out, chosen)
            constants = kernel_constants(
                q, k, v, target, of_mask.flags, dot_precision, chosen, appended is not None
            )
            plan = _Plan(chosen, hstu_attention_kernel, constants)
        layout.plans[key] = plan
    if plan.schedule.packed:
        tensors, arguments = ([x[i] for i in PACK_TENSORS] for x in (tensors, arguments))
        numbers = pack_numbers(of_mask.numbers[3:], sequences, plan.schedule, mask.divisor)
        _start(plan, (pack_programs(sequences, heads, plan.schedule), 1, 1), tensors, arguments, numbers)
        return out
    if plan.schedule.ahead:
        arguments[4:6] = tensors[4:6] = ahead_descriptors(call, plan.schedule)
        tensors, arguments = ([x[i] for i in AHEAD_TENSORS] for x in (tensors, arguments))
        numbers = ahead_numbers(of_mask.numbers[3:], sequences, mask.divisor)
        grid = ahead_grid(sequences, heads, longest, of_mask.contextual, plan.schedule)
        _start(plan, grid, tensors, arguments, numbers)
        return out
    if plan.schedule.use_tma:
        arguments[4:6] = tensors[4:6] = descriptors(k, v, plan.schedule)
    if appended is None:
        capacity, blocks = 0, -(-longest // plan.schedule.block_m)
    else:
        capacity, blocks = appended.capacity, appended.blocks(plan.schedule.block_m)
    splits = plan.schedule.splits
    if splits > 1:
        tensors[3] = _target(out, plan.schedule)
        arguments[3] = tensors[3].data_ptr()
    grid = (blocks * sequences * heads // plan.schedule.heads, splits, 1)
    numbers = kernel_numbers(of_mask, sequences, blocks, capacity, mask.divisor)
    _start(plan, grid, tensors, arguments, numbers)
    if splits > 1:
        sum_of_splits_kernel[(triton.cdiv(out.numel(), _SUMMED),)](
            tensors[3], out, offsets, sequences, out.numel(), *out.stride()[:2], heads, out.size(2), splits,
            _SUMMED,
        )  # fmt: skip
    return out


def _start(
    plan: _Plan,
    grid: tuple[int, int, int],
    tensors: Sequence[object],
    arguments: Sequence[object],
    numbers: tuple[object, ...],
) -> None:
    """Launch the plan's kernel, which the first launch compiles.

    arguments: the tensors' addresses, 0 for None.
    """
    if plan.compiled is not None:
        plan.compiled[grid](*arguments, *numbers, *plan.constants)
        return
    plan.compiled = plan.kernel[grid](
        *(tensors[0] if x is None else x for x in tensors),
        *numbers,
        *plan.constants,
        num_warps=plan.schedule.num_warps,
        num_stages=plan.schedule.num_stages,
        maxnreg=plan.schedule.registers or None,
    )


def _target(out: torch.Tensor, schedule: Schedule) -> torch.Tensor:
    """What the attention's kernel writes: the result, or float32 sums of each program that shares columns."""
    if schedule.splits == 1:
        return out
    rows, heads, dim = out.shape
    return out.new_empty((schedule.splits * rows, heads, dim), dtype=torch.float32)


def kernel_numbers(
    of_mask: _MaskArguments, sequences: int, num_blocks: int, capacity: int, divisor: float
) -> tuple[object, ...]:
    """The kernel's arguments from stride_tb to scale."""
    stride_tb, num_times, *rest = of_mask.numbers
    return (stride_tb, num_times, sequences, num_blocks, capacity, *rest, 1.0 / divisor)


def kernel_constants(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    flags: tuple[object, ...],
    dot_precision: str,
    schedule: Schedule,
    is_cached: bool = False,
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
        is_cached,
        schedule.splits,
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
    stride_tb, num_times, width, contextual, window, alpha. flags: from HAS_BIAS to HAS_SCALE. window,
    contextual: as in numbers.
    """

    tensors: tuple[torch.Tensor | None, ...]
    numbers: tuple[object, ...]
    flags: tuple[object, ...]
    window: int = 0
    contextual: int = 0


def _mask_arguments(mask: ResearchMask | ProductionMask, device: torch.device) -> _MaskArguments:
    if isinstance(mask, ResearchMask):
        return _research(mask, device)
    targets, scale = mask.num_targets, mask.attn_scale
    window, contextual = mask.max_attn_len, mask.contextual_seq_len
    return _MaskArguments(
        tensors=(None, None, None, None, targets, scale),
        numbers=(0, 0, 0, contextual, window, float(mask.alpha)),
        flags=(False, False, 0, targets is not None, window > 0, contextual > 0, scale is not None),
        window=window,
        contextual=contextual,
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
