"""The first kernel of research HSTU's forward: embeddings and times.

All tensors are jagged, (L, ...), and padded with zeros: a row of D elements occupies DP >= D, a head of V
elements VP >= V. Zero columns of the weights keep the padding zero: SiLU(0) = 0. The kernels read the total
length from the device, so that a captured graph serves every batch up to its capacity.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.hstu_forward.triton_kernel_products import normalized, project_rows, span_of


@triton.jit
def embed_kernel(
    ids, offsets, firsts, timestamps, item_weights, position_weights, X, XN, W, U, QVK, times,
    stride_tb, num_times, capacity, scale, eps,
    D: tl.constexpr, DP: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr, QVK_PARTS: tl.constexpr,
    GPU: tl.constexpr, FUSED: tl.constexpr, NORMS: tl.constexpr, CACHED: tl.constexpr,
    RELEASES: tl.constexpr,
):  # fmt: skip
    """X[l] = item_weights[ids[l]] * scale + position_weights[position of l], zero for id 0.

    FUSED: also the first block's projection of X's layer norm; the programs of a row share its columns.
    NORMS: also XN, the layer norm of X. CACHED: see `span_of`. RELEASES: whether the next kernel, which waits
    for this one's results itself, may start at once.

    times: (B, num_times + PAD, 2) float32, pairs (h, l) with timestamp - the row's first = 2^24 h + l. The
    difference of two then rounds once, like a conversion of int64 to float32. From 2^47 seconds on, where h
    would round, h is infinite, and a difference is NaN. Behind a row's end PAD pairs are zero for blocks of
    columns that reach there.

    Grid (blocks of a row's positions and its end, B, programs that share a row).
    """
    if RELEASES:
        gdc_launch_dependents()
    sequence = tl.program_id(1)
    first, start, qvk_start, length = span_of(offsets, firsts, sequence, capacity, CACHED)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    own_time = timestamps + sequence.to(tl.int64) * stride_tb
    # One of the programs that share a row stores its embedding and times.
    own_length = tl.where(tl.program_id(2) == 0, length, -BLOCK_M)
    is_time = (rows <= own_length) & (rows < num_times)
    time = tl.load(own_time + rows, mask=is_time, other=0) - tl.load(own_time)
    high = time >> 24
    is_near = (high >= -(1 << 23)) & (high < (1 << 23))
    time_at = times + 2 * (sequence.to(tl.int64) * (num_times + PAD) + rows)
    tl.store(time_at, tl.where(is_near, high.to(tl.float32), float("inf")), mask=is_time)
    tl.store(time_at + 1, (time & 0xFFFFFF).to(tl.float32), mask=is_time)
    behind = tl.minimum(length + 1, num_times) + tl.arange(0, PAD)
    behind_at = times + 2 * (sequence.to(tl.int64) * (num_times + PAD) + behind)
    # The program that owns the row's end.
    is_behind = behind < tl.where(own_length // BLOCK_M == tl.program_id(0), num_times + PAD, 0)
    tl.store(behind_at, tl.zeros([PAD], dtype=tl.float32), mask=is_behind)
    tl.store(behind_at + 1, tl.zeros([PAD], dtype=tl.float32), mask=is_behind)
    if CACHED:
        if (tl.program_id(0) + 1) * BLOCK_M <= first:
            return
    cols = tl.arange(0, DP)
    inside = (rows >= first) & (rows < length)
    item = tl.load(ids + start + rows, mask=inside, other=0).to(tl.int64)
    used = (inside & (item != 0))[:, None] & (cols < D)[None, :]
    x = tl.load(item_weights + item[:, None] * D + cols[None, :], mask=used, other=0.0).to(tl.float32) * scale
    x += tl.load(position_weights + rows.to(tl.int64)[:, None] * D + cols[None, :], mask=used, other=0.0).to(
        tl.float32
    )
    x = x.to(X.dtype.element_ty)
    at = (start + rows)[:, None] * DP + cols[None, :]
    tl.store(X + at, x, mask=(inside & (rows < own_length))[:, None])
    normal = normalized(x.to(tl.float32), cols, eps, D)
    if FUSED:
        project_rows(
            normal, W, U, QVK, start + rows, qvk_start + rows, inside,
            tl.program_id(2), tl.num_programs(2),
            DP, GATES, FACTORS, BLOCK_C, PARTS, QVK_PARTS, False, GPU,
        )  # fmt: skip
    if NORMS:
        tl.store(XN + at, normal.to(XN.dtype.element_ty), mask=inside[:, None])
