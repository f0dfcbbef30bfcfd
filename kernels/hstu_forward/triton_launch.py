"""Launches of the forward's kernels and their block sizes. Imports triton; `model` imports it when a forward runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from kernels.hstu_attention.masks import ResearchMask
from kernels.hstu_attention.triton_launch import launch
from kernels.hstu_forward.triton_kernels import embed_kernel, output_kernel, project_kernel

if TYPE_CHECKING:
    from kernels.hstu_forward.model import HSTUForward
    from kernels.hstu_forward.weights import BlockWeights

# Below this many rows a block of 64 would leave most of a large GPU's multiprocessors idle.
_MANY_ROWS = 4096


def _row_block(rows: int) -> int:
    return 64 if rows >= _MANY_ROWS else 16


def embed(forward: HSTUForward, ids: torch.Tensor, offsets: torch.Tensor, max_seq_len: int) -> torch.Tensor:
    """(L,) ids -> (L, dp)."""
    shape = forward.shape
    x = ids.new_empty((ids.numel(), shape.dp), dtype=forward.item_weights.dtype)
    grid = (triton.cdiv(max_seq_len, 32), offsets.numel() - 1)
    if ids.numel() and min(grid):
        embed_kernel[grid](
            ids,
            offsets,
            forward.item_weights,
            forward.position_weights,
            x,
            shape.embedding_dim**0.5,
            D=shape.embedding_dim,
            DP=shape.dp,
            BLOCK_M=32,
            num_warps=4,
        )
    return x


def project(
    forward: HSTUForward, x: torch.Tensor, block: BlockWeights, offsets: torch.Tensor
) -> torch.Tensor:
    """(L, dp) -> u, v, q, k side by side, (L, projected)."""
    shape = forward.shape
    uvqk = x.new_empty((x.size(0), shape.projected))
    block_m, block_n = _row_block(x.size(0)), min(64, shape.projected)
    if x.size(0):
        project_kernel[(triton.cdiv(x.size(0), block_m) * (shape.projected // block_n),)](
            x,
            block.uvqk,
            uvqk,
            offsets,
            offsets.numel() - 1,
            forward.settings.epsilon,
            D=shape.embedding_dim,
            DP=shape.dp,
            WIDTH=shape.projected,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=min(64, shape.dp),
            DOT=forward.dot_precision,
            num_warps=4,
            num_stages=2,
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
) -> torch.Tensor:
    """(L, H, vp), (L, projected) and the block's input (L, dp) -> (L, dp), or (L, D), normalised, if last."""
    shape = forward.shape
    out = x.new_empty((x.size(0), shape.embedding_dim if is_last else shape.dp))
    block_m = min(_row_block(x.size(0)), 32 if shape.dp > 64 else 64)
    if x.size(0):
        output_kernel[(triton.cdiv(x.size(0), block_m),)](
            mixed,
            uvqk,
            block.output,
            block.output_bias,
            x,
            out,
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
            BLOCK_M=block_m,
            BLOCK_K=min(32, shape.vp),
            DOT=forward.dot_precision,
            LAST=is_last,
            num_warps=4,
            num_stages=2,
        )
    return out
