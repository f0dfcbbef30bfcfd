"""Research HSTU's attention over several heads at once, alone and with the whole rest of a block behind it.

One program owns BLOCK_M rows of one sequence and HEADS heads and walks over the columns in blocks of BLOCK_N.
The bias, which takes more instructions than a head, is computed once for all of its heads.

Y holds u, v, q, k side by side, NUM_HEADS heads each, a head of K or V elements stored KP or VP wide, the rest
zero: (L, WIDTH) with WIDTH = 2 NUM_HEADS (VP + KP).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.hstu_forward.triton_products import normalized, parts, product, project_rows, silu

# Timestamps that a program reads at a time to learn how far apart they are.
_TIMES = tl.constexpr(256)


@triton.jit
def _times(own_time, rows, length, num_times):
    """A sequence's first timestamp, the rows' successors' times, and whether all differences fit an int32."""
    earliest = tl.full([_TIMES], 0x7FFFFFFFFFFFFFFF, tl.int64)
    latest = -earliest
    count = tl.minimum(length + 1, num_times)
    for start in tl.range(0, count, _TIMES):
        time = tl.load(own_time + tl.minimum(start + tl.arange(0, _TIMES), count - 1))
        earliest = tl.minimum(earliest, time)
        latest = tl.maximum(latest, time)
    base = tl.min(earliest, axis=0)
    # The difference of two int64 may wrap around; then it is negative.
    span = tl.max(latest, axis=0) - base
    narrow = (span >= 0) & (span < 0x7FFFFFFF)
    return base, tl.load(own_time + tl.minimum(rows + 1, count - 1)), narrow


@triton.jit
def _time_weight(delta, table, SHIFT: tl.constexpr):
    """Differences, int32 or int64 -> the weights of their buckets, float32, by `weights.time_table`."""
    pattern = tl.maximum(tl.abs(delta.to(tl.float32)), 1.0).to(tl.uint32, bitcast=True)
    # An offset of 16 bytes a cell, unsigned and below 2^32: one register to add to the table's address.
    at = table.to(tl.pointer_type(tl.int8)) + ((pattern >> (SHIFT - 4)) & 0xFFFFFFF0)
    entry = tl.load(at.to(tl.pointer_type(tl.int64)))
    low = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    high = tl.load((at + 8).to(tl.pointer_type(tl.float32)))
    return tl.where(pattern >= entry.to(tl.uint32), high, low)


@triton.jit
def _bias(rows, start_n, base, successor, narrow, length, own_time, position_weights, time_table, width,
          HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, PAD: tl.constexpr):  # fmt: skip
    """(BLOCK_M, BLOCK_N) float32; see `kernels.hstu_attention.masks.ResearchMask`. The position weights have PAD
    more in front and behind, for rows and columns that no one sees."""
    within = tl.arange(0, BLOCK_N)
    # A row's address first, so that its columns lie at constant distances from it.
    row_at = position_weights + (PAD + width - 1 + start_n - rows).to(tl.int64)
    bias = tl.load(row_at[:, None] + within[None, :]).to(tl.float32)
    if HAS_TIME:
        time = tl.load(own_time + tl.minimum(start_n + within, length - 1))
        if narrow:
            delta = (successor - base).to(tl.int32)[:, None] - (time - base).to(tl.int32)[None, :]
            bias += _time_weight(delta, time_table, SHIFT)
        else:
            bias += _time_weight(successor[:, None] - time[None, :], time_table, SHIFT)
    return bias


