"""The production STU layer between its products, in Triton: the input norm, and the gate with its norm.

A program computes whole groups: rows of x, or a row's heads. A row's result depends on this row alone, so
garbage in another row changes no bit of it. Norms and activations are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_attention.triton_kernel_numbers import sigmoid_exact


@triton.jit
def _normal(x, used, eps, SIZE: tl.constexpr):
    """Rows of x less their mean, over their standard deviation; columns that are not used become zero."""
    mean = tl.sum(x, axis=1) / SIZE
    deviation = tl.where(used, x - mean[:, None], 0.0)
    return deviation * (1.0 / tl.sqrt(tl.sum(deviation * deviation, axis=1) / SIZE + eps))[:, None]


@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    X, weight, bias, Out, num_rows, eps, stride: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Out = layer_norm(X), (L, D) both, rows of X `stride` apart. weight, bias: (D,). Grid: row blocks."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_D)
    used = (rows < num_rows)[:, None] & (cols < D)[None, :]
    row = rows.to(tl.int64)[:, None]
    x = tl.load(X + row * stride + cols[None, :], mask=used, other=0.0).to(tl.float32)
    normal = _normal(x, used, eps, D)
    normal = normal * tl.load(weight + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
    normal += tl.load(bias + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
    tl.store(Out + row * D + cols[None, :], normal.to(Out.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["num_groups"])
def gate_kernel(
    U, A, weight, bias, Y, num_groups, eps,
    stride_u: tl.constexpr, stride_a: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
    SIZE: tl.constexpr, IS_GROUP_NORM: tl.constexpr, COPIES_A: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Y = [SiLU(U), A, SiLU(U) * norm(A)]; without COPIES_A, the middle third of Y is A already.

    Args:
        U, A: (L, WIDTH), rows stride_u and stride_a apart. Y: (L, 3 * WIDTH). weight, bias: (WIDTH,), or
            (GROUPS,) with IS_GROUP_NORM.
        num_groups: L * GROUPS. A row has GROUPS groups of SIZE elements, each with a norm of its own.
            Grid: blocks of BLOCK_M groups.
    """
    groups = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_S)
    used = (groups < num_groups)[:, None] & (cols < SIZE)[None, :]
    row = (groups // GROUPS).to(tl.int64)[:, None]
    group = groups % GROUPS
    at = group[:, None] * SIZE + cols[None, :]
    u = tl.load(U + row * stride_u + at, mask=used, other=0.0).to(tl.float32)
    to = Y + row * (3 * WIDTH) + at
    a = tl.load(A + row * stride_a + at, mask=used, other=0.0)
    if COPIES_A:
        tl.store(to + WIDTH, a, mask=used)
    a = a.to(tl.float32)
    if IS_GROUP_NORM:
        factor = tl.load(weight + group).to(tl.float32)[:, None]
        added = tl.load(bias + group).to(tl.float32)[:, None]
    else:
        factor = tl.load(weight + cols, mask=cols < SIZE, other=0.0).to(tl.float32)[None, :]
        added = tl.load(bias + cols, mask=cols < SIZE, other=0.0).to(tl.float32)[None, :]
    normal = _normal(a, used, eps, SIZE) * factor + added
    u = (u * sigmoid_exact(u)).to(Y.dtype.element_ty)
    tl.store(to, u, mask=used)
    tl.store(to + 2 * WIDTH, (u.to(tl.float32) * normal).to(Y.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["capacity"])
def keep_kernel(
    Projected, Cached, offsets, firsts, capacity,
    STRIDE: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Cached = [v, k] of new rows, each at its position in the cache.

    Args:
        Projected: (L, 2 GATES + 2 FACTORS), [u, v, q, k] of the new rows, STRIDE apart. Cached: (B, capacity,
            GATES + FACTORS). offsets: (B + 1,) of the new rows. firsts: (B,), positions of the first ones.
            Grid: blocks of BLOCK_M new rows of a sequence, sequences.
    """
    sequence = tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    count = (tl.load(offsets + sequence + 1) - start).to(tl.int32)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_D)
    used = (rows < count)[:, None] & (cols < GATES + FACTORS)[None, :]
    # Behind u comes v, behind v and q comes k.
    source = cols + tl.where(cols < GATES, GATES, GATES + FACTORS)
    kept = tl.load(Projected + (start + rows)[:, None] * STRIDE + source[None, :], mask=used)
    slot = sequence.to(tl.int64) * capacity + tl.load(firsts + sequence).to(tl.int64) + rows
    tl.store(Cached + slot[:, None] * (GATES + FACTORS) + cols[None, :], kept, mask=used)
