"""Research HSTU around its attention, in three Triton kernels: embed, project and output.

Models with rows too wide for `triton_kernel_block.block_kernel` use project and output.

All tensors are jagged, (L, ...), and padded with zeros: a row of D elements occupies DP >= D, a head of V
elements VP >= V. Zero columns of the weights keep the padding zero: SiLU(0) = 0. The kernels read the total
length from the device, so that a captured graph serves every batch up to its capacity.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_forward.triton_kernel_products import (
    load_parts,
    normalized,
    product_transposed,
    project_rows,
    scale_of,
    split,
    store_activated,
    unit_of,
)


@triton.jit
def embed_kernel(
    ids, offsets, timestamps, item_weights, position_weights, X, XN, W, U, QVK, times, stride_tb, num_times,
    scale, eps,
    D: tl.constexpr, DP: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr, QVK_PARTS: tl.constexpr,
    GPU: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """X[l] = item_weights[ids[l]] * scale + position_weights[position of l], zero for id 0, and XN its layer
    norm.

    FUSED: the first block's projection of the layer norm takes the place of XN.

    times: (B, num_times + PAD, 2) float32, pairs (h, l) with timestamp - the row's first = 2^24 h + l. The
    difference of two then rounds once, like a conversion of int64 to float32. From 2^47 seconds on, where h
    would round, h is infinite, and a difference is NaN. Behind a row's end PAD pairs are zero for blocks of
    columns that reach there.

    Grid (blocks of a row's positions and its end, B).
    """
    sequence = tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - start
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    own_time = timestamps + sequence.to(tl.int64) * stride_tb
    is_time = (rows <= length) & (rows < num_times)
    time = tl.load(own_time + rows, mask=is_time, other=0) - tl.load(own_time)
    high = time >> 24
    is_near = (high >= -(1 << 23)) & (high < (1 << 23))
    time_at = times + 2 * (sequence.to(tl.int64) * (num_times + PAD) + rows)
    tl.store(time_at, tl.where(is_near, high.to(tl.float32), float("inf")), mask=is_time)
    tl.store(time_at + 1, (time & 0xFFFFFF).to(tl.float32), mask=is_time)
    behind = tl.minimum(length + 1, num_times) + tl.arange(0, PAD)
    behind_at = times + 2 * (sequence.to(tl.int64) * (num_times + PAD) + behind)
    # The program that owns the row's end.
    is_behind = behind < tl.where(length // BLOCK_M == tl.program_id(0), num_times + PAD, 0)
    tl.store(behind_at, tl.zeros([PAD], dtype=tl.float32), mask=is_behind)
    tl.store(behind_at + 1, tl.zeros([PAD], dtype=tl.float32), mask=is_behind)
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
    if FUSED:
        project_rows(
            normal, W, U, QVK, start + rows, inside,
            DP, GATES, FACTORS, BLOCK_C, PARTS, QVK_PARTS, False, GPU,
        )  # fmt: skip
    else:
        tl.store(XN + at, normal.to(XN.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _row_statistics(
    pointer, rows, stride, inside, eps, HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr
):
    """Mean and 1 / sqrt(variance + eps), (BLOCK_M,) each, of HEADS * DIM elements in HEADS * PAD."""
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
    XN, W, U, QVK, offsets, num_sequences,
    DP: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr, QVK_PARTS: tl.constexpr,
    GPU: tl.constexpr,
):  # fmt: skip
    """Store SiLU(XN W^T) in U and QVK.

    (L, DP), (PARTS, GATES + FACTORS, DP) -> (L, GATES), (L, QVK_PARTS, FACTORS). Grid: row blocks times
    column blocks."""
    blocks: tl.constexpr = (GATES + FACTORS) // BLOCK_N
    program = tl.program_id(0)
    start_m = program // blocks * BLOCK_M
    total = tl.load(offsets + num_sequences)
    if start_m >= total:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    start_n = program % blocks * BLOCK_N
    cols = start_n + tl.arange(0, BLOCK_N)
    inside = rows < total
    x_at = XN + rows.to(tl.int64)[:, None] * DP
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in tl.range(0, DP, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_at + inner[None, :], mask=inside[:, None], other=0.0)
        w = load_parts(W + cols[:, None] * DP + inner[None, :], None, (GATES + FACTORS) * DP, PARTS)
        xs = split(x.to(tl.float32) * scale_of(PARTS), W.dtype.element_ty, PARTS)
        acc = product_transposed(xs, w, acc, PARTS, False)
    store_activated(acc, U, QVK, rows, inside, start_n, cols, GATES, FACTORS, PARTS, QVK_PARTS, GPU)


@triton.jit
def output_kernel(
    A, U, W, bias, X, Out, XN, offsets, num_sequences, eps, l2_eps,
    HEADS: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr, GPU: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """Out = (layer_norm(A) * u) W^T + bias + X and XN = layer_norm(Out); with LAST, Out over its own norm.

    A, U: (L, HEADS * VP). W: (PARTS, DP, HEADS * VP). X, XN: (L, DP). Out: (L, DP), or (L, D) with LAST.
    Grid: row blocks.
    """
    start_m = tl.program_id(0) * BLOCK_M
    total = tl.load(offsets + num_sequences)
    if start_m >= total:
        return
    dtype: tl.constexpr = X.dtype.element_ty
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, DP)
    inside = rows < total
    at = rows.to(tl.int64)[:, None]
    mean, scale = _row_statistics(A, rows, HEADS * VP, inside, eps, HEADS, V, VP)
    acc = tl.zeros([BLOCK_M, DP], dtype=tl.float32)
    for start in tl.range(0, HEADS * VP, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(A + at * (HEADS * VP) + inner[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        u = tl.load(U + at * (HEADS * VP) + inner[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        # u is zero in the padding.
        gated = ((a - mean[:, None]) * scale[:, None]).to(dtype).to(tl.float32) * u
        w_at = cols[:, None] * (HEADS * VP) + inner[None, :]
        w = load_parts(W + w_at, None, DP * HEADS * VP, PARTS)
        gated = split(gated * scale_of(PARTS), W.dtype.element_ty, PARTS)
        acc = product_transposed(gated, w, acc, PARTS, False)
    acc = acc * unit_of(PARTS) + tl.load(bias + cols).to(tl.float32)[None, :]
    acc += tl.load(X + at * DP + cols[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    if LAST:
        norm = tl.maximum(tl.sqrt(tl.sum(acc * acc, axis=1)), l2_eps)
        to = Out + at * D + cols[None, :]
        tl.store(to, (acc / norm[:, None]).to(dtype), mask=inside[:, None] & (cols < D)[None, :])
    else:
        x = acc.to(dtype)
        tl.store(Out + at * DP + cols[None, :], x, mask=inside[:, None])
        normal = normalized(x.to(tl.float32), cols, eps, D)
        tl.store(XN + at * DP + cols[None, :], normal.to(XN.dtype.element_ty), mask=inside[:, None])
