"""The form of a forward: Triton's kernels, or one CUDA C++ kernel, from the device and the shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.cuda_build import missing_compiler
from kernels.hstu_forward import hopper_launch
from kernels.hstu_forward.hopper_weights import shares_of
from kernels.hstu_forward.parameters import Parameters

# Rows with few steps of columns: warps of the CUDA C++ kernel share heads rather than columns.
_SHORT = 64
# Rows beyond which the attention of Triton's form of a wide model takes many steps.
_LONG = 256
# Positions times blocks of a wide model, for each thread block that shares a row, over which one kernel saves
# no more than its longer start takes.
_FEWEST = 300


@dataclass(frozen=True)
class Choice:
    """A backend's name, and why a batch takes it."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def refused(subject: str, reason: str) -> Choice:
    """Triton's form, for a model or a batch that the other form does not take."""
    return Choice("triton", f"the CUDA C++ kernel does not take the {subject}: {reason}")


def of_model(parameters: Parameters, num_buckets: int, has_schedule: bool) -> Choice | None:
    """The form of all of a model's batches, or None where it depends on the batch."""
    if has_schedule:
        return Choice("triton", "the schedule is one of Triton's")
    if reason := hopper_launch.refusal(parameters, num_buckets) or missing_compiler():
        return refused("model", reason)
    return None


def of_shape(parameters: Parameters, sequences: int, max_seq_len: int, multiprocessors: int) -> Choice:
    """The faster form for a batch of a model that both take.

    A program of Triton's form takes its tiles of heads one after another, and many programs share a
    multiprocessor: its time follows the tiles. In the CUDA C++ kernel the warps of a group of 16 rows share
    heads and columns, and a multiprocessor has room for one or two groups: its time follows the groups of a
    multiprocessor. It is faster while these are at most as many as the tiles. All rows count as full.

    benchmarks/results/hstu_forward.md has both forms at drawn shapes.
    """
    if max_seq_len > hopper_launch.LONGEST:
        return refused("batch", f"max_seq_len={max_seq_len}: it has room for {hopper_launch.LONGEST}")
    shape, groups = parameters.shape, sequences * hopper_launch.groups_of(max_seq_len)
    if shares_of(shape) > 1:
        return _of_wide_shape(parameters, sequences, max_seq_len, multiprocessors)
    tiles = shape.num_heads // shape.pack
    if shape.num_blocks == shape.num_heads == 1:
        return Choice("triton", "with one block of one head, one kernel saves little")
    most = tiles * multiprocessors
    if parameters.item_weights.dtype == torch.float32 and max_seq_len > _SHORT:
        # Two groups share a thread block, alone on its multiprocessor: nothing hides their waits.
        most = max(multiprocessors, most * 3 // 4)
    numbers = f"{groups} groups of 16 rows, and {most} by {tiles} tiles of heads on {multiprocessors} SMs"
    if groups <= most:
        return Choice("hopper", f"few groups: {numbers}")
    return Choice("triton", f"many groups: {numbers}")


def _of_wide_shape(parameters: Parameters, sequences: int, max_seq_len: int, multiprocessors: int) -> Choice:
    """`of_shape` for a wide model, whose groups of 16 rows have a cluster of thread blocks each.

    The CUDA C++ kernel is faster while all clusters run at once and fill more than half of the
    multiprocessors. Fewer rows have many of Triton's programs each, which share columns. There the kernel is
    faster for long rows, and in half types where positions and blocks make up for the longer start and for
    what the thread blocks of a cluster exchange.
    """
    shares, is_float32 = shares_of(parameters.shape), parameters.item_weights.dtype == torch.float32
    blocks = sequences * -(-max_seq_len // hopper_launch.ROWS) * shares
    numbers = f"{blocks} thread blocks, {shares} for 16 rows, on {multiprocessors} SMs"
    # A cluster lies in one of the chip's parts. They have pairs of multiprocessors, but larger clusters need
    # not divide them.
    room = multiprocessors if shares == 2 else 7 * multiprocessors // 8
    if blocks > room:
        return Choice("triton", f"many rows: {numbers}")
    if 2 * blocks > multiprocessors:
        return Choice("hopper", f"few rows: {numbers}")
    if max_seq_len > _LONG:
        return Choice("hopper", f"long rows: {max_seq_len} positions, {numbers}")
    if is_float32:
        return Choice("triton", f"fewest rows in float32: {numbers}")
    steps = f"{max_seq_len} positions in {parameters.shape.num_blocks} blocks"
    if max_seq_len * parameters.shape.num_blocks > _FEWEST * shares:
        return Choice("hopper", f"fewest rows, {steps}: {numbers}")
    return Choice("triton", f"fewest rows, {steps}: {numbers}")
