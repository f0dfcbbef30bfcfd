"""Launches of the CUDA C++ kernels in `hopper/`: which models and batches they take, and their arguments.

One kernel takes narrow models, whose columns fit a thread block, and one wide models. The first call compiles
its kernel on the machine; see `kernels.cuda_build`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from kernels.cuda_build import HOPPER_FLAGS, launch, launcher, multiprocessors, not_hopper
from kernels.hstu_forward.hopper_weights import BUCKETS, MOST_SHARES, WIDTH, Weights, columns_of, head_size_of
from kernels.hstu_forward.parameters import DOT_PRECISIONS, Parameters
from kernels.hstu_forward.schedules import Batch

SOURCE = Path(__file__).parent / "hopper" / "forward.cu"
WIDE_SOURCE = SOURCE.with_name("wide.cu")
CUDA_FLAGS = HOPPER_FLAGS
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# The longest row: 16 thread blocks of 32 rows.
LONGEST = 512
# Most columns of an embedding, and of all heads.
WIDEST = MOST_SHARES * WIDTH
# Rows of a group of warps, and columns of a step of the attention: a sequence has whole steps.
ROWS, _COLUMNS = 16, 32
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
        *((name, ctypes.c_int32) for name in ("groups", "groups_of_cta", "has_whole_fours")),
        *((name, ctypes.c_float) for name in ("divisor_inverse", "epsilon", "l2_epsilon")),
    ]


class WideArguments(ctypes.Structure):
    """`hopper_forward::WideCall`, field by field."""

    _fields_ = [
        ("call", Arguments),
        ("workspace_bytes", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("size", "chunks")),
    ]


def refusal(parameters: Parameters, num_buckets: int) -> str:
    """The reason for which no kernel takes this model, or an empty text.

    They take heads of at most `WIDTH` columns, and embeddings and all heads together of at most `WIDEST`, on
    a GPU of compute capability 9.0; float32 as "fp16x3".

    Args:
        num_buckets: time buckets, 0 without time weights.
    """
    shape, dtype = parameters.shape, parameters.item_weights.dtype
    if dtype == torch.float32 and parameters.products != DOT_PRECISIONS["fp16x3"]:
        return "it multiplies float32 as dot_precision='fp16x3' alone"
    if head_size_of(shape) > WIDTH:
        return f"it has room for heads of {WIDTH} elements, not {max(shape.attention_dim, shape.linear_dim)}"
    if max(shape.embedding_dim, columns_of(shape)) > WIDEST:
        return (
            f"it has room for {WIDEST} columns, but D is {shape.embedding_dim}, and {shape.num_heads} heads "
            f"of {shape.attention_dim} and {shape.linear_dim} elements take {columns_of(shape)}"
        )
    if num_buckets > BUCKETS - 2:
        return f"it has room for {BUCKETS - 2} time buckets, not {num_buckets}"
    return not_hopper(parameters.item_weights.device)


def refused(reason: str) -> RuntimeError:
    """The error of a call that no kernel takes."""
    return RuntimeError(f"backend='hopper': {reason}; use backend='triton'")


def groups_of(max_seq_len: int) -> int:
    """Groups of 16 rows of a sequence: whole steps of columns."""
    return -(-max_seq_len // _COLUMNS) * (_COLUMNS // ROWS)


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
    return ""


@functools.cache
def _library() -> Callable[..., int]:
    """The launch function of the narrow kernel, compiled at the first call on a machine in under a minute."""
    return launcher("tripy_recsys_hstu_forward_hopper", SOURCE, CUDA_FLAGS, "hopper_forward_launch")


@functools.cache
def _wide_library() -> Callable[..., int]:
    """The launch function of the wide kernel."""
    return launcher("tripy_recsys_hstu_forward_wide", WIDE_SOURCE, CUDA_FLAGS, "hopper_forward_wide_launch")


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
        _has_whole_fours(parameters.item_weights) and _has_whole_fours(parameters.position_weights),
        1.0 / settings.divisor,
        settings.epsilon,
        settings.l2_epsilon,
    )


def _has_whole_fours(x: torch.Tensor) -> bool:
    """Whether each row of a contiguous (rows, D) starts at a multiple of four elements."""
    four = 4 * x.element_size()
    return x.data_ptr() % four == 0 and x.size(1) % 4 == 0


def states_of(parameters: Parameters, weights: Weights, batch: Batch) -> torch.Tensor:
    """(L,) ids -> (L, D) states.

    Raises:
        RuntimeError: the kernel does not take the batch, does not build or does not start.
    """
    if reason := batch_refusal(batch):
        raise refused(reason)
    out = parameters.item_weights.new_empty((batch.rows, parameters.shape.embedding_dim))
    if batch.rows > 0 and batch.sequences > 0 and batch.max_seq_len > 0:
        (_narrow if weights.shares == 1 else _wide)(parameters, weights, batch, out)
    return out


def _narrow(parameters: Parameters, weights: Weights, batch: Batch, out: torch.Tensor) -> None:
    """The states in `out`, in one launch."""
    cut = cut_of(batch.sequences, batch.max_seq_len, out.dtype, multiprocessors(out.device))
    # k and v of each group of rows, in two buffers that take turns.
    size = (batch.sequences * cut[0], 2, 2, weights.uvqk.size(1), ROWS, WIDTH)
    workspace = weights.uvqk.new_empty(size)
    arguments = arguments_of(parameters, weights, batch, out, workspace, cut)
    launch(_library(), arguments, out.device, _ERRORS)


def _wide(parameters: Parameters, weights: Weights, batch: Batch, out: torch.Tensor) -> None:
    """The states in `out`, in one launch behind that of the workspace's reset."""
    cut = (groups_of(batch.max_seq_len), 1)
    parts = parameters.products.projections
    # k and v of each block and group of rows.
    size = (parameters.shape.num_blocks, batch.sequences, weights.shares, cut[0], 2, parts, ROWS, WIDTH)
    workspace = weights.uvqk.new_empty(size)
    call = arguments_of(parameters, weights, batch, out, workspace, cut)
    arguments = WideArguments(call, workspace.nbytes, weights.shares, weights.chunks)
    launch(_wide_library(), arguments, out.device, _ERRORS)
