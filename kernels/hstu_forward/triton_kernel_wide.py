"""A block of research HSTU in three kernels: project, attention and output; and the forward's last kernel.

A block whose heads and embedding do not fit into one program uses them.

Where rows are few, many programs share a row: the output's product is cut into columns, and each program of
the next projection computes the norms of its rows. Where rows are many, the output's programs own whole rows,
and compute a norm once.

All tensors are jagged and padded as in `triton_kernels`. DEPENDENT: a kernel may start before its predecessor
ends, and its successor before this one does; weights are read before the wait.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.hstu_forward.triton_kernel_block import SIZES, attended
from kernels.hstu_forward.triton_kernel_products import (
    load_parts,
    normalized,
    product_transposed,
    scale_of,
    span_of,
    split,
    store_activated,
    unit_of,
)


@triton.constexpr_function
def chunk_of(width: int, rows: int) -> int:
    """Columns that a program sums at a time: a power of two that divides `width`."""
    return min(width & -width, max(16, 8192 // rows))


@triton.jit
def _wait(DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _added(at, inside, stride, SPLITS: tl.constexpr, dtype: tl.constexpr):
    """float32 of the rows inside, else 0: of a tensor, or of the sum of SPLITS at distances of `stride`.

    The sum is rounded to `dtype`, as one tensor was when it was stored."""
    x = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    if SPLITS > 1:
        for split in tl.static_range(1, SPLITS):
            x += tl.load(at + split * stride, mask=inside[:, None], other=0.0)
        x = x.to(dtype).to(tl.float32)
    return x


@triton.jit
def _row_statistics(
    pointer, rows, inside, eps, stride,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps), (BLOCK_M,) each, of COUNT elements in WIDTH: DIM in each PAD.

    The elements are those of `_added`."""
    chunk: tl.constexpr = chunk_of(WIDTH, rows.shape[0])
    cols = tl.arange(0, chunk)
    at = pointer + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    total = tl.zeros([rows.shape[0]], dtype=tl.float32)
    squares = tl.zeros([rows.shape[0]], dtype=tl.float32)
    x = _added(at, inside, stride, SPLITS, dtype)
    total += tl.sum(x, axis=1)
    for start in tl.range(chunk, WIDTH, chunk):
        more = _added(at + start, inside, stride, SPLITS, dtype)
        total += tl.sum(more, axis=1)
    mean = total / COUNT
    centred = tl.where((cols % PAD < DIM)[None, :], x - mean[:, None], 0.0)
    squares += tl.sum(centred * centred, axis=1)
    for start in tl.range(chunk, WIDTH, chunk):
        more = _added(at + start, inside, stride, SPLITS, dtype)
        centred = tl.where(((start + cols) % PAD < DIM)[None, :], more - mean[:, None], 0.0)
        squares += tl.sum(centred * centred, axis=1)
    return mean, 1.0 / tl.sqrt(squares / COUNT + eps)


@triton.jit
def _factors(x, dtype: tl.constexpr, PARTS: tl.constexpr, IS_FACTOR: tl.constexpr):
    """The factor of a `product`, from x as stored."""
    factors = (x,)
    if not IS_FACTOR:
        factors = split(x.to(tl.float32) * scale_of(PARTS), dtype, PARTS)
    return factors


