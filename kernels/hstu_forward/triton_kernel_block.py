"""Research HSTU's attention over several heads at once, alone and with the whole rest of a block behind it.

One program owns BLOCK_M rows of one sequence and HEADS heads and walks over the columns in blocks of BLOCK_N.
The bias, which takes more instructions than a head, is computed once for all of its heads.

u and q lie side by side, NUM_HEADS heads each, a head of K or V elements stored KP or VP wide, the rest zero:
UQ (L, HALF) with HALF = NUM_HEADS (VP + KP). v and k lie as PARTS summands (`triton_kernel_products.split`):
VK (L, PARTS, HALF).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.hstu_forward.triton_kernel_products import (
    load_parts,
    normalized,
    product,
    product_transposed,
    project_rows,
    silu,
    split,
)


@triton.jit
def _gathered(at, GPU: tl.constexpr):
    """float32 from a tensor of addresses. In assembly, since Triton would put its own loads through shared
    memory for a loop's pipeline, element by element."""
    if GPU:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [at.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.load(at)


@triton.jit
def _gathered_pair(at, GPU: tl.constexpr):
    """uint32 and, behind it, float32, from a tensor of addresses of bytes."""
    if GPU:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v2.b32 {$0, $1}, [$2];",
            "=r,=f,l",
            [at.to(tl.int64)],
            dtype=(tl.uint32, tl.float32),
            is_pure=True,
            pack=1,
        )
    return tl.load(at.to(tl.pointer_type(tl.uint32))), tl.load((at + 4).to(tl.pointer_type(tl.float32)))


@triton.jit
def _time_weight(delta, table, SHIFT: tl.constexpr, GPU: tl.constexpr):
    """Differences, float32 -> the weights of their buckets, float32, by `weights.time_table`."""
    pattern = tl.maximum(tl.abs(delta), 1.0).to(tl.uint32, bitcast=True)
    # An offset of 16 bytes a cell, unsigned and below 2^32: one register to add to the table's address.
    at = table.to(tl.pointer_type(tl.int8)) + ((pattern >> (SHIFT - 4)) & 0xFFFFFFF0)
    edge, low = _gathered_pair(at, GPU)
    return tl.where(pattern >= edge, _gathered((at + 8).to(tl.pointer_type(tl.float32)), GPU), low)


@triton.jit
def _bias(
    rows, start_n, row_high, row_low, length, time_high, time_low, position_weights, time_table, width,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, PAD: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N) float32; see `kernels.hstu_attention.masks.ResearchMask`. The position weights have
    PAD more in front and behind, for rows and columns that no one sees."""
    within = tl.arange(0, BLOCK_N)
    # A row's address first, so that its columns lie at constant distances from it.
    row_at = position_weights + (PAD + width - 1 + start_n - rows).to(tl.int64)
    bias = _gathered(row_at[:, None] + within[None, :], GPU)
    if HAS_TIME:
        col = tl.minimum(start_n + within, length - 1)
        high, low = tl.load(time_high + col), tl.load(time_low + col)
        delta = (row_high[:, None] - high[None, :]) * 16777216.0 + (row_low[:, None] - low[None, :])
        bias += _time_weight(delta, time_table, SHIFT, GPU)
    return bias


@triton.jit
def _queries(
    UQ, VK, rows, head, inside,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The rows' queries as `split`, and zeros to add to, a tuple of HEADS each."""
    qs = ()
    accs = ()
    for h in tl.static_range(HEADS):
        col = NUM_HEADS * VP + (head + h) * KP + tl.arange(0, KP)
        at = UQ + rows[:, None] * (NUM_HEADS * (VP + KP)) + col[None, :]
        q = tl.load(at, mask=inside[:, None], other=0.0)
        qs = qs + (split(q.to(tl.float32), VK.dtype.element_ty, PARTS),)
        accs = accs + (tl.zeros([rows.shape[0], VP], dtype=tl.float32),)
    return qs, accs


