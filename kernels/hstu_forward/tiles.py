"""Block sizes of the forward's kernels; benchmarks/results/hstu_kernels.md has the measured alternatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.hstu_forward.parameters import Parameters

_MANY_ROWS = 4096
# Rows up to this length have few blocks of columns: all their biases fit the registers.
_UNROLLED_ROWS = 256


@dataclass(frozen=True)
class Batch:
    """The inputs of a forward, and its times in the form of `embed_kernel`."""

    ids: torch.Tensor
    offsets: torch.Tensor
    timestamps: torch.Tensor
    max_seq_len: int
    times: torch.Tensor

    @property
    def rows(self) -> int:
        return self.ids.numel()

    @property
    def sequences(self) -> int:
        return self.offsets.numel() - 1


@dataclass(frozen=True)
class Tile:
    """Block sizes and compiler options of a product."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class AttentionTile:
    """Block sizes and compiler options of an attention.

    Attributes:
        block_m, block_n: rows and columns. block_c: columns of the next projection at a time.
        is_unrolled: whether the biases of all columns are computed first.
        heads: heads of a program in an attention alone.
        is_chained: whether the three products of a float32 share one sum.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    block_c: int = 64
    is_unrolled: bool = False
    heads: int = 1
    is_chained: bool = False
    max_registers: int | None = None


def has_few_rows(batch: Batch) -> bool:
    """Whether blocks of 64 rows would leave most of a large GPU's multiprocessors idle."""
    return batch.rows < _MANY_ROWS


def fits_block_kernel(parameters: Parameters) -> bool:
    """Whether one program has room for a row's heads, its embedding and their products."""
    shape = parameters.shape
    return max(shape.dp, shape.num_heads * max(shape.kp, shape.vp)) <= 64


def _by_fma(parameters: Parameters) -> bool:
    """Whether products are float32 multiply-adds."""
    return parameters.blocks[0].uvqk.dtype == torch.float32


def _is_single(parameters: Parameters) -> bool:
    """Whether a product is a single one of half types on tensor cores."""
    return not _by_fma(parameters) and parameters.products.projections == 1


def block_tile(batch: Batch, parameters: Parameters) -> AttentionTile:
    """The tile of a whole block in one kernel."""
    by_fma = _by_fma(parameters)
    if has_few_rows(batch):
        # Few programs: the longest one decides the time of a launch, so that it has few rows.
        if by_fma or batch.max_seq_len > _UNROLLED_ROWS:
            return AttentionTile(16, 32 if by_fma else 64, 4, 1)
        block_n = max(32, 1 << (batch.max_seq_len - 1).bit_length())
        return AttentionTile(16, block_n, 8, 1, block_c=128, is_unrolled=True)
    if by_fma:
        return AttentionTile(64, 32, 4, 1)
    # Registers for four programs on a multiprocessor.
    return AttentionTile(64, 32, 4, 2, is_chained=True, max_registers=128)


def attention_tile(parameters: Parameters) -> AttentionTile:
    """The tile of an attention alone."""
    if parameters.shape.vp > 64:
        return AttentionTile(64, 32, 4, 1)
    heads = 2 if parameters.shape.num_heads % 2 == 0 else 1
    if _by_fma(parameters):
        return AttentionTile(64, 32, 4, 2, heads=heads)
    if parameters.products.attention > 1:
        return AttentionTile(64, 64, 4, 2)
    return AttentionTile(64, 64, 4, 3, heads=heads)


def project_tile(batch: Batch, parameters: Parameters) -> Tile:
    """The tile of SiLU(XN W^T)."""
    dp, width = parameters.shape.dp, parameters.shape.gates + parameters.shape.factors
    # The largest power of two that divides all columns; u, q, v and k are multiples of 16 each.
    widest = width & -width
    if has_few_rows(batch):
        return Tile(16, min(64, widest), min(64, dp), 4, 2)
    if min(dp, widest) >= 128:
        if _is_single(parameters):
            return Tile(128, 128, 64, 8, 3)
        return Tile(64, 128, 64, 4, 2) if not _by_fma(parameters) else Tile(128, 128, 32, 8, 2)
    return Tile(64, min(64, widest), min(32, dp), 4, 2)


def output_tile(batch: Batch, parameters: Parameters) -> Tile:
    """The tile of the projection of the output; its block_n is all of D."""
    shape = parameters.shape
    block_m = 16 if has_few_rows(batch) else 64 if shape.dp <= 64 else 32
    return Tile(block_m, shape.dp, min(64 if _is_single(parameters) else 32, shape.vp), 4, 3)
