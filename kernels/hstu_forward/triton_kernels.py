"""What surrounds attention in research HSTU, in three Triton kernels: embed, project, output.

All tensors are jagged, (L, ...), and stored padded: a row of D elements occupies DP >= D, a head of V
elements VP >= V, the rest zero. Zero columns of the weights keep it so: SiLU(0) = 0. The total length is
read from the device, so that a captured graph serves every batch up to its capacity.

Sums are float32. Where PyTorch stores a result in the tensors' type before a product, so do the kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normalized(x, cols, eps, D: tl.constexpr):
    """Layer norm of (BLOCK_M, DP) rows whose first D elements count; the rest becomes zero."""
    mean = tl.sum(x, axis=1) / D
    centred = tl.where((cols < D)[None, :], x - mean[:, None], 0.0)
    return centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps))[:, None]


@triton.jit
def _split_dot(a, w, w_low, acc, SPLIT: tl.constexpr, DOT: tl.constexpr):
    """acc + a w^T. With SPLIT, each factor is the sum of two tf32 numbers, and the product of the small
    ones is left
    out: 2^-22 of the product, where one tf32 product would lose 2^-11. The weights come split."""
    if SPLIT:
        # Round to nearest: tensor cores cut off what is below tf32's mantissa.
        high = ((a.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
        low = (((a - high).to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
        acc = tl.dot(low, tl.trans(w), acc, input_precision="tf32")
        acc = tl.dot(high, tl.trans(w_low), acc, input_precision="tf32")
        return tl.dot(high, tl.trans(w), acc, input_precision="tf32")
    return tl.dot(a.to(w.dtype), tl.trans(w), acc, input_precision=DOT)


@triton.jit
def embed_kernel(
    ids, offsets, item_weights, position_weights, X, XN, scale, eps,
    D: tl.constexpr, DP: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """X[l] = item_weights[ids[l]] * scale + position_weights[position of l], zero for id 0, and XN its
    layer norm.

    Grid (blocks, B).
    """
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
    normalized = _normalized(x.to(tl.float32), cols, eps, D)
    tl.store(XN + at, normalized.to(XN.dtype.element_ty), mask=inside[:, None])


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
    DP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K:
        tl.constexpr,
    SPLIT: tl.constexpr, DOT: tl.constexpr,
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
        w_low = tl.load(WLow + w_at) if SPLIT else w
        acc = _split_dot(x, w, w_low, acc, SPLIT, DOT)
    acc = acc / (1.0 + tl.exp(-acc))
    tl.store(
        Y + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :],
        acc.to(Y.dtype.element_ty),
        mask=inside[:, None],
    )


@triton.jit
def output_kernel(
    A, Y, W, WLow, bias, X, Out, XN, offsets, num_sequences, eps, l2_eps, stride_y: tl.constexpr,
    HEADS: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, LAST: tl.constexpr,
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
        w_low = tl.load(WLow + w_at) if SPLIT else w
        acc = _split_dot(a, w, w_low, acc, SPLIT, DOT)
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
        normalized = _normalized(x.to(tl.float32), cols, eps, D)
        tl.store(XN + at * DP + cols[None, :], normalized.to(XN.dtype.element_ty), mask=inside[:, None])