@triton.jit
def _add_columns(
    accs, qs, bias, VK, seq_start, head, rows, cols, length,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    PARTS: tl.constexpr, GPU: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """accs, one for each head, plus SiLU(q k + bias) v over `cols`; with MASKED, over those that a row
    sees."""
    half: tl.constexpr = NUM_HEADS * (VP + KP)
    at = VK + (seq_start + cols)[:, None] * (PARTS * half)
    # What lies behind a sequence's end is another's, and its garbage times zero need not be zero.
    inside = (cols < length)[:, None]
    added = ()
    for h in tl.static_range(HEADS):
        k_at = at + (NUM_HEADS * VP + (head + h) * KP + tl.arange(0, KP))[None, :]
        k = load_parts(k_at, inside, half, PARTS, MASKED)
        zero = tl.zeros([rows.shape[0], cols.shape[0]], dtype=tl.float32)
        weights = silu(product_transposed(qs[h], k, zero, PARTS) + bias, GPU)
        if MASKED:
            weights = tl.where(rows[:, None] >= cols[None, :], weights, 0.0)
        v = load_parts(at + ((head + h) * VP + tl.arange(0, VP))[None, :], inside, half, PARTS, MASKED)
        split_weights = split(weights, VK.dtype.element_ty, PARTS)
        added = added + (product(split_weights, v, accs[h], PARTS),)
    return added


@triton.jit
def _add_range(
    accs, qs, VK, seq_start, head, rows, length, begin, stop, time_high, time_low, row_high, row_low,
    position_weights, time_table, width,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, HAS_TIME: tl.constexpr,
    SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr, GPU: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """`_add_columns` over the blocks of [begin, stop)."""
    for start_n in tl.range(begin, stop, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        bias = _bias(
            rows, start_n, row_high, row_low, length, time_high, time_low,
            position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD, GPU,
        )  # fmt: skip
        accs = _add_columns(
            accs, qs, bias, VK, seq_start, head, rows, cols, length,
            NUM_HEADS, HEADS, KP, VP, PARTS, GPU, MASKED,
        )  # fmt: skip
    return accs


@triton.jit
def _attended(
    UQ, VK, sequence, seq_start, length, start_m, head,
    times, position_weights, time_table, stride_tb, num_sequences, width,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAD: tl.constexpr, UNROLLED: tl.constexpr, PARTS: tl.constexpr, GPU: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """HEADS sums over the columns j that row i sees of SiLU(q_i k_j + bias_ij) v_j: (BLOCK_M, VP) float32.

    times: (2, num_sequences, stride_tb) float32, see `triton_kernels.embed_kernel`.
    UNROLLED: so many blocks of columns hold the longest row; their biases are computed before anything that
    the kernel before this one has written is read. 0: a loop. DEPENDENT: this kernel may have been started
    while the one before it, though not those before that, still ran, and what follows it may be so started.
    """
    rows = start_m + tl.arange(0, BLOCK_M)
    time_high = times + sequence.to(tl.int64) * stride_tb
    time_low = time_high + num_sequences.to(tl.int64) * stride_tb
    row_high = rows
    row_low = rows
    if HAS_TIME:
        successor = tl.minimum(rows + 1, tl.minimum(length, stride_tb - 1))
        row_high, row_low = tl.load(time_high + successor), tl.load(time_low + successor)
        # Of the other sign than a column's, so that no difference of two is 0.
        row_high = tl.where(row_high == float("inf"), -row_high, row_high)
    biases = ()
    for block in tl.static_range(UNROLLED):
        bias = _bias(
            rows, block * BLOCK_N, row_high, row_low, length, time_high, time_low,
            position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD, GPU,
        )  # fmt: skip
        biases = biases + (bias,)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    qs, accs = _queries(UQ, VK, seq_start + rows, head, rows < length, NUM_HEADS, HEADS, KP, VP, PARTS)
    if UNROLLED > 0:
        for block in tl.static_range(UNROLLED):
            cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
            accs = _add_columns(
                accs, qs, biases[block], VK, seq_start, head, rows, cols, length,
                NUM_HEADS, HEADS, KP, VP, PARTS, GPU, True,
            )  # fmt: skip
    else:
        cut = start_m // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, length)
        accs = _add_range(
            accs, qs, VK, seq_start, head, rows, length, 0, cut, time_high, time_low, row_high, row_low,
            position_weights, time_table, width,
            NUM_HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_N, PAD, PARTS, GPU, False,
        )  # fmt: skip
        accs = _add_range(
            accs, qs, VK, seq_start, head, rows, length, cut, end, time_high, time_low, row_high, row_low,
            position_weights, time_table, width,
            NUM_HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_N, PAD, PARTS, GPU, True,
        )  # fmt: skip
    return accs


# Without specialisation on these, a launch does not depend on a batch's sizes.
_SIZES = ["stride_tb", "num_sequences", "num_blocks", "width"]


@triton.jit(do_not_specialize=_SIZES)
def attention_kernel(
    UQ, VK, A, offsets, times, position_weights, time_table,
    stride_tb, num_sequences, num_blocks, width, scale,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAD: tl.constexpr, PARTS: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """A = scale times `_attended`, (L, NUM_HEADS * VP).

    Grid: num_blocks * num_sequences * NUM_HEADS / HEADS, long blocks first.
    """
    groups: tl.constexpr = NUM_HEADS // HEADS
    program = tl.program_id(0)
    start_m = (num_blocks - 1 - program // (num_sequences * groups)) * BLOCK_M
    sequence = program % (num_sequences * groups) // groups
    head = program % groups * HEADS
    seq_start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - seq_start).to(tl.int32)
    if start_m >= length:
        return
    accs = _attended(
        UQ, VK, sequence, seq_start, length, start_m, head,
        times, position_weights, time_table, stride_tb, num_sequences, width,
        NUM_HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_M, BLOCK_N, PAD, 0, PARTS, GPU, False,
    )  # fmt: skip
    rows = start_m + tl.arange(0, BLOCK_M)
    at = A + (seq_start + rows)[:, None] * (NUM_HEADS * VP) + (head * VP + tl.arange(0, VP))[None, :]
    for h in tl.static_range(HEADS):
        tl.store(at + h * VP, (accs[h] * scale).to(A.dtype.element_ty), mask=(rows < length)[:, None])


@triton.jit(do_not_specialize=_SIZES)
def block_kernel(
    UQ, VK, X, NextUQ, NextVK, offsets, times, position_weights, time_table, WOut, bias, W,
    stride_tb, num_sequences, num_blocks, width, scale, eps, l2_eps,
    HEADS: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PAD: tl.constexpr, UNROLLED: tl.constexpr,
    PARTS: tl.constexpr, VK_PARTS: tl.constexpr, GPU: tl.constexpr, DEPENDENT: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """All of a block behind its projection, and the next block's projection:

        X += (layer_norm(attention) * u) WOut^T + bias;  NextUQ, NextVK = SiLU(layer_norm(X) W^T)

    Behind the last block NextUQ is X over its own norm, (L, D), and X is left as it was. The next are not UQ
    and VK: other programs still read these. PARTS are those of the weights, VK_PARTS of v and k.

    X: (L, DP). WOut: (PARTS, DP, HEADS * VP). W: (PARTS, 2 HALF, DP). Grid: num_blocks * num_sequences, long
    blocks first.
    """
    program = tl.program_id(0)
    start_m = (num_blocks - 1 - program // num_sequences) * BLOCK_M
    sequence = program % num_sequences
    seq_start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - seq_start).to(tl.int32)
    if start_m >= length:
        return
    accs = _attended(
        UQ, VK, sequence, seq_start, length, start_m, 0,
        times, position_weights, time_table, stride_tb, num_sequences, width,
        HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_M, BLOCK_N, PAD, UNROLLED, VK_PARTS, GPU, DEPENDENT,
    )  # fmt: skip

    half: tl.constexpr = HEADS * (VP + KP)
    dtype: tl.constexpr = X.dtype.element_ty
    inside = start_m + tl.arange(0, BLOCK_M) < length
    rows = seq_start + start_m + tl.arange(0, BLOCK_M)
    value = tl.arange(0, VP)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    mixed = ()
    for h in tl.static_range(HEADS):
        a = (accs[h] * scale).to(dtype).to(tl.float32)
        mixed = mixed + (a,)
        total += tl.sum(a, axis=1)
    mean = total / (HEADS * V)
    squares = tl.zeros([BLOCK_M], dtype=tl.float32)
    for h in tl.static_range(HEADS):
        centred = tl.where((value < V)[None, :], mixed[h] - mean[:, None], 0.0)
        squares += tl.sum(centred * centred, axis=1)
    deviation = 1.0 / tl.sqrt(squares / (HEADS * V) + eps)

    cols = tl.arange(0, DP)
    acc = tl.zeros([BLOCK_M, DP], dtype=tl.float32)
    for h in tl.static_range(HEADS):
        u_at = UQ + rows[:, None] * half + (h * VP + value)[None, :]
        u = tl.load(u_at, mask=inside[:, None], other=0.0).to(tl.float32)
        # u is zero in the padding.
        gated = ((mixed[h] - mean[:, None]) * deviation[:, None]).to(dtype).to(tl.float32) * u
        w_at = cols[:, None] * (HEADS * VP) + (h * VP + value)[None, :]
        w = load_parts(WOut + w_at, None, DP * HEADS * VP, PARTS, False)
        acc = product_transposed(split(gated, WOut.dtype.element_ty, PARTS), w, acc, PARTS)
    acc += tl.load(bias + cols).to(tl.float32)[None, :]
    x_at = X + rows[:, None] * DP + cols[None, :]
    acc += tl.load(x_at, mask=inside[:, None], other=0.0).to(tl.float32)
    if LAST:
        norm = tl.maximum(tl.sqrt(tl.sum(acc * acc, axis=1)), l2_eps)
        to = NextUQ + rows[:, None] * D + cols[None, :]
        unit = (acc / norm[:, None]).to(dtype)
        tl.store(to, unit, mask=inside[:, None] & (cols < D)[None, :])
    else:
        x = acc.to(dtype)
        tl.store(x_at, x, mask=inside[:, None])
        project_rows(
            normalized(x.to(tl.float32), cols, eps, D), W, NextUQ, NextVK, rows, inside,
            DP, half, BLOCK_C, PARTS, VK_PARTS, GPU,
        )  # fmt: skip
