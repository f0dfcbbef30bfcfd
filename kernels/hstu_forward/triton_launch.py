"""Launches of the forward's kernels. Imports triton; `model` imports it when a forward runs."""

from __future__ import annotations

import torch
import triton

from kernels.hstu_forward import tiles
from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.tiles import Batch
from kernels.hstu_forward.triton_kernel_block import attention_kernel, block_kernel
from kernels.hstu_forward.triton_kernels import embed_kernel, output_kernel, project_kernel
from kernels.hstu_forward.weights import POSITION_PAD, BlockWeights


def states_of(parameters: Parameters, batch: Batch) -> torch.Tensor:
    """(L,) ids -> (L, D) states: a launch a block where rows are narrow, else three."""
    shape = parameters.shape
    out = parameters.item_weights.new_empty((batch.rows, shape.embedding_dim))
    if batch.rows == 0 or batch.sequences == 0 or batch.max_seq_len == 0:
        return out
    x = parameters.item_weights.new_empty((batch.rows, shape.dp))
    projected = _new_projected(parameters, batch)
    if tiles.fits_block_kernel(parameters):
        # Two buffers: programs of a block read all rows of one while others write the next.
        following = _new_projected(parameters, batch)
        _embed(parameters, batch, x, x, projected, is_fused=True)
        for number in range(len(parameters.blocks)):
            is_last = number == len(parameters.blocks) - 1
            target = (out, out) if is_last else following
            _block(parameters, batch, number, projected, x, target)
            projected, following = following, projected
        return out
    # A tensor that is not split may be rounded to its factor's type at once.
    is_split = parameters.products.projections > 1
    normalized = torch.empty_like(x, dtype=None if is_split else parameters.blocks[0].uvqk.dtype)
    _embed(parameters, batch, x, normalized, projected, is_fused=False)
    for number, block in enumerate(parameters.blocks):
        _project(parameters, batch, normalized, block, projected)
        mixed = _attention(parameters, batch, projected, block)
        is_last = number == len(parameters.blocks) - 1
        _output(parameters, batch, mixed, projected, x, block, out if is_last else x, normalized, is_last)
    return out


def _new_projected(parameters: Parameters, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised u, (L, gates), and q, v and k, (L, parts, factors)."""
    shape, weights = parameters.shape, parameters.blocks[0].uvqk
    u = parameters.item_weights.new_empty((batch.rows, shape.gates))
    return u, weights.new_empty((batch.rows, parameters.products.attention, shape.factors))


def _on_gpu(parameters: Parameters) -> bool:
    """Whether kernels may use a GPU's assembly; the interpreter runs on the CPU."""
    return parameters.item_weights.device.type == "cuda"


def _can_depend(parameters: Parameters) -> bool:
    """Whether a kernel may start before its predecessor ends (programmatic dependent launch)."""
    return _on_gpu(parameters) and torch.cuda.get_device_capability(parameters.item_weights.device)[0] >= 9


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
    is_fused: bool,
) -> None:
    """Embeddings in `x`, and their projection, or their layer norm in `normalized`."""
    shape = parameters.shape
    block_m = 16 if tiles.has_few_rows(batch) else 32
    embed_kernel[(triton.cdiv(batch.max_seq_len + 1, block_m), batch.sequences)](
        batch.ids,
        batch.offsets,
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
        shape.embedding_dim**0.5,
        parameters.settings.epsilon,
        D=shape.embedding_dim,
        DP=shape.dp,
        GATES=shape.gates,
        FACTORS=shape.factors,
        BLOCK_M=block_m,
        BLOCK_C=_block_c(parameters, 64),
        PAD=POSITION_PAD,
        PARTS=parameters.products.projections,
        QVK_PARTS=parameters.products.attention,
        GPU=_on_gpu(parameters),
        FUSED=is_fused,
        num_warps=4,
    )


def _bias(batch: Batch, block: BlockWeights) -> tuple[tuple[object, ...], dict]:
    """Times and a block's bias weights as the kernels' arguments; any tensor replaces missing times."""
    if block.times is None:
        return (batch.times, block.position_weights, batch.times), {"HAS_TIME": False, "SHIFT": 0}
    tensors = (batch.times, block.position_weights, block.times.entries)
    return tensors, {"HAS_TIME": True, "SHIFT": block.times.shift}


def _sizes(batch: Batch, block: BlockWeights, block_m: int) -> tuple[int, ...]:
    """num_times, num_sequences, num_blocks, width."""
    return batch.timestamps.size(1), batch.sequences, triton.cdiv(batch.max_seq_len, block_m), block.width


