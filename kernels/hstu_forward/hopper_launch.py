"""Launches of the CUDA C++ kernel in `hopper/`: which models and batches it takes, its weights and arguments.

The first call compiles the kernel on the machine; see `kernels.cuda_build`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import pad

from kernels.cuda_build import HOPPER_FLAGS, launch, launcher, multiprocessors, not_hopper
from kernels.hstu_attention.buckets import bucket_table
from kernels.hstu_forward.parameters import DOT_PRECISIONS, Parameters
from kernels.hstu_forward.tiles import Batch
from kernels.hstu_forward.weights import POSITION_PAD, Shape, time_weights_of

SOURCE = Path(__file__).parent / "hopper" / "forward.cu"
CUDA_FLAGS = HOPPER_FLAGS
# Columns of u, of q, of v and of k, and of an embedding, as stored.
WIDTH = 64
# Entries of a block's time weights; the last is NaN, the weight of times too far apart.
BUCKETS = 256
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# The longest row: 16 thread blocks of 32 rows.
LONGEST = 512
# Rows of a group of warps, and columns of a step of the attention: a sequence has whole steps.
_ROWS, _COLUMNS = 16, 32
# Thread blocks of a cluster.
_MOST_BLOCKS = 16
_ERRORS = {-1: "this size of heads is not compiled"}


class Arguments(ctypes.Structure):
    """`hopper_forward::Call`, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ids", "offsets", "timestamps")),
        *((name, ctypes.c_void_p) for name in ("item_weights", "input_positions", "uvqk", "output")),
        *((name, ctypes.c_void_p) for name in ("output_bias", "position_weights", "time_weights")),
        *((name, ctypes.c_void_p) for name in ("buckets", "out", "workspace")),
        ("timestamps_row", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("type", "head_size", "sequences", "max_seq_len")),
        *((name, ctypes.c_int32) for name in ("wide_ids", "wide_offsets", "num_times", "shift")),
        *((name, ctypes.c_int32) for name in ("num_blocks", "num_heads", "linear_dim", "embedding_dim")),
        *((name, ctypes.c_int32) for name in ("position_stride", "position_zero")),
        *((name, ctypes.c_int32) for name in ("groups", "groups_of_cta")),
        *((name, ctypes.c_float) for name in ("divisor_inverse", "epsilon", "l2_epsilon")),
    ]


@dataclass(frozen=True)
class Weights:
    """All blocks' parameters, one behind the other. A head has `head_size` columns, the missing ones zero.

    Attributes:
        uvqk: (blocks, parts, 4 * WIDTH, WIDTH), in the order u, q, v, k; `swizzled`.
        output: (blocks, parts, WIDTH, WIDTH); `swizzled`.
        output_bias: (blocks, WIDTH) float32.
        position_weights: (blocks, ...), rows of `BlockWeights.position_weights` behind zeros: a copy starts
            and ends at a multiple of 16 bytes. Number `position_zero` is of distance 0.
        time_weights: (blocks, BUCKETS) float32; zeros without time weights.
        buckets: entries of `buckets.bucket_table`, or None without time weights.
    """

    head_size: int
    uvqk: torch.Tensor
    output: torch.Tensor
    output_bias: torch.Tensor
    position_weights: torch.Tensor
    position_zero: int
    time_weights: torch.Tensor
    buckets: torch.Tensor | None
    shift: int


def num_buckets_of(state: Mapping[str, torch.Tensor], num_blocks: int) -> int:
    """The most time buckets of a block, 0 without time weights."""
    raw = (time_weights_of(state, number) for number in range(num_blocks))
    return max(0 if x is None else x.numel() - 1 for x in raw)


def refusal(parameters: Parameters, num_buckets: int) -> str:
    """The reason for which the kernel does not take this model, or an empty text.

    It takes embeddings and heads of at most `WIDTH` columns, those of the heads together, on a GPU of compute
    capability 9.0; float32 as "fp16x3".

    Args:
        num_buckets: time buckets, 0 without time weights.
    """
    shape, dtype = parameters.shape, parameters.item_weights.dtype
    if dtype == torch.float32 and parameters.products != DOT_PRECISIONS["fp16x3"]:
        return "it multiplies float32 as dot_precision='fp16x3' alone"
    columns = shape.num_heads * head_size_of(shape)
    if max(shape.embedding_dim, columns) > WIDTH:
        return (
            f"it has room for {WIDTH} columns, but D is {shape.embedding_dim}, and {shape.num_heads} heads "
            f"of {shape.attention_dim} and {shape.linear_dim} elements take {columns}"
        )
    if num_buckets > BUCKETS - 2:
        return f"it has room for {BUCKETS - 2} time buckets, not {num_buckets}"
    return not_hopper(parameters.item_weights.device)