@triton.jit
def _queries(
    Y, at, head, inside, NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """The rows' queries as `parts`, and zeros to add to, a tuple of HEADS each. `at` is where the rows begin."""
    highs = ()
    lows = ()
    accs = ()
    for h in tl.static_range(HEADS):
        col = 2 * NUM_HEADS * VP + (head + h) * KP + tl.arange(0, KP)
        q = tl.load(Y + at[:, None] + col[None, :], mask=inside[:, None], other=0.0)
        high, low = parts(q, DOT)
        highs = highs + (high,)
        lows = lows + (low,)
        accs = accs + (tl.zeros([at.shape[0], VP], dtype=tl.float32),)
    return highs, lows, accs


@triton.jit
def _add_columns(
    accs, qs, q_lows, bias, Y, seq_start, head, rows, cols, length,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    DOT: tl.constexpr, FAST: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """accs, one for each head, plus SiLU(q k + bias) v over `cols`; with MASKED, over those that a row sees."""
    at = (seq_start + cols)[:, None] * (2 * NUM_HEADS * (VP + KP))
    # What lies behind a sequence's end is another's, and its garbage times zero need not be zero.
    inside = (cols < length)[:, None]
    added = ()
    for h in tl.static_range(HEADS):
        k_at = Y + at + (NUM_HEADS * (2 * VP + KP) + (head + h) * KP + tl.arange(0, KP))[None, :]
        v_at = Y + at + (NUM_HEADS * VP + (head + h) * VP + tl.arange(0, VP))[None, :]
        if MASKED:
            k = tl.load(k_at, mask=inside, other=0.0)
            v = tl.load(v_at, mask=inside, other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        k_high, k_low = parts(k, DOT)
        v_high, v_low = parts(v, DOT)
        zero = tl.zeros([rows.shape[0], cols.shape[0]], dtype=tl.float32)
        x = product(qs[h], q_lows[h], tl.trans(k_high), tl.trans(k_low), zero, DOT)
        weights = silu(x + bias, FAST)
        if MASKED:
            weights = tl.where(rows[:, None] >= cols[None, :], weights, 0.0)
        high, low = parts(weights.to(v.dtype), DOT)
        added = added + (product(high, low, v_high, v_low, accs[h], DOT),)
    return added


@triton.jit
def _add_range(
    accs, qs, q_lows, Y, seq_start, head, rows, length, begin, stop, own_time, base, successor, narrow,
    position_weights, time_table, width,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, HAS_TIME: tl.constexpr,
    SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, PAD: tl.constexpr, DOT: tl.constexpr, FAST: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """`_add_columns` over the blocks of [begin, stop)."""
    for start_n in tl.range(begin, stop, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        bias = _bias(
            rows, start_n, base, successor, narrow, length, own_time,
            position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD,
        )  # fmt: skip
        accs = _add_columns(
            accs, qs, q_lows, bias, Y, seq_start, head, rows, cols, length,
            NUM_HEADS, HEADS, KP, VP, DOT, FAST, MASKED,
        )  # fmt: skip
    return accs


@triton.jit
def _attended(
    Y, sequence, seq_start, length, start_m, head,
    timestamps, position_weights, time_table, stride_tb, num_times, width,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAD: tl.constexpr, UNROLLED: tl.constexpr, DOT: tl.constexpr, FAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """HEADS sums over the columns j that row i sees of SiLU(q_i k_j + bias_ij) v_j, (BLOCK_M, VP) float32 each.

    UNROLLED: so many blocks of columns hold the longest row; their biases are computed before anything that
    another kernel has written is read. 0: a loop. DEPENDENT: this kernel may have been started while the one
    before it still ran, and what follows it may be so started.
    """
    rows = start_m + tl.arange(0, BLOCK_M)
    own_time = timestamps
    base = seq_start
    successor = rows
    narrow = True
    if HAS_TIME:
        own_time = timestamps + sequence.to(tl.int64) * stride_tb
        base, successor, narrow = _times(own_time, rows, length, num_times)
    biases = ()
    for block in tl.static_range(UNROLLED):
        bias = _bias(
            rows, block * BLOCK_N, base, successor, narrow, length, own_time,
            position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD,
        )  # fmt: skip
        biases = biases + (bias,)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    row_at = (seq_start + rows) * (2 * NUM_HEADS * (VP + KP))
    qs, q_lows, accs = _queries(Y, row_at, head, rows < length, NUM_HEADS, HEADS, KP, VP, DOT)
    if UNROLLED > 0:
        for block in tl.static_range(UNROLLED):
            cols = block * BLOCK_N + tl.arange(0, BLOCK_N)
            accs = _add_columns(
                accs, qs, q_lows, biases[block], Y, seq_start, head, rows, cols, length,
                NUM_HEADS, HEADS, KP, VP, DOT, FAST, True,
            )  # fmt: skip
    else:
        cut = start_m // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, length)
        accs = _add_range(
            accs, qs, q_lows, Y, seq_start, head, rows, length, 0, cut, own_time, base, successor, narrow,
            position_weights, time_table, width,
            NUM_HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_N, PAD, DOT, FAST, False,
        )  # fmt: skip
        accs = _add_range(
            accs, qs, q_lows, Y, seq_start, head, rows, length, cut, end, own_time, base, successor, narrow,
            position_weights, time_table, width,
            NUM_HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_N, PAD, DOT, FAST, True,
        )  # fmt: skip
    return accs


# Without specialisation on these, a launch does not depend on a batch's sizes.
_SIZES = ["stride_tb", "num_times", "num_sequences", "num_blocks", "width"]


@triton.jit(do_not_specialize=_SIZES)
def attention_kernel(
    Y, A, offsets, timestamps, position_weights, time_table,
    stride_tb, num_times, num_sequences, num_blocks, width, scale,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAD: tl.constexpr, DOT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """A = scale times `_attended`, (L, NUM_HEADS * VP). Grid: num_blocks * num_sequences * NUM_HEADS / HEADS."""
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
        Y, sequence, seq_start, length, start_m, head,
        timestamps, position_weights, time_table, stride_tb, num_times, width,
        NUM_HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_M, BLOCK_N, PAD, 0, DOT, FAST, False,
    )  # fmt: skip
    rows = start_m + tl.arange(0, BLOCK_M)
    at = A + (seq_start + rows)[:, None] * (NUM_HEADS * VP) + (head * VP + tl.arange(0, VP))[None, :]
    for h in tl.static_range(HEADS):
        tl.store(at + h * VP, (accs[h] * scale).to(A.dtype.element_ty), mask=(rows < length)[:, None])


@triton.jit(do_not_specialize=_SIZES)
def block_kernel(
    Y, X, Next, offsets, timestamps, position_weights, time_table, WOut, WOutLow, bias, W, WLow,
    stride_tb, num_times, num_sequences, num_blocks, width, scale, eps, l2_eps,
    HEADS: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PAD: tl.constexpr, UNROLLED: tl.constexpr, DOT: tl.constexpr,
    FAST: tl.constexpr, DEPENDENT: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """All of a block behind its projection, and the next block's projection:

        X += (layer_norm(attention) * u) WOut^T + bias;  Next = SiLU(layer_norm(X) W^T)

    Behind the last block Next is X over its own norm, and X is left as it was. Next is not Y: other programs
    still read that. X: (L, DP). WOut: (DP, HEADS * VP). W: (WIDTH, DP). Next: (L, WIDTH), or (L, D) with LAST.
    Grid: num_blocks * num_sequences, long blocks first.
    """
    program = tl.program_id(0)
    start_m = (num_blocks - 1 - program // num_sequences) * BLOCK_M
    sequence = program % num_sequences
    seq_start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - seq_start).to(tl.int32)
    if start_m >= length:
        return
    accs = _attended(
        Y, sequence, seq_start, length, start_m, 0,
        timestamps, position_weights, time_table, stride_tb, num_times, width,
        HEADS, HEADS, KP, VP, HAS_TIME, SHIFT, BLOCK_M, BLOCK_N, PAD, UNROLLED, DOT, FAST, DEPENDENT,
    )  # fmt: skip

    inside = start_m + tl.arange(0, BLOCK_M) < length
    rows = seq_start + start_m + tl.arange(0, BLOCK_M)
    value = tl.arange(0, VP)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    mixed = ()
    for h in tl.static_range(HEADS):
        a = (accs[h] * scale).to(Y.dtype.element_ty).to(tl.float32)
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
        u_at = Y + rows[:, None] * (2 * HEADS * (VP + KP)) + (h * VP + value)[None, :]
        u = tl.load(u_at, mask=inside[:, None], other=0.0).to(tl.float32)
        # u is zero in the padding.
        gated = ((mixed[h] - mean[:, None]) * deviation[:, None]).to(Y.dtype.element_ty).to(tl.float32) * u
        w_at = cols[:, None] * (HEADS * VP) + (h * VP + value)[None, :]
        w = tl.load(WOut + w_at)
        w_low = tl.load(WOutLow + w_at) if DOT == "tf32x3" else w
        high, low = parts(gated.to(Y.dtype.element_ty), DOT)
        acc = product(high, low, tl.trans(w), tl.trans(w_low), acc, DOT)
    acc += tl.load(bias + cols).to(tl.float32)[None, :]
    x_at = X + rows[:, None] * DP + cols[None, :]
    acc += tl.load(x_at, mask=inside[:, None], other=0.0).to(tl.float32)
    if LAST:
        norm = tl.maximum(tl.sqrt(tl.sum(acc * acc, axis=1)), l2_eps)
        to = Next + rows[:, None] * D + cols[None, :]
        unit = (acc / norm[:, None]).to(Next.dtype.element_ty)
        tl.store(to, unit, mask=inside[:, None] & (cols < D)[None, :])
    else:
        x = acc.to(X.dtype.element_ty)
        tl.store(x_at, x, mask=inside[:, None])
        width_out: tl.constexpr = 2 * HEADS * (VP + KP)
        project_rows(
            normalized(x.to(tl.float32), cols, eps, D), W, WLow, Next, rows, inside,
            DP, width_out, BLOCK_C, DOT, FAST,
        )  # fmt: skip
