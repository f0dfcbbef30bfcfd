"""The attention's form in Gluon for compute capability 9.0: its calls, schedules and arguments.

benchmarks/results/drawn_shapes.md has its measurements. `triton_launch` launches it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask
from kernels.hstu_attention.schedules import (
    HALF_TYPES,
    LEAST_GROUP,
    MOST_GROUP_OF_WINDOW,
    Schedule,
    is_narrow,
    padded_dim,
    size_class,
    takes_descriptor,
)

_CAPABILITY = (9, 0)
# Of the tensors of `hstu_attention_kernel`: Q, Out, KDesc, VDesc, offsets, num_targets, attn_scale.
AHEAD_TENSORS = (0, 3, 4, 5, 6, 12, 13)
_WIDEST = 128
_ROWS = 64
# Most programs along the second and the third axis of a grid.
_MOST_OF_AXIS = 65_535
# Pairs side by side of short sequences.
_SHORT_GROUP = 256
# Pairs side by side with contextual rows, of very many programs of narrow heads.
_MOST_GROUP_OF_CONTEXT = 64
# Registers of a thread that leave room for four programs a multiprocessor.
_OF_FOUR_PROGRAMS = 128


def refusal(call: Call) -> str:
    """Why the form cannot run a call, or an empty text. Reads nothing from the device."""
    q, k, v, _, max_seq_len, mask = call
    if not isinstance(mask, ProductionMask):
        return "it has the production mask alone"
    if q.dtype not in HALF_TYPES:
        return "it takes half types alone"
    if not _has_instructions(q.device):
        return "it needs a GPU of compute capability 9.0"
    if max(q.size(2), v.size(2)) > _WIDEST or not all(map(takes_descriptor, (q, k, v))):
        return "it needs heads side by side, of 16, 32, 64 or 128 elements, and rows aligned to 16 bytes"
    # Contextual rows may have one program more than there are blocks.
    if min(max_seq_len, q.size(0)) > _ROWS * (_MOST_OF_AXIS - 1):
        return f"it takes sequences of up to {_ROWS * (_MOST_OF_AXIS - 1)} rows"
    return ""


def _has_instructions(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == _CAPABILITY


def ahead_schedule(call: Call) -> Schedule | None:
    """The schedule in this form of a call without a cache, by its sizes; None if `triton_kernel` runs it.

    For very few programs small blocks of rows are faster, which this form lacks.
    """
    q, _, v, offsets, max_seq_len, mask = call
    size = size_class(q, v, max_seq_len, offsets.numel() - 1)
    if size.fills < 1 or refusal(call):
        return None
    window, has_context = mask.max_attn_len, mask.contextual_seq_len > 0
    group = _SHORT_GROUP if size.lengths == "short" else size.group
    is_wide = max(padded_dim(q.size(2)), padded_dim(v.size(2))) > 64
    if is_wide:
        most = _most_fills_of_large_blocks(size.lengths, mask)
        columns = 64 if size.fills <= most else 32
        registers = 0 if columns == 64 else _OF_FOUR_PROGRAMS
        group = min(group, LEAST_GROUP) if window and not has_context and size.fills >= 5 else group
    else:
        columns, registers = 64, _OF_FOUR_PROGRAMS if size.fills > 3 else 0
        if has_context:
            # Programs of contextual rows read whole histories: fewer of very many fit the cache.
            group = min(group, _MOST_GROUP_OF_CONTEXT) if size.fills >= 6 else group
        elif is_narrow(window) and padded_dim(q.size(2)) > 32 and size.fills >= 5:
            group = min(group, MOST_GROUP_OF_WINDOW)
    return Schedule(
        _ROWS, columns, num_warps=4, num_stages=2, group=group, sigmoid="half", use_tma=True,
        registers=registers, ahead=True,
    )  # fmt: skip


def _most_fills_of_large_blocks(lengths: str, mask: ProductionMask) -> int:
    """The largest class of fills in which wide heads take large blocks.

    With large blocks two programs a multiprocessor run at once, with small ones four. The longer the loops,
    the less do the programs' starts and ends need others beside them. A window has short loops, but for
    contextual rows, whose loops are the longest ones.
    """
    window = mask.max_attn_len
    if mask.contextual_seq_len:
        return {"longest": 5 if window else 6, "long": 4}.get(lengths, 3)
    return 2 if is_narrow(window) else 3 if window else 6 if lengths == "longest" else 4


@functools.cache
def ahead_kernel() -> Any:
    """Imports Triton's Gluon."""
    from kernels.hstu_attention.gluon_kernel import ahead_attention_kernel

    return ahead_attention_kernel


def ahead_grid(
    sequences: int, heads: int, max_seq_len: int, contextual: int, schedule: Schedule
) -> tuple[int, int, int]:
    """Pairs of a group, blocks of rows, groups. Equal groups: a small last one would leave multiprocessors
    idle. A block with contextual rows and others has two programs."""
    pairs = sequences * heads
    groups = min(max(1, pairs // schedule.group), _MOST_OF_AXIS)
    size = -(-pairs // groups)
    blocks = -(-max_seq_len // schedule.block_m)
    of_context = min(-(-contextual // schedule.block_m), blocks)
    others = max(blocks - contextual // schedule.block_m, 0)
    return size, of_context + others, -(-pairs // size)


def ahead_numbers(of_mask: tuple[object, ...], sequences: int, divisor: float) -> tuple[object, ...]:
    """The kernel's arguments from num_sequences to scale; of_mask: contextual, window, alpha."""
    return (sequences, *of_mask, 1.0 / divisor)


def ahead_constants(
    call: Call, out: torch.Tensor, flags: tuple[object, ...], schedule: Schedule
) -> tuple[object, ...]:
    """The kernel's arguments from stride_ql to STAGES; flags: HAS_TARGETS to HAS_SCALE."""
    return (
        *(stride for x in (call.q, out) for stride in x.stride()[:2]),
        call.q.size(1),
        *flags,
        call.q.size(2),
        call.v.size(2),
        schedule.block_m,
        schedule.block_n,
        schedule.num_stages,
    )


def ahead_descriptors(call: Call, schedule: Schedule) -> tuple[object, object]:
    """Descriptors of k and v as (L, H * dim), in blocks of the schedule's columns and one head."""

    def descriptor(x: torch.Tensor) -> object:
        shape, block = [x.size(0), x.size(1) * x.size(2)], [schedule.block_n, x.size(2)]
        return _descriptor_class()(x, shape, [x.stride(0), 1], block, _layout_of(x.size(2)))

    return descriptor(call.k), descriptor(call.v)


@functools.cache
def _descriptor_class() -> Any:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor


@functools.cache
def _layout_of(dim: int) -> object:
    """Making one takes longer than the rest of a descriptor."""
    from kernels.hstu_attention.gluon_kernel import shared_layout

    return shared_layout(dim)