def refused(reason: str) -> RuntimeError:
    """The error of a call that the kernel does not take."""
    return RuntimeError(f"backend='hopper': {reason}; use backend='triton'")


def head_size_of(shape: Shape) -> int:
    """Columns of a head as stored: a power of two of at least 8."""
    return max(8, 1 << (max(shape.attention_dim, shape.linear_dim) - 1).bit_length())


def weights_of(state: Mapping[str, torch.Tensor], parameters: Parameters) -> Weights:
    """The weights of a model in the kernel's layout.

    Raises:
        RuntimeError: the kernel does not take the model.
    """
    shape, blocks = parameters.shape, parameters.blocks
    raw = [time_weights_of(state, number) for number in range(len(blocks))]
    num_buckets = num_buckets_of(state, len(blocks))
    if reason := refusal(parameters, num_buckets):
        raise refused(reason)
    size, device = head_size_of(shape), parameters.item_weights.device
    time_weights = torch.zeros(len(blocks), BUCKETS)
    for row, x in zip(time_weights, raw, strict=True):
        if x is not None:
            row[: x.numel()] = x.float()
            row[-1] = torch.nan
    zero = POSITION_PAD + blocks[0].width - 1
    front = -zero % 4
    positions = torch.stack([block.position_weights for block in blocks])
    table = bucket_table(num_buckets, parameters.settings.bucket_divisor) if num_buckets else None
    return Weights(
        head_size=size,
        uvqk=swizzled(torch.stack([uvqk_of(block.uvqk, shape, size) for block in blocks])),
        output=swizzled(
            torch.stack([_padded(_heads_of(block.output, shape, shape.vp, size), 1) for block in blocks])
        ),
        output_bias=torch.stack([_padded(block.output_bias.float(), 0) for block in blocks]),
        position_weights=pad(positions, (front, -(positions.size(1) + front) % 4)),
        position_zero=zero + front,
        time_weights=time_weights.to(device),
        buckets=None if table is None else table.entries.to(device),
        shift=0 if table is None else table.shift,
    )


def uvqk_of(stored: torch.Tensor, shape: Shape, size: int) -> torch.Tensor:
    """`BlockWeights.uvqk` -> (parts, 4 * WIDTH, WIDTH), with heads of `size` columns."""
    keys, values = shape.num_heads * shape.kp, shape.num_heads * shape.vp
    split = stored.split([values, keys, values, keys], dim=1)
    dims = (shape.vp, shape.kp, shape.vp, shape.kp)
    heads = [
        _heads_of(x.transpose(1, 2), shape, dim, size).transpose(1, 2)
        for x, dim in zip(split, dims, strict=True)
    ]
    return _padded(torch.cat(heads, dim=1), 2)


def swizzled(x: torch.Tensor) -> torch.Tensor:
    """(..., rows, WIDTH) with each row's chunks of 8 elements where `chunk_at` of the kernel finds them."""
    row, chunk = torch.arange(x.size(-2), device=x.device)[:, None], torch.arange(8, device=x.device)
    # An exclusive or is its own inverse.
    source = chunk ^ (row & 1) << 2 ^ (row >> 3 & 1) << 1
    return x.unflatten(-1, (8, 8)).gather(-2, source[..., None].expand(*x.shape[:-1], 8, 8)).flatten(-2)


def _heads_of(x: torch.Tensor, shape: Shape, stored: int, size: int) -> torch.Tensor:
    """(..., heads * stored) -> (..., WIDTH). What a smaller `size` cuts off is padding."""
    heads = x.unflatten(-1, (shape.num_heads, stored))[..., :size]
    flat = pad(heads, (0, size - heads.size(-1))).flatten(-2)
    return pad(flat, (0, WIDTH - flat.size(-1)))