def _block(
    parameters: Parameters,
    batch: Batch,
    number: int,
    projected: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    following: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """A block and the projection of the next one; for the last block, the states in `following`."""
    shape, tile = parameters.shape, tiles.block_tile(batch, parameters)
    block, is_last = parameters.blocks[number], number == len(parameters.blocks) - 1
    tensors, flags = _bias(batch, block)
    sizes = _sizes(batch, block, tile.block_m)
    can_depend = _can_depend(parameters)
    # The first block reads the times before it waits for its predecessor, which writes them.
    depends = number > 0 and can_depend
    block_kernel[(sizes[2] * batch.sequences,)](
        *projected,
        x,
        *following,
        batch.offsets,
        *tensors,
        block.output,
        block.output_bias,
        parameters.blocks[number if is_last else number + 1].uvqk,
        *sizes,
        1.0 / parameters.settings.divisor,
        parameters.settings.epsilon,
        parameters.settings.l2_epsilon,
        HEADS=shape.num_heads,
        V=shape.linear_dim,
        KP=shape.kp,
        VP=shape.vp,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAD=POSITION_PAD,
        BLOCK_C=_block_c(parameters, tile.block_c),
        UNROLLED=triton.cdiv(batch.max_seq_len, tile.block_n) if tile.is_unrolled else 0,
        PARTS=parameters.products.projections,
        QVK_PARTS=parameters.products.attention,
        CHAINED=tile.is_chained,
        GPU=_on_gpu(parameters),
        DEPENDENT=can_depend,
        LAST=is_last,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
        **flags,
        **({"launch_pdl": True} if depends else {}),
    )


def _project(
    parameters: Parameters,
    batch: Batch,
    normalized: torch.Tensor,
    block: BlockWeights,
    projected: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """(L, dp) -> u; q, v and k."""
    shape, tile = parameters.shape, tiles.project_tile(batch, parameters)
    columns = shape.gates + shape.factors
    project_kernel[(triton.cdiv(batch.rows, tile.block_m) * (columns // tile.block_n),)](
        normalized,
        block.uvqk,
        *projected,
        batch.offsets,
        batch.sequences,
        DP=shape.dp,
        GATES=shape.gates,
        FACTORS=shape.factors,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        PARTS=parameters.products.projections,
        QVK_PARTS=parameters.products.attention,
        GPU=_on_gpu(parameters),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _attention(
    parameters: Parameters, batch: Batch, projected: tuple[torch.Tensor, torch.Tensor], block: BlockWeights
) -> torch.Tensor:
    """(L, H * vp)."""
    shape, tile = parameters.shape, tiles.attention_tile(parameters)
    mixed = parameters.item_weights.new_empty((batch.rows, shape.num_heads * shape.vp))
    tensors, flags = _bias(batch, block)
    sizes = _sizes(batch, block, tile.block_m)
    attention_kernel[(sizes[2] * batch.sequences * shape.num_heads // tile.heads,)](
        projected[1],
        mixed,
        batch.offsets,
        *tensors,
        *sizes,
        1.0 / parameters.settings.divisor,
        NUM_HEADS=shape.num_heads,
        HEADS=tile.heads,
        KP=shape.kp,
        VP=shape.vp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAD=POSITION_PAD,
        PARTS=parameters.products.attention,
        GPU=_on_gpu(parameters),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
        **flags,
    )
    return mixed


def _output(
    parameters: Parameters,
    batch: Batch,
    mixed: torch.Tensor,
    projected: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    block: BlockWeights,
    out: torch.Tensor,
    normalized: torch.Tensor,
    is_last: bool,
) -> None:
    """(L, H * vp), u and the block's input (L, dp) -> its output and the output's layer norm, (L, dp) each.

    The last block's output is (L, D), divided by its norm.
    """
    shape, tile = parameters.shape, tiles.output_tile(batch, parameters)
    output_kernel[(triton.cdiv(batch.rows, tile.block_m),)](
        mixed,
        projected[0],
        block.output,
        block.output_bias,
        x,
        out,
        normalized,
        batch.offsets,
        batch.sequences,
        parameters.settings.epsilon,
        parameters.settings.l2_epsilon,
        HEADS=shape.num_heads,
        V=shape.linear_dim,
        VP=shape.vp,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=tile.block_m,
        BLOCK_K=tile.block_k,
        PARTS=parameters.products.projections,
        GPU=_on_gpu(parameters),
        LAST=is_last,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
