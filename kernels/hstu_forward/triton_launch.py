"""Launches of the forward's kernels and their block sizes. Imports triton; `model` imports it when a
forward runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from kernels.hstu_attention.masks import ResearchMask
from kernels.hstu_attention.triton_launch import launch
from kernels.hstu_forward.triton_kernels import embed_kernel, output_kernel, project_kernel

if TYPE_CHECKING:
    from kernels.hstu_forward.model import HSTUForward
    from kernels.hstu_forward.weights import BlockWeights

# Below this many rows blocks of 64 would leave most of a large GPU's multiprocessors idle.
_MANY_ROWS = 4096


@dataclass(frozen=True)
class Tile:
    """Block sizes of a product and how it is compiled."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def project_tile(rows: int, forward: HSTUForward) -> Tile:
    """For SiLU(XN W^T)."""
    dp, width = forward.shape.dp, forward.shape.projected
    # The largest power of two that divides the width; every part of it is a multiple of 16.
    widest = width & -width
    if rows < _MANY_ROWS:
        return Tile(16, min(64, widest), min(64, dp), 4, 2)
    if min(dp, widest) >= 128:
        return Tile(128, 128, 32, 8, 2)
    return Tile(64, min(64, widest), min(32, dp), 4, 2)


def output_tile(rows: int, forward: HSTUForward) -> Tile:
    """For the projection of the output; its block_n is all of D."""
    shape = forward.shape
    block_m = 16 if rows < _MANY_ROWS else 64 if shape.dp <= 64 else 32
    return Tile(block_m, shape.dp, min(32, shape.vp), 4, 2)


def embed(
    forward: HSTUForward, ids: torch.Tensor, offsets: torch.Tensor, max_seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(L,) ids -> the embeddings and their layer norm, (L, dp) each."""
    shape = forward.shape
    x = ids.new_empty((ids.numel(), shape.dp), dtype=forward.item_weights.dtype)
    normalized = torch.empty_like(x)
    grid = (triton.cdiv(max_seq_len, 32), offsets.numel() - 1)
    if ids.numel() and min(grid):
        embed_kernel[grid](
            ids,
            offsets,
            forward.item_weights,
            forward.position_weights,
            x,
            normalized,
            shape.embedding_dim**0.5,
            forward.settings.epsilon,
            D=shape.embedding_dim,
            DP=shape.dp,
            BLOCK_M=32,
            num_warps=4,
        )
    return x, normalized


def project(
    forward: HSTUForward, normalized: torch.Tensor, block: BlockWeights, offsets: torch.Tensor
) -> torch.Tensor:
    """(L, dp) -> u, v, q, k side by side, (L, projected)."""
    shape, rows = forward.shape, normalized.size(0)
    uvqk = normalized.new_empty((rows, shape.projected))
    tile = project_tile(rows, forward)
    if rows:
        project_kernel[(triton.cdiv(rows, tile.block_m) * (shape.projected // tile.block_n),)](
            normalized,
            block.uvqk,
            block.uvqk_low,
            uvqk,
            offsets,
            offsets.numel() - 1,
            DP=shape.dp,
            WIDTH=shape.projected,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            SPLIT=forward.dot_precision == "tf32x3",
            DOT=forward.dot_precision,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return uvqk


def mix(
    forward: HSTUForward, uvqk: torch.Tensor, offsets: torch.Tensor, max_seq_len: int, mask: ResearchMask
) -> torch.Tensor:
    """Attention: (L, projected) -> (L, H, vp)."""
    shape = forward.shape
    heads, values, keys = shape.num_heads, shape.num_heads * shape.vp, shape.num_heads * shape.kp
    _, v, q, k = uvqk.split([values, values, keys, keys], dim=1)
    return launch(
        q.view(-1, heads, shape.kp),
        k.view(-1, heads, shape.kp),
        v.view(-1, heads, shape.vp),
        offsets,
        max_seq_len,
        mask,
        forward.dot_precision,
    )


def output(
    forward: HSTUForward,
    mixed: torch.Tensor,
    uvqk: torch.Tensor,
    x: torch.Tensor,
    block: BlockWeights,
    offsets: torch.Tensor,
    is_last: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(L, H, vp), (L, projected) and the block's input (L, dp) -> its output and the layer norm of that,
    (L, dp) each.

    The last block's: (L, D), divided by its norm, twice.
    """
    shape, rows = forward.shape, x.size(0)
    out = x.new_empty((rows, shape.embedding_dim if is_last else shape.dp))
    normalized = out if is_last else torch.empty_like(out)
    tile = output_tile(rows, forward)
    if rows:
        output_kernel[(triton.cdiv(rows, tile.block_m),)](
            mixed,
            uvqk,
            block.output,
            block.output_low,
            block.output_bias,
            x,
            out,
            normalized,
            offsets,
            offsets.numel() - 1,
            forward.settings.epsilon,
            forward.settings.l2_epsilon,
            uvqk.stride(0),
            HEADS=shape.num_heads,
            V=shape.linear_dim,
            VP=shape.vp,
            D=shape.embedding_dim,
            DP=shape.dp,
            BLOCK_M=tile.block_m,
            BLOCK_K=tile.block_k,
            SPLIT=forward.dot_precision == "tf32x3",
            DOT=forward.dot_precision,
            LAST=is_last,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return out, normalized
