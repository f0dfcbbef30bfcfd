"""Launches of the forward's kernels. Imports triton; `model` imports it when a forward runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from kernels.hstu_forward import tiles
from kernels.hstu_forward.tiles import Batch
from kernels.hstu_forward.triton_kernel_block import attention_kernel, block_kernel
from kernels.hstu_forward.triton_kernels import embed_kernel, output_kernel, project_kernel
from kernels.hstu_forward.weights import POSITION_PAD

if TYPE_CHECKING:
    from kernels.hstu_forward.model import HSTUForward
    from kernels.hstu_forward.weights import BlockWeights


def states_of(forward: HSTUForward, batch: Batch) -> torch.Tensor:
    """(L,) ids -> (L, D) states: a launch a block where rows are narrow, else three."""
    shape = forward.shape
    out = forward.item_weights.new_empty((batch.rows, shape.embedding_dim))
    if batch.rows == 0 or batch.sequences == 0 or batch.max_seq_len == 0:
        return out
    x = forward.item_weights.new_empty((batch.rows, shape.dp))
    projected = _new_projected(forward, batch)
    if tiles.fits_block_kernel(forward):
        # Two, since programs of a block read all rows of one while others write the next.
        following = _new_projected(forward, batch)
        _embed(forward, batch, x, x, projected, is_fused=True)
        for number in range(len(forward.blocks)):
            is_last = number == len(forward.blocks) - 1
            target = (out, out) if is_last else following
            _block(forward, batch, number, projected, x, target)
            projected, following = following, projected
        return out
    # What is multiplied as it is may be rounded to its factor's type when it is made.
    is_split = forward.products.projections > 1
    normalized = torch.empty_like(x, dtype=None if is_split else forward.blocks[0].uvqk.dtype)
    _embed(forward, batch, x, normalized, projected, is_fused=False)
    for number, block in enumerate(forward.blocks):
        _project(forward, batch, normalized, block, projected)
        mixed = _attention(forward, batch, projected, block)
        is_last = number == len(forward.blocks) - 1
        _output(forward, batch, mixed, projected, x, block, out if is_last else x, normalized, is_last)
    return out


def _new_projected(forward: HSTUForward, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for u, (L, gates), and for q, v and k, (L, parts, factors)."""
    shape, weights = forward.shape, forward.blocks[0].uvqk
    u = forward.item_weights.new_empty((batch.rows, shape.gates))
    return u, weights.new_empty((batch.rows, forward.products.attention, shape.factors))


def _on_gpu(forward: HSTUForward) -> bool:
    """Whether there is a GPU's assembly; the interpreter runs on the CPU."""
    return forward.item_weights.device.type == "cuda"


def _can_depend(forward: HSTUForward) -> bool:
    """Whether a kernel may start before the one in front of it has ended (programmatic dependent launch)."""
    return _on_gpu(forward) and torch.cuda.get_device_capability(forward.item_weights.device)[0] >= 9


def _block_c(forward: HSTUForward, wanted: int) -> int:
    """A power of two of columns that divides a projection's."""
    columns = forward.shape.gates + forward.shape.factors
    return min(wanted, columns & -columns)


def _embed(
    forward: HSTUForward,
    batch: Batch,
    x: torch.Tensor,
    normalized: torch.Tensor,
    projected: tuple[torch.Tensor, torch.Tensor],
    is_fused: bool,
) -> None:
    """Embeddings in `x`, and their projection, or their layer norm in `normalized`."""
    shape = forward.shape
    block_m = 16 if tiles.has_few_rows(batch) else 32
    embed_kernel[(triton.cdiv(batch.max_seq_len + 1, block_m), batch.sequences)](
        batch.ids,
        batch.offsets,
        batch.timestamps,
        forward.item_weights,
        forward.position_weights,
        x,
        normalized,
        forward.blocks[0].uvqk,
        *projected,
        batch.times,
        batch.timestamps.stride(0),
        batch.timestamps.size(1),
        shape.embedding_dim**0.5,
        forward.settings.epsilon,
        D=shape.embedding_dim,
        DP=shape.dp,
        GATES=shape.gates,
        FACTORS=shape.factors,
        BLOCK_M=block_m,
        BLOCK_C=_block_c(forward, 64),
        PAD=POSITION_PAD,
        PARTS=forward.products.projections,
        QVK_PARTS=forward.products.attention,
        GPU=_on_gpu(forward),
        FUSED=is_fused,
        num_warps=4,
    )


