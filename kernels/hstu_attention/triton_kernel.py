"""The fused HSTU attention kernel in Triton. `hstu_attention_kernel` also compiles ahead of time.

One program owns BLOCK_M rows of one sequence and HEADS heads, which share the bias. It walks over the columns
in blocks of BLOCK_N. First come blocks that are visible to every row and need no mask. A second loop takes
the others: blocks that a window cuts, that the diagonal, the targets or the sequence's end cut, and the
targets' own. It skips blocks that are visible to no row.

With ONE_LOOP one loop takes all blocks in order, and masks those that are cut: one pipeline to fill. A second
one takes the block that the sequence's end cuts, where there is one.

The scale of the weights and the outer alpha are linear: the program applies them once, to the accumulator.
Blocks inside of the sequence may come through tensor descriptors (the copy engine); with two loops whole ones
alone do. The block at its end needs masked loads: the columns behind it belong to another sequence, and NaN
times zero is not zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_attention.triton_kernel_bias import relative_bias, times_of
from kernels.hstu_attention.triton_kernel_masks import column_ranges, visible_pairs
from kernels.hstu_attention.triton_kernel_numbers import as_tf32, load_rows, sigmoid_exact, sigmoid_half
from kernels.hstu_attention.triton_kernel_splits import part_of


@triton.jit
def _queries(q_at, rows, stride_ql, stride_qh, seen, K_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
             HEADS: tl.constexpr, DOT: tl.constexpr):  # fmt: skip
    """(BLOCK_M, BLOCK_K) for each head; zero outside of `seen`."""
    qs = ()
    for h in tl.static_range(HEADS):
        q = load_rows(q_at + h * stride_qh, rows, stride_ql, seen, K_DIM, BLOCK_K, True)
        if DOT == "tf32":
            q = as_tf32(q)
        qs = qs + (q,)
    return qs


@triton.jit
def _accumulate(
    accs, qs, k_at, v_at, KDesc, VDesc, seq_start, head, rows, length, first_target,
    own_time, base, successor, narrow, position_weights, time_weights, bucket_table, width,
    contextual, window, alpha, begin, stop, second, third, shift_first, shift_second, shift_third, whole, cut,
    HAS_BIAS: tl.constexpr, HAS_TIME: tl.constexpr, BUCKET_SHIFT: tl.constexpr,
    HAS_TARGETS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CONTEXT: tl.constexpr,
    stride_kl: tl.constexpr, stride_kh: tl.constexpr, stride_vl: tl.constexpr, stride_vh: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr, HEADS: tl.constexpr, DOT: tl.constexpr, SIGMOID: tl.constexpr,
    USE_TMA: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """accs, one for each head, plus the columns [begin, stop).

    MASK: "none" takes all pairs, "all" the visible ones, with masked loads; "cut" the visible ones, and masks
    the blocks outside of [whole, cut) alone. But for "none", with targets, a window or contextual rows,
    [begin, stop) are three ranges of columns one after the other: up to `second`, up to `third`, and the
    rest, each with its shift to the columns. One loop has less code, and fills its pipeline once.
    """
    for start_n in tl.range(begin, stop, BLOCK_N):
        if MASK != "none" and (HAS_TARGETS or HAS_WINDOW or HAS_CONTEXT):
            shift = tl.where(
                start_n < second, shift_first, tl.where(start_n < third, shift_second, shift_third)
            )
            start_n += shift
        start_n = tl.multiple_of(start_n, BLOCK_N)
        cols = start_n + tl.arange(0, BLOCK_N)
        if HAS_BIAS:
            bias = relative_bias(
                rows, cols, base, successor, narrow, length, own_time,
                position_weights, time_weights, bucket_table, width, HAS_TIME, BUCKET_SHIFT,
            )  # fmt: skip
        if MASK == "all":
            visible = visible_pairs(
                rows, cols, length, first_target, contextual, window, HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT
            )
        added = ()
        for h in tl.static_range(HEADS):
            if USE_TMA and MASK != "all":
                k = KDesc.load([(seq_start + start_n).to(tl.int32), (head + h) * BLOCK_K])
            else:
                k = load_rows(
                    k_at + h * stride_kh, cols, stride_kl, cols < length, K_DIM, BLOCK_K, MASK == "all"
                )
            if DOT == "tf32":
                k = as_tf32(k)
            x = tl.dot(qs[h], tl.trans(k), input_precision=DOT)
            if HAS_BIAS:
                x += bias
            # The product is linear in the first x: the end applies its alpha.
            if SIGMOID == "half":
                weights = x * sigmoid_half(x * (alpha * -1.4426950408889634))
            else:
                weights = x * sigmoid_exact(x * alpha)
            if MASK == "all":
                weights = tl.where(visible, weights, 0.0)
            elif MASK == "cut":
                if (start_n < whole) | (start_n >= cut):
                    visible = visible_pairs(
                        rows, cols, length, first_target, contextual, window,
                        HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
                    )  # fmt: skip
                    weights = tl.where(visible, weights, 0.0)
            if USE_TMA and MASK != "all":
                v = VDesc.load([(seq_start + start_n).to(tl.int32), (head + h) * BLOCK_V])
            else:
                v = load_rows(
                    v_at + h * stride_vh, cols, stride_vl, cols < length, V_DIM, BLOCK_V, MASK == "all"
                )
            if DOT == "tf32":
                weights = as_tf32(weights)
                v = as_tf32(v)
            added = added + (tl.dot(weights.to(v.dtype), v, accs[h], input_precision=DOT),)
        accs = added
    return accs


# No specialisation on these, so that batches of all sizes share one compiled kernel.
_SIZES = [
    "stride_tb",
    "num_times",
    "num_sequences",
    "num_blocks",
    "capacity",
    "width",
    "contextual",
    "window",
]


@triton.jit(do_not_specialize=_SIZES)
def hstu_attention_kernel(
    Q, K, V, Out, KDesc, VDesc, offsets, firsts,
    timestamps, position_weights, time_weights, bucket_table, num_targets, attn_scale,
    stride_tb, num_times, num_sequences, num_blocks, capacity, width, contextual, window, alpha, scale,
    stride_ql: tl.constexpr, stride_qh: tl.constexpr, stride_kl: tl.constexpr, stride_kh: tl.constexpr,
    stride_vl: tl.constexpr, stride_vh: tl.constexpr, stride_ol: tl.constexpr, stride_oh: tl.constexpr,
    NUM_HEADS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_TIME: tl.constexpr, BUCKET_SHIFT: tl.constexpr,
    HAS_TARGETS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CONTEXT: tl.constexpr, HAS_SCALE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DOT: tl.constexpr,
    SIGMOID: tl.constexpr, USE_TMA: tl.constexpr, CACHED: tl.constexpr,
    SPLITS: tl.constexpr = 1, ONE_LOOP: tl.constexpr = False,
):  # fmt: skip
    """Out[i, h] = sum over the visible columns j of row i of SiLU(alpha (q_i k_j + bias_ij)) * scale_i * v_j.

    Args:
        Q, K, Out, V: (L, NUM_HEADS, K_DIM or V_DIM), the last stride 1; Out in V's type. KDesc, VDesc: tensor
            descriptors of K and V as (L, NUM_HEADS * dim), with USE_TMA only.
        offsets: (B + 1,) int. firsts: (B,) int, with CACHED: Q, Out and attn_scale then have the rows from
            this position on alone, and K and V hold `capacity` rows a sequence. timestamps: (B, num_times)
            int64, stride_tb apart. position_weights: (2 * width - 1,). time_weights, bucket_table: see
            `buckets`. num_targets: (B,) int. attn_scale: (L,).
        num_blocks: most blocks of BLOCK_M rows that a sequence's rows of Q touch; the grid has num_blocks *
            B * NUM_HEADS / HEADS programs.
        scale: factor of the weights without attn_scale.
        HEADS: heads of a program; divides NUM_HEADS.
        GROUP: (sequence, heads) pairs, less than twice as many of which run side by side, long blocks first.
            Few pairs keep their keys and values in the cache; many pairs avoid a long block at the end.
        DOT: input precision of the dot products. SIGMOID: "exact", or "half" for half-precision inputs on a
            GPU.
        ONE_LOOP: without contextual rows and SPLITS; see above.
        SPLITS: programs along the grid's second axis that share a block's columns. Out is then (SPLITS, L,
            NUM_HEADS, V_DIM) in float32, one sum for each.
    """
    program = tl.program_id(0)
    # Equal groups: a small last one would leave multiprocessors idle.
    all_pairs = num_sequences * (NUM_HEADS // HEADS)
    groups = tl.maximum(all_pairs // GROUP, 1)
    size = (all_pairs + groups - 1) // groups
    in_group = size * num_blocks
    first_pair = program // in_group * size
    pairs = tl.minimum(all_pairs - first_pair, size)
    within = program % in_group
    pair = first_pair + within % pairs
    block = num_blocks - 1 - within // pairs
    if HAS_CONTEXT:
        # Contextual rows see all history: their block is a long one, too.
        block = (block + 1) % num_blocks
    sequence = pair // (NUM_HEADS // HEADS)
    head = pair % (NUM_HEADS // HEADS) * HEADS
    seq_start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - seq_start).to(tl.int32)
    first = 0
    # Rows of Q and of K in memory that have the sequence's position 0.
    query_start = seq_start
    if CACHED:
        first = tl.load(firsts + sequence).to(tl.int32)
        length += first
        query_start -= first
        seq_start = sequence.to(tl.int64) * capacity
        # Blocks of rows lie where they lie without a cache: the same columns, the same order of sums.
        block += first // BLOCK_M
    start_m = block * BLOCK_M
    if start_m >= length:
        return

    first_target = length
    if HAS_TARGETS:
        first_target = length - tl.load(num_targets + sequence).to(tl.int32)
    rows = start_m + tl.arange(0, BLOCK_M)
    inside = rows < length
    if CACHED:
        inside = inside & (rows >= first)
    q_at = Q + query_start * stride_ql + head.to(tl.int64) * stride_qh
    k_at = K + seq_start * stride_kl + head.to(tl.int64) * stride_kh
    v_at = V + seq_start * stride_vl + head.to(tl.int64) * stride_vh
    # In a block with contextual rows, these alone see the whole blocks; the others are zero there.
    sees_whole = inside
    if HAS_CONTEXT:
        sees_whole = inside & (rows < tl.where(start_m < contextual, contextual, start_m + BLOCK_M))
    qs = _queries(q_at, rows, stride_ql, stride_qh, sees_whole, K_DIM, BLOCK_K, HEADS, DOT)
    accs = ()
    for _ in tl.static_range(HEADS):
        accs = accs + (tl.zeros([BLOCK_M, BLOCK_V], dtype=tl.float32),)
    own_time = timestamps
    base = seq_start
    successor = rows
    narrow = True
    if HAS_TIME:
        own_time = timestamps + sequence.to(tl.int64) * stride_tb
        base, successor, narrow = times_of(own_time, rows, length, num_times, BLOCK_M)
    low, whole, cut, high, own, end = column_ranges(
        start_m, length, first_target, contextual, window, BLOCK_M, BLOCK_N,
        HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
    )  # fmt: skip
    if ONE_LOOP:
        second = tl.maximum((high - low + BLOCK_N - 1) // BLOCK_N * BLOCK_N, 0)
        stop = second + tl.maximum((end - own + BLOCK_N - 1) // BLOCK_N * BLOCK_N, 0)
        last = stop - BLOCK_N + tl.where(stop > second, own - second, low)
        inside_stop = tl.where(last + BLOCK_N > length, stop - BLOCK_N, stop)
        accs = _accumulate(
            accs, qs, k_at, v_at, KDesc, VDesc, seq_start, head, rows, length, first_target,
            own_time, base, successor, narrow, position_weights, time_weights, bucket_table, width,
            contextual, window, alpha, 0, inside_stop, second, stop, low, own - second, 0, whole, cut,
            HAS_BIAS, HAS_TIME, BUCKET_SHIFT, HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
            stride_kl, stride_kh, stride_vl, stride_vh, K_DIM, V_DIM, BLOCK_K, BLOCK_V, BLOCK_N,
            HEADS, DOT, SIGMOID, USE_TMA, MASK="cut",
        )  # fmt: skip
        # A loop that is not entered would still start its loads.
        if inside_stop < stop:
            accs = _accumulate(
                accs, qs, k_at, v_at, KDesc, VDesc, seq_start, head, rows, length, first_target,
                own_time, base, successor, narrow, position_weights, time_weights, bucket_table, width,
                contextual, window, alpha, inside_stop, stop, second, stop, low, own - second, 0, whole, cut,
                HAS_BIAS, HAS_TIME, BUCKET_SHIFT, HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
                stride_kl, stride_kh, stride_vl, stride_vh, K_DIM, V_DIM, BLOCK_K, BLOCK_V, BLOCK_N,
                HEADS, DOT, SIGMOID, USE_TMA, MASK="all",
            )  # fmt: skip
    else:
        first_whole, last_whole = part_of(whole, cut, BLOCK_N, SPLITS)
        accs = _accumulate(
            accs, qs, k_at, v_at, KDesc, VDesc, seq_start, head, rows, length, first_target,
            own_time, base, successor, narrow, position_weights, time_weights, bucket_table, width,
            contextual, window, alpha, first_whole, last_whole, 0, 0, 0, 0, 0, 0, 0,
            HAS_BIAS, HAS_TIME, BUCKET_SHIFT, HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
            stride_kl, stride_kh, stride_vl, stride_vh, K_DIM, V_DIM, BLOCK_K, BLOCK_V, BLOCK_N,
            HEADS, DOT, SIGMOID, USE_TMA, MASK="none",
        )  # fmt: skip
        if HAS_CONTEXT:
            # Without contributions of NaN and infinity, which zero does not hide.
            kept = ()
            for h in tl.static_range(HEADS):
                kept = kept + (tl.where(sees_whole[:, None], accs[h], 0.0),)
            accs = kept
            qs = _queries(q_at, rows, stride_ql, stride_qh, inside, K_DIM, BLOCK_K, HEADS, DOT)
        begin = cut
        stop = high
        second = 0
        third = 0
        if HAS_TARGETS or HAS_WINDOW or HAS_CONTEXT:
            begin = 0
            second = whole - low
            third = second + tl.maximum((high - cut + BLOCK_N - 1) // BLOCK_N * BLOCK_N, 0)
            stop = third + tl.maximum(end - own, 0)
        begin, stop = part_of(begin, stop, BLOCK_N, SPLITS)
        accs = _accumulate(
            accs, qs, k_at, v_at, KDesc, VDesc, seq_start, head, rows, length, first_target,
            own_time, base, successor, narrow, position_weights, time_weights, bucket_table, width,
            contextual, window, alpha, begin, stop, second, third, low, cut - second, own - third, 0, 0,
            HAS_BIAS, HAS_TIME, BUCKET_SHIFT, HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
            stride_kl, stride_kh, stride_vl, stride_vh, K_DIM, V_DIM, BLOCK_K, BLOCK_V, BLOCK_N,
            HEADS, DOT, SIGMOID, USE_TMA, MASK="all",
        )  # fmt: skip

    column = tl.arange(0, BLOCK_V)
    out_at = Out + query_start * stride_ol + head.to(tl.int64) * stride_oh
    out_at += rows.to(tl.int64)[:, None] * stride_ol + column[None, :]
    if SPLITS > 1:
        out_at += tl.program_id(1).to(tl.int64) * tl.load(offsets + num_sequences) * stride_ol
    factor = tl.full([BLOCK_M], scale, tl.float32)
    if HAS_SCALE:
        factor = tl.load(attn_scale + query_start + rows, mask=inside, other=0.0).to(tl.float32)
    for h in tl.static_range(HEADS):
        out = (accs[h] * (factor * alpha)[:, None]).to(Out.dtype.element_ty)
        tl.store(out_at + h * stride_oh, out, mask=inside[:, None] & (column < V_DIM)[None, :])
