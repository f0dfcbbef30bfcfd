"""Launches of `gluon_kernels`. Imports Triton's Gluon, and only GPUs of compute capability 9.0 run them."""

from __future__ import annotations

import torch
import triton

from kernels.hstu_forward.gluon_kernels import output_kernel, project_kernel
from kernels.hstu_forward.launch_arguments import dependence
from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.schedules import Batch, Tile
from kernels.hstu_forward.weights import BlockWeights


def project(
    parameters: Parameters,
    batch: Batch,
    tile: Tile,
    x: torch.Tensor,
    block: BlockWeights,
    projected: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """(L, dp) -> u; q, v and k."""
    shape = parameters.shape
    blocks = (shape.gates + shape.factors) // tile.block_n
    most = max(1, tile.programs // blocks)
    project_kernel[(min(most, triton.cdiv(batch.rows, tile.block_m)) * blocks,)](
        x,
        block.uvqk,
        *projected,
        batch.offsets,
        batch.sequences,
        DP=shape.dp,
        GATES=shape.gates,
        FACTORS=shape.factors,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        num_warps=tile.num_warps,
        **dependence(parameters),
    )


def output(
    parameters: Parameters,
    batch: Batch,
    tile: Tile,
    mixed: torch.Tensor,
    u: torch.Tensor,
    x: torch.Tensor,
    block: BlockWeights,
    out: torch.Tensor,
    normalized: torch.Tensor,
    is_last: bool,
) -> None:
    """(1, L, H * vp), u and the block's input -> its output in `out`, and its layer norm or the states."""
    shape = parameters.shape
    output_kernel[(min(tile.programs, triton.cdiv(batch.rows, tile.block_m)),)](
        mixed,
        u,
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
        LAST=is_last,
        num_warps=tile.num_warps,
        **dependence(parameters),
    )
