"""Launches of the forward's kernels. Imports triton; `model` imports it when a forward runs."""

from __future__ import annotations

import torch
import triton

from kernels.hstu_forward import tiles
from kernels.hstu_forward.launch_arguments import (
    bias_arguments,
    can_depend,
    firsts_of,
    on_gpu,
    sizes_of,
    unrolled,
)
from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.schedules import AttentionTile, Batch, EmbedTile, Schedule, Wide
from kernels.hstu_forward.triton_kernel_block import block_kernel
from kernels.hstu_forward.triton_kernels import embed_kernel
from kernels.hstu_forward.triton_launch_wide import wide_blocks, wide_input
from kernels.hstu_forward.weights import POSITION_PAD


def states_of(parameters: Parameters, batch: Batch, schedule: Schedule | None = None) -> torch.Tensor:
    """(L,) ids -> (L, D) states: a launch a block where rows are narrow, else three."""
    shape = parameters.shape
    out = parameters.item_weights.new_empty((batch.rows, shape.embedding_dim))
    if batch.rows == 0 or batch.sequences == 0 or batch.max_seq_len == 0:
        return out
    schedule = schedule or tiles.schedule(parameters, batch, _multiprocessors(parameters))
    x = parameters.item_weights.new_empty((batch.rows, shape.dp))
    if isinstance(schedule.block, Wide):
        projected = _projections(parameters, batch, 1)
        normalized = wide_input(parameters, schedule.block, x)
        has_rows = normalized is not x
        _embed(parameters, batch, x, normalized, projected[0], schedule.embed, is_fused=False, norms=has_rows)
        wide_blocks(parameters, batch, schedule.block, x, normalized, projected, out)
        return out
    # Two buffers: programs of a block read all rows of one while others write the next.
    projected = _projections(parameters, batch, 2)
    _embed(parameters, batch, x, x, projected[0], schedule.embed, is_fused=True, norms=False)
    for number, own in enumerate(projected):
        target = projected[number + 1] if number + 1 < len(projected) else (out, out)
        _block(parameters, batch, schedule.block, number, own, x, target)
    return out


def _projections(
    parameters: Parameters, batch: Batch, buffers: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each block, u, (L, gates), and q, v and k, (L, parts, factors) or the cache's.

    All uninitialised, in so many buffers that take turns."""
    shape, weights, parts = parameters.shape, parameters.blocks[0].uvqk, parameters.products.attention
    us = [parameters.item_weights.new_empty((batch.rows, shape.gates)) for _ in range(buffers)]
    if batch.cached is None:
        qvks = [weights.new_empty((batch.rows, parts, shape.factors)) for _ in range(buffers)]
    else:
        qvks = list(batch.cached.qvk)
    return [(us[n % buffers], qvks[n % len(qvks)]) for n in range(len(parameters.blocks))]


def _multiprocessors(parameters: Parameters) -> int:
    """Multiprocessors of the parameters' GPU. The interpreter takes the schedules of an H200."""
    if not parameters.item_weights.is_cuda:
        return 132
    return torch.cuda.get_device_properties(parameters.item_weights.device).multi_processor_count


def _block_c(parameters: Parameters, wanted: int) -> int:
    """A power of two, at most `wanted`, that divides the columns of a projection."""
    columns = parameters.shape.gates + parameters.shape.factors
    return min(wanted, columns & -columns)


def _embed(
    parameters: Parameters,
    batch: Batch,
    x: torch.Tensor,
    normalized: torch.Tensor,
    projected: tuple[torch.Tensor, torch.Tensor],
    tile: EmbedTile,
    is_fused: bool,
    norms: bool,
) -> None:
    """Embeddings in `x`; their projection with `is_fused`, their layer norm in `normalized` with `norms`."""
    shape = parameters.shape
    row_blocks = triton.cdiv(batch.max_seq_len + 1, tile.block_m)
    # A projection reads weights alone before it waits, the first block in one kernel the times as well. Many
    # programs would share their multiprocessors with the ones that wait.
    has_room = row_blocks * batch.sequences * tile.groups <= _multiprocessors(parameters)
    releases = can_depend(parameters) and not is_fused and has_room
    embed_kernel[(row_blocks, batch.sequences, tile.groups)](
        batch.ids,
        batch.offsets,
        firsts_of(batch),
        batch.timestamps,
        parameters.item_weights,
        parameters.position_weights,
        x,
        normalized,
        parameters.blocks[0].uvqk,
        *projected,
        batch.times,
        batch.timestamps.stride(0),
        batch.timestamps.size(1),
        0 if batch.cached is None else batch.cached.capacity,
        shape.embedding_dim**0.5,
        parameters.settings.epsilon,
        D=shape.embedding_dim,
        DP=shape.dp,
        GATES=shape.gates,
        FACTORS=shape.factors,
        BLOCK_M=tile.block_m,
        BLOCK_C=_block_c(parameters, 64),
        PAD=POSITION_PAD,
        PARTS=parameters.products.projections,
        QVK_PARTS=parameters.products.attention,
        GPU=on_gpu(parameters),
        FUSED=is_fused,
        NORMS=norms,
        CACHED=batch.cached is not None,
        RELEASES=releases,
        num_warps=4,
    )


def _block(
    parameters: Parameters,
    batch: Batch,
    tile: AttentionTile,
    number: int,
    projected: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    following: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """A block and the projection of the next one; for the last block, the states in `following`."""
    shape = parameters.shape
    block, is_last = parameters.blocks[number], number == len(parameters.blocks) - 1
    tensors, flags = bias_arguments(batch, block)
    sizes = sizes_of(batch, block, tile.block_m)
    is_dependent = can_depend(parameters)
    # The first block reads the times before it waits for its predecessor, which writes them.
    depends = number > 0 and is_dependent
    block_kernel[(batch.row_blocks(tile.block_m) * batch.sequences,)](
        *projected,
        x,
        *following,
        batch.offsets,
        firsts_of(batch),
        *tensors,
        block.output,
        block.output_bias,
        parameters.blocks[number if is_last else number + 1].uvqk,
        *sizes,
        1.0 / parameters.settings.divisor,
        parameters.settings.epsilon,
        parameters.settings.l2_epsilon,
        HEADS=shape.num_heads,
        PACK=shape.pack,
        V=shape.linear_dim,
        KP=shape.kp,
        VP=shape.vp,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAD=POSITION_PAD,
        BLOCK_C=_block_c(parameters, tile.block_c),
        UNROLLED=unrolled(batch, tile),
        PARTS=parameters.products.projections,
        QVK_PARTS=parameters.products.attention,
        CHAINED=tile.is_chained,
        AHEAD=tile.is_ahead,
        GPU=on_gpu(parameters),
        DEPENDENT=is_dependent,
        LAST=is_last,
        CACHED=batch.cached is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
        **flags,
        **({"launch_pdl": True} if depends else {}),
    )