def _bias(batch: Batch, block: BlockWeights) -> tuple[tuple[object, ...], dict]:
    """Times and a block's bias weights as the kernels' arguments; without times any tensor will do."""
    if block.times is None:
        return (batch.times, block.position_weights, batch.times), {"HAS_TIME": False, "SHIFT": 0}
    tensors = (batch.times, block.position_weights, block.times.entries)
    return tensors, {"HAS_TIME": True, "SHIFT": block.times.shift}


def _sizes(batch: Batch, block: BlockWeights, block_m: int) -> tuple[int, ...]:
    """num_times, num_sequences, num_blocks, width."""
    return batch.timestamps.size(1), batch.sequences, triton.cdiv(batch.max_seq_len, block_m), block.width


def _block(
    forward: HSTUForward,
    batch: Batch,
    number: int,
    projected: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    following: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """All of a block, and the projection of the one after it; behind the last, the states in `following`."""
    shape, tile = forward.shape, tiles.block_tile(batch, forward)
    block, is_last = forward.blocks[number], number == len(forward.blocks) - 1
    tensors, flags = _bias(batch, block)
    sizes = _sizes(batch, block, tile.block_m)
    can_depend = _can_depend(forward)
    # The first reads the times before it waits for the kernel in front of it, which makes them.
    depends = number > 0 and can_depend
    block_kernel[(sizes[2] * batch.sequences,)](
        *projected,
        x,
        *following,
        batch.offsets,
        *tensors,
        block.output,
        block.output_bias,
        forward.blocks[number if is_last else number + 1].uvqk,
        *sizes,
        1.0 / forward.settings.divisor,
        forward.settings.epsilon,
        forward.settings.l2_epsilon,
        HEADS=shape.num_heads,
        V=shape.linear_dim,
        KP=shape.kp,
        VP=shape.vp,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAD=POSITION_PAD,
        BLOCK_C=_block_c(forward, tile.block_c),
        UNROLLED=triton.cdiv(batch.max_seq_len, tile.block_n) if tile.is_unrolled else 0,
        PARTS=forward.products.projections,
        QVK_PARTS=forward.products.attention,
        CHAINED=tile.is_chained,
        GPU=_on_gpu(forward),
        DEPENDENT=can_depend,
        LAST=is_last,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
        **flags,
        **({"launch_pdl": True} if depends else {}),
    )


def _project(
    forward: HSTUForward,
    batch: Batch,
    normalized: torch.Tensor,
    block: BlockWeights,
    projected: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """(L, dp) -> u; q, v and k."""
    shape, tile = forward.shape, tiles.project_tile(batch, forward)
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
        PARTS=forward.products.projections,
        QVK_PARTS=forward.products.attention,
        GPU=_on_gpu(forward),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _attention(
    forward: HSTUForward, batch: Batch, projected: tuple[torch.Tensor, torch.Tensor], block: BlockWeights
) -> torch.Tensor:
    """(L, H * vp)."""
    shape, tile = forward.shape, tiles.attention_tile(forward)
    mixed = forward.item_weights.new_empty((batch.rows, shape.num_heads * shape.vp))
    tensors, flags = _bias(batch, block)
    sizes = _sizes(batch, block, tile.block_m)
    attention_kernel[(sizes[2] * batch.sequences * shape.num_heads // tile.heads,)](
        projected[1],
        mixed,
        batch.offsets,
        *tensors,
        *sizes,
        1.0 / forward.settings.divisor,
        NUM_HEADS=shape.num_heads,
        HEADS=tile.heads,
        KP=shape.kp,
        VP=shape.vp,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAD=POSITION_PAD,
        PARTS=forward.products.attention,
        GPU=_on_gpu(forward),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
        **flags,
    )
    return mixed


def _output(
    forward: HSTUForward,
    batch: Batch,
    mixed: torch.Tensor,
    projected: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    block: BlockWeights,
    out: torch.Tensor,
    normalized: torch.Tensor,
    is_last: bool,
) -> None:
    """(L, H * vp), u and the block's input (L, dp) -> its output and the layer norm of that,
    (L, dp) each; behind the last block (L, D), divided by its norm.
    """
    shape, tile = forward.shape, tiles.output_tile(batch, forward)
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
        forward.settings.epsilon,
        forward.settings.l2_epsilon,
        HEADS=shape.num_heads,
        V=shape.linear_dim,
        VP=shape.vp,
        D=shape.embedding_dim,
        DP=shape.dp,
        BLOCK_M=tile.block_m,
        BLOCK_K=tile.block_k,
        PARTS=forward.products.projections,
        GPU=_on_gpu(forward),
        LAST=is_last,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