@triton.jit(do_not_specialize=["num_sequences"])
def project_kernel(
    X, W, U, QVK, offsets, slots, num_sequences, eps,
    D: tl.constexpr, DP: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr, QVK_PARTS: tl.constexpr,
    NORMS: tl.constexpr, GPU: tl.constexpr, DEPENDENT: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """Store SiLU(X W^T) in U and QVK; with NORMS, of the layer norm of X. CACHED: in the rows `slots` of QVK.

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
    qvk_rows = rows
    if CACHED:
        qvk_rows = tl.load(slots + rows, mask=inside, other=0)
    stride: tl.constexpr = (GATES + FACTORS) * DP
    # A factor that is stored as such goes from shared memory to the tensor cores, and through no register.
    IS_FACTOR: tl.constexpr = not NORMS and PARTS == 1 and X.dtype.element_ty == W.dtype.element_ty
    x_at = X + rows.to(tl.int64)[:, None] * DP
    w_at = W + cols[:, None] * DP
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    if BLOCK_K == DP:
        inner = tl.arange(0, DP)
        w = load_parts(w_at + inner[None, :], None, stride, PARTS)
        _wait(DEPENDENT)
        x = tl.load(x_at + inner[None, :], mask=inside[:, None], other=0.0)
        if NORMS:
            # The norm is rounded where PyTorch rounds it.
            x = normalized(x.to(tl.float32), inner, eps, D).to(X.dtype.element_ty)
        xs = _factors(x, W.dtype.element_ty, PARTS, IS_FACTOR)
        acc = product_transposed(xs, w, acc, PARTS, False)
    else:
        _wait(DEPENDENT)
        if NORMS:
            mean, deviation = _row_statistics(X, rows, inside, eps, 0, DP, D, D, DP, 1, X.dtype.element_ty)
        for start in tl.range(0, DP, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            x = tl.load(x_at + inner[None, :], mask=inside[:, None], other=0.0)
            if NORMS:
                # Zero columns of the weights meet the padding.
                x = ((x.to(tl.float32) - mean[:, None]) * deviation[:, None]).to(X.dtype.element_ty)
            w = load_parts(w_at + inner[None, :], None, stride, PARTS)
            xs = _factors(x, W.dtype.element_ty, PARTS, IS_FACTOR)
            acc = product_transposed(xs, w, acc, PARTS, False)
    store_activated(
        acc, U, QVK, rows, qvk_rows, inside, start_n, cols, GATES, FACTORS, PARTS, QVK_PARTS, GPU
    )  # fmt: skip


@triton.jit(do_not_specialize=[*SIZES, "num_rows"])
def attention_kernel(
    QVK, A, offsets, firsts, times, position_weights, time_table,
    capacity, num_times, num_sequences, num_blocks, width, num_rows, scale,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, PACK: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAD: tl.constexpr, UNROLLED: tl.constexpr, PARTS: tl.constexpr, CHAINED: tl.constexpr,
    AHEAD: tl.constexpr, SPLITS: tl.constexpr, GPU: tl.constexpr, DEPENDENT: tl.constexpr,
    CACHED: tl.constexpr,
):  # fmt: skip
    """A = scale times `attended`, (L, NUM_HEADS * VP).

    Grid: (num_blocks * num_sequences * NUM_HEADS / HEADS, long blocks first; SPLITS). Each split has UNROLLED
    blocks of columns, and an A of its own, (num_rows, NUM_HEADS * VP).
    """
    groups: tl.constexpr = NUM_HEADS // HEADS
    program = tl.program_id(0)
    sequence = program % (num_sequences * groups) // groups
    head = program % groups * HEADS
    first, seq_start, qvk_start, length = span_of(offsets, firsts, sequence, capacity, CACHED)
    start_m = first + (num_blocks - 1 - program // (num_sequences * groups)) * BLOCK_M
    if start_m >= length:
        return
    accs = attended(
        QVK, sequence, qvk_start, length, start_m, head, tl.program_id(1),
        times, position_weights, time_table, num_times, width,
        NUM_HEADS, HEADS, PACK, KP, VP, HAS_TIME, SHIFT, BLOCK_M, BLOCK_N, PAD, UNROLLED, PARTS, CHAINED,
        AHEAD, SPLITS, GPU, DEPENDENT,
    )  # fmt: skip
    rows = start_m + tl.arange(0, BLOCK_M)
    unit = scale * unit_of(PARTS)
    own = A + tl.program_id(1).to(tl.int64) * num_rows * (NUM_HEADS * VP)
    at = own + (seq_start + rows)[:, None] * (NUM_HEADS * VP) + (head * VP + tl.arange(0, PACK * VP))[None, :]
    for tile in tl.static_range(HEADS // PACK):
        a = (accs[tile] * unit).to(A.dtype.element_ty)
        tl.store(at + tile * PACK * VP, a, mask=(rows < length)[:, None])


@triton.jit
def _gated(
    A, U, rows, inside, inner, mean, scale, stride,
    dtype: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The layer norm of A, by `_added`, times u, rounded where PyTorch rounds; u is zero in the padding."""
    at = rows.to(tl.int64)[:, None] * WIDTH + inner[None, :]
    a = _added(A + at, inside, stride, SPLITS, dtype)
    u = tl.load(U + at, mask=inside[:, None], other=0.0).to(tl.float32)
    return ((a - mean[:, None]) * scale[:, None]).to(dtype).to(tl.float32) * u


@triton.jit(do_not_specialize=["num_sequences", "num_rows"])
def output_kernel(
    A, U, W, bias, X, Out, XN, offsets, num_sequences, num_rows, eps, l2_eps,
    HEADS: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
    SPLITS: tl.constexpr, GPU: tl.constexpr, LAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Out = (layer_norm(A) * u) W^T + bias + X. Out may be X.

    A program with all columns, BLOCK_N = DP, also stores XN = layer_norm(Out). With LAST, its Out is (L, D),
    over its own norm.

    A: (SPLITS, num_rows, HEADS * VP), whose sum over the splits is meant. U: (L, HEADS * VP). W: (PARTS, DP,
    HEADS * VP). X, XN: (L, DP). Out: (L, DP). Grid: row blocks times column blocks.
    """
    blocks: tl.constexpr = DP // BLOCK_N
    width: tl.constexpr = HEADS * VP
    stride = tl.cast(num_rows, tl.int64) * width
    start_m = tl.program_id(0) // blocks * BLOCK_M
    total = tl.load(offsets + num_sequences)
    if start_m >= total:
        return
    dtype: tl.constexpr = X.dtype.element_ty
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < total
    at = rows.to(tl.int64)[:, None]
    w_at = W + cols[:, None] * width
    added = tl.load(bias + cols).to(tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    if BLOCK_K == width:
        w = load_parts(w_at + tl.arange(0, width)[None, :], None, DP * width, PARTS)
        _wait(DEPENDENT)
        mean, scale = _row_statistics(A, rows, inside, eps, stride, width, HEADS * V, V, VP, SPLITS, dtype)
        gated = _gated(A, U, rows, inside, tl.arange(0, width), mean, scale, stride, dtype, width, SPLITS)
        gated = split(gated * scale_of(PARTS), W.dtype.element_ty, PARTS)
        acc = product_transposed(gated, w, acc, PARTS, False)
    else:
        _wait(DEPENDENT)
        mean, scale = _row_statistics(A, rows, inside, eps, stride, width, HEADS * V, V, VP, SPLITS, dtype)
        for start in tl.range(0, width, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            gated = _gated(A, U, rows, inside, inner, mean, scale, stride, dtype, width, SPLITS)
            w = load_parts(w_at + inner[None, :], None, DP * width, PARTS)
            gated = split(gated * scale_of(PARTS), W.dtype.element_ty, PARTS)
            acc = product_transposed(gated, w, acc, PARTS, False)
    acc = acc * unit_of(PARTS) + added[None, :]
    acc += tl.load(X + at * DP + cols[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    if LAST:
        norm = tl.maximum(tl.sqrt(tl.sum(acc * acc, axis=1)), l2_eps)
        to = Out + at * D + cols[None, :]
        tl.store(to, (acc / norm[:, None]).to(dtype), mask=inside[:, None] & (cols < D)[None, :])
    else:
        x = acc.to(dtype)
        tl.store(Out + at * DP + cols[None, :], x, mask=inside[:, None])
        if BLOCK_N == DP:
            normal = normalized(x.to(tl.float32), cols, eps, D)
            tl.store(XN + at * DP + cols[None, :], normal.to(XN.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["num_sequences"])
def states_kernel(
    X, Out, offsets, num_sequences, l2_eps,
    D: tl.constexpr, DP: tl.constexpr, BLOCK_M: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Out (L, D) = X (L, DP) over its own norm. Grid: row blocks."""
    start_m = tl.program_id(0) * BLOCK_M
    total = tl.load(offsets + num_sequences)
    if start_m >= total:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, DP)
    inside = (rows < total)[:, None]
    row = rows.to(tl.int64)[:, None]
    _wait(DEPENDENT)
    x = tl.load(X + row * DP + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    norm = tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), l2_eps)
    to = Out + row * D + cols[None, :]
    tl.store(to, (x / norm[:, None]).to(Out.dtype.element_ty), mask=inside & (cols < D)[None, :])
