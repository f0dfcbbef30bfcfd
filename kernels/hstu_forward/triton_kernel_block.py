"""Research HSTU's attention over several heads at once, and the rest of a block behind it.

One program owns BLOCK_M rows of one sequence and HEADS heads, and walks over the columns in blocks of
BLOCK_N. It computes the bias, which takes more instructions than a head, once for all its heads.

A head of K or V elements is stored KP or VP wide, padded with zeros, NUM_HEADS heads side by side. u is U (L,
NUM_HEADS VP). q, v and k are PARTS summands (`triton_kernel_products.split`), which tensor cores read from
shared memory without a conversion: QVK (L, PARTS, NUM_HEADS (2 KP + VP)).

PACK small heads share a tile of PACK KP and PACK VP columns, and one sum. Zeros take the place of the other
heads' columns in a head's queries and values.
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
    scale_of,
    silu,
    span_of,
    split,
    unit_of,
)


@triton.jit
def _gathered(at, GPU: tl.constexpr):
    """float32 from a tensor of addresses, in assembly.

    Triton's own loads would pass through shared memory in a loop's pipeline, element by element."""
    if GPU:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [at.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.load(at)


@triton.jit
def _gathered_pair(at, GPU: tl.constexpr):
    """Two adjacent float32, from a tensor of addresses of the first."""
    if GPU:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];",
            "=f,=f,l",
            [at.to(tl.int64)],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    return tl.load(at), tl.load(at + 1)


@triton.jit
def _time_weight(delta, table, SHIFT: tl.constexpr, GPU: tl.constexpr):
    """Weights of the buckets of float32 time differences, by `weights.time_table`."""
    # An offset of 16 bytes a cell, without the sign: one register beside the table's address.
    cell = (delta.to(tl.uint32, bitcast=True) >> (SHIFT - 4)) & ((0x7FFFFFFF >> (SHIFT - 4)) & 0xFFFFFFF0)
    at = (table.to(tl.pointer_type(tl.int8)) + cell).to(tl.pointer_type(tl.float32))
    edge, low = _gathered_pair(at, GPU)
    return tl.where(tl.abs(delta) >= edge, _gathered(at + 2, GPU), low)


@triton.jit
def _bias(
    rows, start_n, row_high, row_low, own_times, position_weights, time_table, width,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_N: tl.constexpr, PAD: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N) float32; see `kernels.hstu_attention.masks.ResearchMask`.

    The weight of an invisible column's position is `weights.UNSEEN`. Position weights have PAD more elements
    at both ends, and times PAD more at the end, for rows and columns beyond the sequence."""
    within = tl.arange(0, BLOCK_N)
    # A row's address first: its columns have constant distances from it.
    row_at = position_weights + (PAD + width - 1 + start_n - rows).to(tl.int64)
    bias = _gathered(row_at[:, None] + within[None, :], GPU)
    if HAS_TIME:
        # In assembly: a loop's pipeline would send Triton's own loads through shared memory one by one.
        at = own_times.to(tl.pointer_type(tl.int64)) + start_n + within
        high, low = _gathered_pair(at.to(tl.pointer_type(tl.float32)), GPU)
        delta = (row_high[:, None] - high[None, :]) * 16777216.0 + (row_low[:, None] - low[None, :])
        bias += _time_weight(delta, time_table, SHIFT, GPU)
    return bias


@triton.jit
def _zeros(ROWS: tl.constexpr, COLS: tl.constexpr, GPU: tl.constexpr):
    """Zeros that the compiler does not recognise.

    It would set a sum's registers to known zeros inside the loop, and wait there for all products in flight
    (ptxas warning C7515)."""
    zeros = tl.zeros([ROWS, COLS], dtype=tl.float32)
    if GPU:
        zeros = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=f,f", [zeros], dtype=tl.float32, is_pure=False, pack=1
        )
    return zeros


@triton.jit
def _of_head(parts, member, SIZE: tl.constexpr, PACK: tl.constexpr, PARTS: tl.constexpr):
    """The columns of a tile's head number `member`, and zeros."""
    masked = parts
    if PACK > 1:
        masked = ()
        for part in tl.static_range(PARTS):
            is_own = tl.arange(0, PACK * SIZE) // SIZE == member
            masked = masked + (tl.where(is_own[None, :], parts[part], 0.0),)
    return masked


