"""The attention of tiny sequences in Triton: one program computes several whole sequences.

Sequences lie behind each other in jagged memory. A program takes a block of rows that holds some of them
whole, so that its columns are its rows, and masks pairs of rows of two sequences. Its loop over heads may
have one iteration: in a loop, Triton copies queries, keys and values asynchronously and at once.

The second product multiplies the other sequences' values by zero, and zero times NaN is not zero. A program
whose sums have a NaN therefore computes its sequences once more, one after the other, with zeros in place of
the others' values. The products have the same shapes, so that the sums of a clean sequence keep their bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_attention.triton_kernel_masks import visible_pairs
from kernels.hstu_attention.triton_kernel_numbers import load_rows, sigmoid_exact, sigmoid_half


@triton.jit
def _places(offsets, num_targets, first, count, pack_start, rows,
            HAS_TARGETS: tl.constexpr, MOST: tl.constexpr):  # fmt: skip
    """Of each row's sequence: the first row, the row behind the last, and the first target's row.

    A scan of scalars: a search in a vector would need barriers between the threads.
    """
    start = tl.zeros_like(rows)
    end = tl.zeros_like(rows)
    targets = tl.zeros_like(rows)
    begin = 0
    for i in tl.static_range(MOST):
        behind = (tl.load(offsets + first + tl.minimum(i + 1, count)).to(tl.int64) - pack_start).to(tl.int32)
        # An empty sequence begins where the next one does.
        has_begun = rows >= begin
        start = tl.where(has_begun, begin, start)
        end = tl.where(has_begun, behind, end)
        if HAS_TARGETS:
            of_sequence = tl.load(num_targets + first + tl.minimum(i, count - 1)).to(tl.int32)
            targets = tl.where(has_begun, of_sequence, targets)
        begin = behind
    return start, end, end - targets


@triton.jit
def _sums(q, k, v, visible, alpha, DOT: tl.constexpr, SIGMOID: tl.constexpr):
    """(BLOCK, BLOCK_V) float32: the sums of the visible columns, without the factor alpha."""
    x = tl.dot(q, tl.trans(k), input_precision=DOT)
    # The product is linear in the first x: the end applies its alpha.
    if SIGMOID == "half":
        weights = x * sigmoid_half(x * (alpha * -1.4426950408889634))
    else:
        weights = x * sigmoid_exact(x * alpha)
    return tl.dot(tl.where(visible, weights, 0.0).to(v.dtype), v, input_precision=DOT)


# No specialisation on these, so that batches of all sizes share one compiled kernel. If the compiler knew
# that there is one head, it would make no loop.
@triton.jit(do_not_specialize=["num_sequences", "packed", "heads", "contextual", "window"])
def packed_attention_kernel(
    Q, K, V, Out, offsets, num_targets, attn_scale,
    num_sequences, packed, heads, contextual, window, alpha, scale,
    stride_ql: tl.constexpr, stride_qh: tl.constexpr, stride_kl: tl.constexpr, stride_kh: tl.constexpr,
    stride_vl: tl.constexpr, stride_vh: tl.constexpr, stride_ol: tl.constexpr, stride_oh: tl.constexpr,
    NUM_HEADS: tl.constexpr, HAS_TARGETS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CONTEXT: tl.constexpr,
    HAS_SCALE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr, SIGMOID: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """The result of `hstu_attention_kernel` with the production mask, for sequences that are tiny.

    Args:
        packed: sequences of a program, at most MOST, which have BLOCK rows together at most.
        heads: heads of a program; divides NUM_HEADS. The grid has NUM_HEADS / heads programs for each pack;
            those of a pack follow each other.
        The others are those of `hstu_attention_kernel`.
    """
    program = tl.program_id(0)
    parts = NUM_HEADS // heads
    first = program // parts * packed
    head = program % parts * heads
    count = tl.minimum(num_sequences - first, packed)
    pack_start = tl.load(offsets + first).to(tl.int64)
    size = (tl.load(offsets + first + count).to(tl.int64) - pack_start).to(tl.int32)
    rows = tl.arange(0, BLOCK)
    inside = rows < size
    start, end, first_target = _places(
        offsets, num_targets, first, count, pack_start, rows, HAS_TARGETS, MOST
    )
    visible = visible_pairs(
        rows - start, rows - start, end - start, first_target - start, contextual, window,
        HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
    )  # fmt: skip
    visible = visible & (start[:, None] == start[None, :])
    factor = tl.full([BLOCK], scale, tl.float32)
    if HAS_SCALE:
        factor = tl.load(attn_scale + pack_start + rows, mask=inside, other=0.0).to(tl.float32)
    factor *= alpha

    q_at = Q + pack_start * stride_ql
    k_at = K + pack_start * stride_kl
    v_at = V + pack_start * stride_vl
    column = tl.arange(0, BLOCK_V)
    out_at = Out + pack_start * stride_ol + rows.to(tl.int64)[:, None] * stride_ol + column[None, :]
    is_stored = inside[:, None] & (column < V_DIM)[None, :]
    has_nan = tl.zeros([BLOCK], tl.int32)
    for h in tl.range(head, head + heads):
        q = load_rows(q_at + h * stride_qh, rows, stride_ql, inside, K_DIM, BLOCK_K, True)
        k = load_rows(k_at + h * stride_kh, rows, stride_kl, inside, K_DIM, BLOCK_K, True)
        v = load_rows(v_at + h * stride_vh, rows, stride_vl, inside, V_DIM, BLOCK_V, True)
        acc = _sums(q, k, v, visible, alpha, DOT, SIGMOID)
        has_nan |= tl.max((acc != acc).to(tl.int32), axis=1)
        tl.store(out_at + h * stride_oh, (acc * factor[:, None]).to(Out.dtype.element_ty), mask=is_stored)
    if tl.max(has_nan, axis=0) > 0:
        # Other threads may have stored the same elements.
        tl.debug_barrier()
        for h in tl.range(head, head + heads):
            q = load_rows(q_at + h * stride_qh, rows, stride_ql, inside, K_DIM, BLOCK_K, True)
            k = load_rows(k_at + h * stride_kh, rows, stride_kl, inside, K_DIM, BLOCK_K, True)
            for own in tl.range(first, first + count):
                begin = (tl.load(offsets + own).to(tl.int64) - pack_start).to(tl.int32)
                behind = (tl.load(offsets + own + 1).to(tl.int64) - pack_start).to(tl.int32)
                is_own = (rows >= begin) & (rows < behind)
                v = load_rows(v_at + h * stride_vh, rows, stride_vl, is_own, V_DIM, BLOCK_V, True)
                acc = _sums(q, k, v, visible, alpha, DOT, SIGMOID)
                out = (acc * factor[:, None]).to(Out.dtype.element_ty)
                tl.store(out_at + h * stride_oh, out, mask=is_stored & is_own[:, None])
