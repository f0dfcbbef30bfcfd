"""The kernels with the arguments that TensorRT passes to a plugin's kernel; the attention once for each mask.

The arguments are pointers to the inputs, 32-bit integers, and the pointer to the output; all tensors are
contiguous. All other parameters are constants of the compiled kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_attention.triton_kernel import hstu_attention_kernel
from kernels.stu_layer.triton_kernels import gate_kernel, norm_kernel


@triton.jit
def hstu_attention_entry(
    q, k, v, offsets, timestamps, position_weights, time_weights,
    num_sequences, num_times, num_blocks,
    out,
    NUM_HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, WIDTH: tl.constexpr,
    SCALE: tl.constexpr, BUCKET_SHIFT: tl.constexpr, TABLE_ADDRESS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DOT: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Research attention on contiguous (L, NUM_HEADS, dim) tensors; see `hstu_attention_kernel`.

    TABLE_ADDRESS is assembly that puts the address of the table of time buckets into $0. The table is data of
    the module, so that no caller passes it.
    """
    address = tl.inline_asm_elementwise(TABLE_ADDRESS, "=l,l", [tl.zeros((), tl.int64)], tl.int64, True, 1)
    hstu_attention_kernel(
        q, k, v, out, k, v, offsets, offsets,
        timestamps, position_weights, time_weights, address.to(tl.pointer_type(tl.int64)), q, q,
        num_times, num_times, num_sequences, num_blocks, 0, WIDTH, 0, 0, 1.0, SCALE,
        NUM_HEADS * K_DIM, K_DIM, NUM_HEADS * K_DIM, K_DIM,
        NUM_HEADS * V_DIM, V_DIM, NUM_HEADS * V_DIM, V_DIM,
        NUM_HEADS, HAS_BIAS=True, HAS_TIME=True, BUCKET_SHIFT=BUCKET_SHIFT,
        HAS_TARGETS=False, HAS_WINDOW=False, HAS_CONTEXT=False, HAS_SCALE=False,
        K_DIM=K_DIM, V_DIM=V_DIM, BLOCK_K=BLOCK_K, BLOCK_V=BLOCK_V, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        HEADS=HEADS, GROUP=GROUP, DOT=DOT, SIGMOID=SIGMOID, USE_TMA=False, CACHED=False,
    )  # fmt: skip


@triton.jit
def stu_attention_entry(
    q, k, v, offsets, num_targets, attn_scale, padded,
    num_sequences, max_seq_len, num_blocks,
    out,
    NUM_HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    ALPHA: tl.constexpr, WINDOW: tl.constexpr, CONTEXTUAL: tl.constexpr, HAS_SCALE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DOT: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Production attention on contiguous (L, NUM_HEADS, dim) tensors; see `hstu_attention_kernel`.

    Only the extent of `padded`, max_seq_len, is used.
    """
    # As in PyTorch's launch: alpha is a float32, and 1 / N is rounded once.
    alpha = tl.full((), ALPHA, tl.float32)
    scale = tl.div_rn(tl.full((), 1.0, tl.float32), max_seq_len.to(tl.float32))
    hstu_attention_kernel(
        q, k, v, out, k, v, offsets, offsets,
        q, q, q, q, num_targets, attn_scale,
        0, 0, num_sequences, num_blocks, 0, 0, CONTEXTUAL, WINDOW, alpha, scale,
        NUM_HEADS * K_DIM, K_DIM, NUM_HEADS * K_DIM, K_DIM,
        NUM_HEADS * V_DIM, V_DIM, NUM_HEADS * V_DIM, V_DIM,
        NUM_HEADS, HAS_BIAS=False, HAS_TIME=False, BUCKET_SHIFT=0,
        HAS_TARGETS=True, HAS_WINDOW=WINDOW > 0, HAS_CONTEXT=CONTEXTUAL > 0, HAS_SCALE=HAS_SCALE,
        K_DIM=K_DIM, V_DIM=V_DIM, BLOCK_K=BLOCK_K, BLOCK_V=BLOCK_V, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        HEADS=HEADS, GROUP=GROUP, DOT=DOT, SIGMOID=SIGMOID, USE_TMA=False, CACHED=False,
    )  # fmt: skip


@triton.jit
def stu_norm_entry(
    x, weight, bias, num_rows, out,
    EPS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The layer norm of contiguous rows, (L, D); see `norm_kernel`."""
    norm_kernel(x, weight, bias, out, num_rows, EPS, D, D, BLOCK_M, BLOCK_D)


@triton.jit
def stu_gate_entry(
    u, a, weight, bias, num_groups, out,
    EPS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    IS_GROUP_NORM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The gate of contiguous rows, (L, WIDTH); see `gate_kernel`."""
    gate_kernel(
        u, a, weight, bias, out, num_groups, EPS, WIDTH, WIDTH, WIDTH, GROUPS, SIZE,
        IS_GROUP_NORM=IS_GROUP_NORM, COPIES_A=True, BLOCK_M=BLOCK_M, BLOCK_S=BLOCK_S,
    )  # fmt: skip