@triton.jit
def _queries(
    QVK, rows, head, inside,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, PACK: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    PARTS: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """The rows' queries, in parts, a tuple of HEADS, and sums of zeros, a tuple of HEADS / PACK."""
    factors: tl.constexpr = NUM_HEADS * (2 * KP + VP)
    at = QVK + rows[:, None] * (PARTS * factors)
    qs = ()
    accs = ()
    for tile in tl.static_range(HEADS // PACK):
        q_at = at + ((head + tile * PACK) * KP + tl.arange(0, PACK * KP))[None, :]
        q = load_parts(q_at, inside[:, None], factors, PARTS)
        for member in tl.static_range(PACK):
            qs = qs + (_of_head(q, member, KP, PACK, PARTS),)
        accs = accs + (_zeros(rows.shape[0], PACK * VP, GPU),)
    return qs, accs


@triton.jit
def _add_columns(
    accs, qs, bias, QVK, seq_start, head, cols, length,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, PACK: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    PARTS: tl.constexpr, CHAINED: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """accs, one for each tile of heads, plus SiLU(q k + bias) v over `cols`, times a `product`'s scales.

    The bias of an invisible column makes its weight zero."""
    factors: tl.constexpr = NUM_HEADS * (2 * KP + VP)
    at = QVK + (seq_start + cols)[:, None] * (PARTS * factors)
    # Rows behind a sequence's end belong to another one; NaN there times zero is not zero.
    inside = (cols < length)[:, None]
    added = ()
    for tile in tl.static_range(HEADS // PACK):
        first = head + tile * PACK
        k_at = at + (NUM_HEADS * (KP + VP) + first * KP + tl.arange(0, PACK * KP))[None, :]
        k = load_parts(k_at, inside, factors, PARTS)
        v_at = at + (NUM_HEADS * KP + first * VP + tl.arange(0, PACK * VP))[None, :]
        acc = accs[tile]
        for member in tl.static_range(PACK):
            zero = tl.zeros([bias.shape[0], bias.shape[1]], dtype=tl.float32)
            dots = product_transposed(qs[tile * PACK + member], k, zero, PARTS, CHAINED)
            weights = silu(dots * unit_of(PARTS) + bias, 1.0, 1.0 / scale_of(PARTS), GPU)
            if member == 0:
                v = load_parts(v_at, inside, factors, PARTS)
            split_weights = split(weights, QVK.dtype.element_ty, PARTS)
            acc = product(split_weights, _of_head(v, member, VP, PACK, PARTS), acc, PARTS, CHAINED)
        added = added + (acc,)
    return added


@triton.jit
def attended(
    QVK, sequence, seq_start, length, start_m, head, split,
    times, position_weights, time_table, num_times, width,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, PACK: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAD: tl.constexpr, UNROLLED: tl.constexpr, PARTS: tl.constexpr, CHAINED: tl.constexpr,
    AHEAD: tl.constexpr, SPLITS: tl.constexpr, GPU: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sums over the visible columns j of row i of SiLU(q_i k_j + bias_ij) v_j, one for each tile of heads:
    (BLOCK_M, PACK * VP) float32.

    times: (B, num_times + PAD, 2) float32, see `triton_kernels.embed_kernel`.
    UNROLLED: number of blocks of columns, whose biases are computed before any read of the preceding kernel's
    results: every block with the remainder `split` by SPLITS. 0 for a loop over all columns. AHEAD: whether a
    loop computes biases before the products of the previous block of columns, under which their loads hide.
    DEPENDENT: whether this kernel may start before its predecessor ends, and its successor before this one
    does. All earlier kernels have ended.
    """
    rows = start_m + tl.arange(0, BLOCK_M)
    own_times = times + sequence.to(tl.int64) * (2 * (num_times + PAD))
    row_high = rows
    row_low = rows
    if HAS_TIME:
        successor = tl.minimum(rows + 1, tl.minimum(length, num_times - 1))
        row_high, row_low = _gathered_pair(own_times + 2 * successor, GPU)
        # The sign differs from a column's, so that no difference of two is 0.
        row_high = tl.where(row_high == float("inf"), -row_high, row_high)
    biases = ()
    for block in tl.static_range(UNROLLED):
        bias = _bias(
            rows, (block * SPLITS + split) * BLOCK_N, row_high, row_low, own_times,
            position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD, GPU,
        )  # fmt: skip
        biases = biases + (bias,)
    if AHEAD:
        following = _bias(
            rows, 0, row_high, row_low, own_times,
            position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD, GPU,
        )  # fmt: skip
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    qs, accs = _queries(
        QVK, seq_start + rows, head, rows < length, NUM_HEADS, HEADS, PACK, KP, VP, PARTS, GPU
    )  # fmt: skip
    if UNROLLED > 0:
        for block in tl.static_range(UNROLLED):
            cols = (block * SPLITS + split) * BLOCK_N + tl.arange(0, BLOCK_N)
            accs = _add_columns(
                accs, qs, biases[block], QVK, seq_start, head, cols, length,
                NUM_HEADS, HEADS, PACK, KP, VP, PARTS, CHAINED, GPU,
            )  # fmt: skip
    else:
        # One loop: a second loop with a mask would wait again for its first keys and values.
        for start_n in tl.range(0, tl.minimum(start_m + BLOCK_M, length), BLOCK_N):
            computed = _bias(
                rows, start_n + BLOCK_N if AHEAD else start_n, row_high, row_low, own_times,
                position_weights, time_table, width, HAS_TIME, SHIFT, BLOCK_N, PAD, GPU,
            )  # fmt: skip
            bias = computed
            if AHEAD:
                bias = following
                following = computed
            accs = _add_columns(
                accs, qs, bias, QVK, seq_start, head, start_n + tl.arange(0, BLOCK_N), length,
                NUM_HEADS, HEADS, PACK, KP, VP, PARTS, CHAINED, GPU,
            )  # fmt: skip
    return accs


# No specialisation on these, so that batches of all sizes share one compiled kernel.
SIZES = ["capacity", "num_times", "num_sequences", "num_blocks", "width"]


@triton.jit(do_not_specialize=SIZES)
def block_kernel(
    U, QVK, X, NextU, NextQVK, offsets, firsts, times, position_weights, time_table, WOut, bias, W,
    capacity, num_times, num_sequences, num_blocks, width, scale, eps, l2_eps,
    HEADS: tl.constexpr, PACK: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, HAS_TIME: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PAD: tl.constexpr, UNROLLED: tl.constexpr,
    PARTS: tl.constexpr, QVK_PARTS: tl.constexpr, CHAINED: tl.constexpr, AHEAD: tl.constexpr,
    GPU: tl.constexpr, DEPENDENT: tl.constexpr, LAST: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """A block after its projection, and the next block's projection:

        X += (layer_norm(attention) * u) WOut^T + bias;  NextU, NextQVK = SiLU(layer_norm(X) W^T)

    For the last block, NextU is X over its own norm, (L, D), and X does not change. NextU and NextQVK are not
    U and QVK, which other programs still read. PARTS belongs to the weights, QVK_PARTS to q, v and k.

    X: (L, DP). WOut: (PARTS, DP, HEADS * VP). W: (PARTS, columns of U and QVK, DP). Grid: num_blocks *
    num_sequences, long blocks first.
    """
    program = tl.program_id(0)
    sequence = program % num_sequences
    first, seq_start, qvk_start, length = span_of(offsets, firsts, sequence, capacity, CACHED)
    start_m = first + (num_blocks - 1 - program // num_sequences) * BLOCK_M
    if start_m >= length:
        return
    accs = attended(
        QVK, sequence, qvk_start, length, start_m, 0, 0,
        times, position_weights, time_table, num_times, width,
        HEADS, HEADS, PACK, KP, VP, HAS_TIME, SHIFT, BLOCK_M, BLOCK_N, PAD, UNROLLED, QVK_PARTS, CHAINED,
        AHEAD, 1, GPU, DEPENDENT,
    )  # fmt: skip

    dtype: tl.constexpr = X.dtype.element_ty
    inside = start_m + tl.arange(0, BLOCK_M) < length
    rows = seq_start + start_m + tl.arange(0, BLOCK_M)
    tiles: tl.constexpr = HEADS // PACK
    value = tl.arange(0, PACK * VP)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    mixed = ()
    unit = scale * unit_of(QVK_PARTS)
    for tile in tl.static_range(tiles):
        a = (accs[tile] * unit).to(dtype).to(tl.float32)
        mixed = mixed + (a,)
        total += tl.sum(a, axis=1)
    mean = total / (HEADS * V)
    squares = tl.zeros([BLOCK_M], dtype=tl.float32)
    for tile in tl.static_range(tiles):
        centred = tl.where((value % VP < V)[None, :], mixed[tile] - mean[:, None], 0.0)
        squares += tl.sum(centred * centred, axis=1)
    deviation = 1.0 / tl.sqrt(squares / (HEADS * V) + eps)

    cols = tl.arange(0, DP)
    acc = tl.zeros([BLOCK_M, DP], dtype=tl.float32)
    for tile in tl.static_range(tiles):
        u_at = U + rows[:, None] * (HEADS * VP) + (tile * PACK * VP + value)[None, :]
        u = tl.load(u_at, mask=inside[:, None], other=0.0).to(tl.float32)
        # u is zero in the padding.
        gated = ((mixed[tile] - mean[:, None]) * deviation[:, None]).to(dtype).to(tl.float32) * u
        w_at = cols[:, None] * (HEADS * VP) + (tile * PACK * VP + value)[None, :]
        w = load_parts(WOut + w_at, None, DP * HEADS * VP, PARTS)
        gated = split(gated * scale_of(PARTS), WOut.dtype.element_ty, PARTS)
        if tile == tiles - 1:
            # Loaded before a product, which hides the latency.
            x_at = X + rows[:, None] * DP + cols[None, :]
            residual = tl.load(x_at, mask=inside[:, None], other=0.0)
        acc = product_transposed(gated, w, acc, PARTS, CHAINED)
    acc = acc * unit_of(PARTS) + tl.load(bias + cols).to(tl.float32)[None, :]
    acc += residual.to(tl.float32)
    if LAST:
        norm = tl.maximum(tl.sqrt(tl.sum(acc * acc, axis=1)), l2_eps)
        to = NextU + rows[:, None] * D + cols[None, :]
        unit = (acc / norm[:, None]).to(dtype)
        tl.store(to, unit, mask=inside[:, None] & (cols < D)[None, :])
    else:
        x = acc.to(dtype)
        tl.store(x_at, x, mask=inside[:, None])
        project_rows(
            normalized(x.to(tl.float32), cols, eps, D), W, NextU, NextQVK, rows, rows - seq_start + qvk_start,
            inside, 0, 1,
            DP, HEADS * VP, HEADS * (2 * KP + VP), BLOCK_C, PARTS, QVK_PARTS, CHAINED, GPU,
        )  # fmt: skip
