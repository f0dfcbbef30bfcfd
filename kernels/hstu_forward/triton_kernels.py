"""What surrounds attention in research HSTU, in three Triton kernels: embed, and, for models whose rows are
too wide for `triton_block.block_kernel`, project and output.

All tensors are jagged, (L, ...), and stored padded: a row of D elements occupies DP >= D, a head of V
elements VP >= V, the rest zero. Zero columns of the weights keep it so: SiLU(0) = 0. The total length is
read from the device, so that a captured graph serves every batch up to its capacity.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.hstu_forward.triton_products import normalized, parts, product, project_rows, silu


@triton.jit
def embed_kernel(
    ids, offsets, item_weights, position_weights, X, Y, W, WLow, scale, eps,
    D: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
    DOT: tl.constexpr, FAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """X[l] = item_weights[ids[l]] * scale + position_weights[position of l], zero for id 0, and Y its layer
    norm; with a WIDTH, the first block's projection of that, SiLU(layer_norm(X) W^T).

    Grid (blocks, B). DEPENDENT: the kernel behind this one may start while it runs.
    """
    if DEPENDENT:
        gdc_launch_dependents()
    sequence = tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - start
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, DP)
    inside = rows < length
    item = tl.load(ids + start + rows, mask=inside, other=0).to(tl.int64)
    used = (inside & (item != 0))[:, None] & (cols < D)[None, :]
    x = tl.load(item_weights + item[:, None] * D + cols[None, :], mask=used, other=0.0).to(tl.float32) * scale
    x += tl.load(position_weights + rows.to(tl.int64)[:, None] * D + cols[None, :], mask=used, other=0.0).to(
        tl.float32
    )
    x = x.to(X.dtype.element_ty)
    at = (start + rows)[:, None] * DP + cols[None, :]
    tl.store(X + at, x, mask=inside[:, None])
    normal = normalized(x.to(tl.float32), cols, eps, D)
    if WIDTH > 0:
        project_rows(normal, W, WLow, Y, start + rows, inside, DP, WIDTH, BLOCK_C, DOT, FAST)
    else:
        tl.store(Y + at, normal.to(Y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _row_statistics(
    pointer, rows, stride, inside, eps, HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr
):
    """Mean and 1 / sqrt(variance + eps), (BLOCK_M,) each, of rows of HEADS * DIM elements stored HEADS *
    PAD wide.
    """
    count: tl.constexpr = HEADS * DIM
    cols = tl.arange(0, PAD)
    total = tl.zeros([rows.shape[0]], dtype=tl.float32)
    at = pointer + rows.to(tl.int64)[:, None] * stride + cols[None, :]
    for head in tl.static_range(HEADS):
        total += tl.sum(tl.load(at + head * PAD, mask=inside[:, None], other=0.0).to(tl.float32), axis=1)
    mean = total / count
    squares = tl.zeros([rows.shape[0]], dtype=tl.float32)
    for head in tl.static_range(HEADS):
        x = tl.load(at + head * PAD, mask=inside[:, None], other=0.0).to(tl.float32) - mean[:, None]
        squares += tl.sum(tl.where((cols < DIM)[None, :], x * x, 0.0), axis=1)
    return mean, 1.0 / tl.sqrt(squares / count + eps)


@triton.jit
def project_kernel(
    XN, W, WLow, Y, offsets, num_sequences,
    DP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DOT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Y = SiLU(XN W^T): (L, DP), (WIDTH, DP) -> (L, WIDTH). Grid of row blocks times column blocks."""
    blocks: tl.constexpr = WIDTH // BLOCK_N
    program = tl.program_id(0)
    start_m = program // blocks * BLOCK_M
    total = tl.load(offsets + num_sequences)
    if start_m >= total:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = program % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < total
    x_at = XN + rows.to(tl.int64)[:, None] * DP
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in tl.range(0, DP, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_at + inner[None, :], mask=inside[:, None], other=0.0)
        w_at = cols[:, None] * DP + inner[None, :]
        w = tl.load(W + w_at)
        w_low = tl.load(WLow + w_at) if DOT == "tf32x3" else w
        high, low = parts(x, DOT)
        acc = product(high, low, tl.trans(w), tl.trans(w_low), acc, DOT)
    acc = silu(acc, FAST)
    tl.store(
        Y + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :],
        acc.to(Y.dtype.element_ty),
        mask=inside[:, None],
    )


@triton.jit
def output_kernel(
    A, Y, W, WLow, bias, X, Out, XN, offsets, num_sequences, eps, l2_eps, stride_y: tl.constexpr,
    HEADS: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Out = (layer_norm(A) * u) W^T + bias + X and XN = layer_norm(Out); behind the last block Out over its
    own norm.

    A: (L, HEADS * VP). Y: (L, stride_y), of which u is the first HEADS * VP. W: (DP, HEADS * VP). X, XN:
    (L, DP). Out: (L, DP), or (L, D) with LAST. Grid of row blocks.
    """
    start_m = tl.program_id(0) * BLOCK_M
    total = tl.load(offsets + num_sequences)
    if start_m >= total:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, DP)
    inside = rows < total
    at = rows.to(tl.int64)[:, None]
    mean, scale = _row_statistics(A, rows, HEADS * VP, inside, eps, HEADS, V, VP)
    acc = tl.zeros([BLOCK_M, DP], dtype=tl.float32)
    for start in tl.range(0, HEADS * VP, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(A + at * (HEADS * VP) + inner[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        u = tl.load(Y + at * stride_y + inner[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        # u is zero in the padding.
        a = ((a - mean[:, None]) * scale[:, None]).to(Y.dtype.element_ty).to(tl.float32) * u
        w_at = cols[:, None] * (HEADS * VP) + inner[None, :]
        w = tl.load(W + w_at)
        w_low = tl.load(WLow + w_at) if DOT == "tf32x3" else w
        high, low = parts(a.to(Y.dtype.element_ty), DOT)
        acc = product(high, low, tl.trans(w), tl.trans(w_low), acc, DOT)
    acc += tl.load(bias + cols).to(tl.float32)[None, :]
    acc += tl.load(X + at * DP + cols[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    if LAST:
        norm = tl.maximum(tl.sqrt(tl.sum(acc * acc, axis=1)), l2_eps)
        to = Out + at * D + cols[None, :]
        tl.store(
            to, (acc / norm[:, None]).to(Out.dtype.element_ty), mask=inside[:, None] & (cols < D)[None, :]
        )
    else:
        x = acc.to(Out.dtype.element_ty)
        tl.store(Out + at * DP + cols[None, :], x, mask=inside[:, None])
        normal = normalized(x.to(tl.float32), cols, eps, D)
        tl.store(XN + at * DP + cols[None, :], normal.to(XN.dtype.element_ty), mask=inside[:, None])