def _padded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Zeros behind the end of a dimension, up to WIDTH."""
    return pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, WIDTH - x.size(dim))).contiguous()


def groups_of(max_seq_len: int) -> int:
    """Groups of 16 rows of a sequence: whole steps of columns."""
    return -(-max_seq_len // _COLUMNS) * (_COLUMNS // _ROWS)


def cut_of(sequences: int, max_seq_len: int, dtype: torch.dtype, multiprocessors: int) -> tuple[int, int]:
    """Groups of 16 rows of a sequence, and those of a thread block, one or two.

    Two share a block's weights. One has the multiprocessor for itself.
    """
    groups = groups_of(max_seq_len)
    # Thread blocks of a multiprocessor: two float16 parts of the weights leave no room for a second one.
    beside = 1 if dtype == torch.float32 else 2
    is_shared = groups > _MOST_BLOCKS or sequences * groups > beside * multiprocessors
    return groups, 2 if is_shared else 1


def batch_refusal(batch: Batch) -> str:
    """The reason for which the kernel does not take this batch, or an empty text."""
    if batch.max_seq_len > LONGEST:
        return f"max_seq_len={batch.max_seq_len}: it has room for {LONGEST}"
    for name, x in (("ids", batch.ids), ("offsets", batch.offsets)):
        if x.dtype not in (torch.int32, torch.int64) or not x.is_contiguous():
            return f"{name} must be contiguous int32 or int64, not {x.dtype} of strides {x.stride()}"
    times = batch.timestamps
    if times.dtype != torch.int64 or (times.size(1) > 1 and times.stride(1) != 1):
        return f"timestamps must be int64 with contiguous rows, not {times.dtype} of strides {times.stride()}"
    return ""


@functools.cache
def _library() -> Callable[..., int]:
    """The launch function, compiled at the first call on a machine in less than a minute."""
    return launcher("tripy_recsys_hstu_forward_hopper", SOURCE, CUDA_FLAGS, "hopper_forward_launch")


def arguments_of(
    parameters: Parameters,
    weights: Weights,
    batch: Batch,
    out: torch.Tensor,
    workspace: torch.Tensor,
    cut: tuple[int, int],
) -> Arguments:
    """The arguments of a batch that `batch_refusal` takes."""
    settings, shape = parameters.settings, parameters.shape
    tensors = (batch.ids, batch.offsets, batch.timestamps)
    tensors += (parameters.item_weights, parameters.position_weights)
    tensors += (weights.uvqk, weights.output, weights.output_bias, weights.position_weights)
    tensors += (weights.time_weights, weights.buckets, out, workspace)
    return Arguments(
        *(None if x is None else x.data_ptr() for x in tensors),
        batch.timestamps.stride(0),
        TYPES[parameters.item_weights.dtype],
        weights.head_size,
        batch.sequences,
        batch.max_seq_len,
        batch.ids.dtype == torch.int64,
        batch.offsets.dtype == torch.int64,
        batch.timestamps.size(1),
        weights.shift,
        shape.num_blocks,
        shape.num_heads,
        shape.linear_dim,
        shape.embedding_dim,
        weights.position_weights.size(1),
        weights.position_zero,
        *cut,
        1.0 / settings.divisor,
        settings.epsilon,
        settings.l2_epsilon,
    )


def states_of(parameters: Parameters, weights: Weights, batch: Batch) -> torch.Tensor:
    """(L,) ids -> (L, D) states, in one launch.

    Raises:
        RuntimeError: the kernel does not take the batch, does not build or does not start.
    """
    if reason := batch_refusal(batch):
        raise refused(reason)
    out = parameters.item_weights.new_empty((batch.rows, parameters.shape.embedding_dim))
    if batch.rows == 0 or batch.sequences == 0 or batch.max_seq_len == 0:
        return out
    cut = cut_of(batch.sequences, batch.max_seq_len, out.dtype, multiprocessors(out.device))
    # k and v of each group of rows, in two buffers that take turns.
    size = (batch.sequences * cut[0], 2, 2, weights.uvqk.size(1), _ROWS, WIDTH)
    workspace = weights.uvqk.new_empty(size)
    arguments = arguments_of(parameters, weights, batch, out, workspace, cut)
    launch(_library(), arguments, out.device, _ERRORS)
    return out
