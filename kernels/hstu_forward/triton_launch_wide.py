"""Launches of a block in three kernels. Imports triton."""

from __future__ import annotations

from types import ModuleType

import torch
import triton

from kernels.hstu_forward.launch_arguments import (
    bias_arguments,
    dependence,
    firsts_of,
    on_gpu,
    sizes_of,
    unrolled,
)
from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.schedules import AttentionTile, Batch, Tile, Wide
from kernels.hstu_forward.triton_kernel_wide import (
    attention_kernel,
    output_kernel,
    project_kernel,
    states_kernel,
)
from kernels.hstu_forward.weights import POSITION_PAD, BlockWeights


def gluon_launch() -> ModuleType:
    """The launches of `gluon_kernels`. Imported where a schedule asks for them: other GPUs need no Gluon."""
    from kernels.hstu_forward import gluon_launch

    return gluon_launch


def wide_input(parameters: Parameters, wide: Wide, x: torch.Tensor) -> torch.Tensor:
    """What a block's projection multiplies: a tensor for the layer norm of x, or x itself."""
    # A program of the output with whole rows computes their norms.
    if wide.output.block_n < parameters.shape.dp:
        return x
    # A tensor that is not split may be rounded to its factor's type at once.
    is_split = parameters.products.projections > 1
    return torch.empty_like(x, dtype=None if is_split else parameters.blocks[0].uvqk.dtype)


def wide_blocks(
    parameters: Parameters,
    batch: Batch,
    wide: Wide,
    x: torch.Tensor,
    normalized: torch.Tensor,
    projected: list[tuple[torch.Tensor, torch.Tensor]],
    out: torch.Tensor,
) -> None:
    """All blocks in three kernels each, from embeddings and `wide_input`; the states in `out`."""
    has_rows = normalized is not x
    mixed = _mixed(parameters, batch, wide.attention.splits)
    for number, block in enumerate(parameters.blocks):
        own = projected[number]
        _project(parameters, batch, wide.project, normalized, block, own, norms=not has_rows)
        _attention(parameters, batch, wide.attention, own, block, mixed)
        is_last = has_rows and number == len(parameters.blocks) - 1
        target = out if is_last else x
        _output(parameters, batch, wide.output, mixed, own, x, block, target, normalized, is_last)
    if not has_rows:
        _states(parameters, batch, x, out)


def _mixed(parameters: Parameters, batch: Batch, splits: int) -> torch.Tensor:
    """(splits, L, H * vp) for the attention; float32 where a sum of splits is to be rounded once."""
    dtype = parameters.item_weights.dtype if splits == 1 else torch.float32
    return parameters.item_weights.new_empty((splits, batch.rows, parameters.shape.gates), dtype=dtype)


def _project(
    parameters: Parameters,
    batch: Batch,
    tile: Tile,
    x: torch.Tensor,
    block: BlockWeights,
    projected: tuple[torch.Tensor, torch.Tensor],
    norms: bool,
) -> None:
    """(L, dp) -> u; q, v and k. `norms`: of the layer norm of x."""
    if tile.programs:
        if norms or batch.cached is not None:
            raise ValueError("project: programs that keep weights have neither norms nor a cache")
        gluon_launch().project(parameters, batch, tile, x, block, projected)
        return
    shape = parameters.shape
    columns = shape.gates + shape.factors
    project_kernel[(triton.cdiv(batch.rows, tile.block_m) * (columns // tile.block_n),)](
        x,
        block.uvqk,
        *projected,
        batch.offsets,
        batch.offsets if batch.cached is None else batch.cached.slots,
        batch.sequences,
        parameters.settings.epsilon,
        D=shape.embedding_dim,
        DP=shape.dp,
        GATES=shape.gates,
        FACTORS=shape.factors,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        PARTS=parameters.products.projections,
        QVK_PARTS=parameters.products.attention,
        NORMS=norms,
        CACHED=batch.cached is not None,
        GPU=on_gpu(parameters),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **dependence(parameters),
    )


def _attention(
    parameters: Parameters,
    batch: Batch,
    tile: AttentionTile,
    projected: tuple[torch.Tensor, torch.Tensor],
    block: BlockWeights,
    mixed: torch.Tensor,
) -> None:
    """(splits, L, H * vp) in `mixed`."""
    shape = parameters.shape
    tensors, flags = bias_arguments(batch, block)
    sizes = sizes_of(batch, block, tile.block_m)
    programs = batch.row_blocks(tile.block_m) * batch.sequences * shape.num_heads // tile.heads
    attention_kernel[(programs, tile.splits)](
        projected[1],
        mixed,
        batch.offsets,
        firsts_of(batch),
        *tensors,
        *sizes,
        batch.rows,
        1.0 / parameters.settings.divisor,
        NUM_HEADS=shape.num_heads,
        HEADS=tile.heads,
        PACK=shape.pack,
        KP=shape.kp,
        VP=shape.vp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAD=POSITION_PAD,
        UNROLLED=unrolled(batch, tile),
        PARTS=parameters.products.attention,
        CHAINED=tile.is_chained,
        AHEAD=tile.is_ahead,
        SPLITS=tile.splits,
        GPU=on_gpu(parameters),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        CACHED=batch.cached is not None,
        maxnreg=tile.max_registers,
        **flags,
        **dependence(parameters),
    )


def _output(
    parameters: Parameters,
    batch: Batch,
    tile: Tile,
    mixed: torch.Tensor,
    projected: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    block: BlockWeights,
    out: torch.Tensor,
    normalized: torch.Tensor,
    is_last: bool,
) -> None:
    """(splits, L, H * vp), u and the block's input (L, dp) -> its output in `out`, (L, dp).

    Programs with whole rows write its layer norm as well, or, for the last block, the states (L, D).
    """
    if tile.programs:
        if mixed.size(0) > 1:
            raise ValueError("output: programs that keep weights have no splits")
        u = projected[0]
        gluon_launch().output(parameters, batch, tile, mixed, u, x, block, out, normalized, is_last)
        return
    shape = parameters.shape
    output_kernel[(triton.cdiv(batch.rows, tile.block_m) * (shape.dp // tile.block_n),)](
        mixed,
        projected[0],
        block.output,
        block.output_bias,
        x,
        out,
        normalized,
        batch.offsets,
        batch.sequences,
        batch.rows,
        parameters.settings.epsilon,
        parameters.settings.l2_epsilon,
        HEADS=shape.num_heads,
        V=shape.linear_dim,
        VP=shape.vp,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        PARTS=parameters.products.projections,
        SPLITS=mixed.size(0),
        GPU=on_gpu(parameters),
        LAST=is_last,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **dependence(parameters),
    )


def _states(parameters: Parameters, batch: Batch, x: torch.Tensor, out: torch.Tensor) -> None:
    """(L, dp) -> (L, D), each row over its norm."""
    shape = parameters.shape
    block_m = max(1, 4096 // shape.dp)
    states_kernel[(triton.cdiv(batch.rows, block_m),)](
        x,
        out,
        batch.offsets,
        batch.sequences,
        parameters.settings.l2_epsilon,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=block_m,
        num_warps=4,
        **dependence(parameters),
    )
