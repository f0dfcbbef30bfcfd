"""The attention of half types in Gluon, Triton's lower level, for compute capability 9.0.

A program owns BLOCK_M rows of one sequence and head, as in `triton_kernel`, and has one loop over all blocks
of columns. In Triton a block's weights wait for its first product, and its second product for the weights.
Here the next block's first product runs in front of this block's second one, and the next weights are
computed under the latter. All first copies start at once, those of the queries, too.

Contextual rows have programs of their own, which see all history and start first. Such a program computes a
whole block of rows and stores the contextual ones; the block's other rows belong to the usual program.

Keys and values come through tensor descriptors. The block at a sequence's end brings rows of the next one.
Its products are masked, and its values are set to zero: they could be NaN, and NaN times zero is not zero.

In bfloat16 the weights are 2^62 times as large until a row's end; see `_large_silu`. A sum of weights and
values overflows at 2^66, 7e19, in place of 2^128.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.hstu_attention.triton_kernel_masks import column_ranges, context_ranges, visible_pairs
from kernels.hstu_attention.triton_kernel_numbers import sigmoid_half

# Triton renamed them.
_copy_rows = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_copy_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def shared_layout(columns: int) -> object:
    """The layout in shared memory of blocks of a half type with so many columns, as products read them."""
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * columns), element_bitwidth=16, rank=2)


@gluon.jit
def _large_silu(x, exponent_factor):
    """2^62 x / (1 + 2^(x * exponent_factor)) within 2^-20, for bfloat16, which has float32's exponents.

    As in `sigmoid_half`, two elements share a reciprocal and exponents are clamped, here to 62. Exponentials
    are scaled by 2^-62, so that the clamp is a saturation to one, which costs no instruction. The saturation
    of NaN is zero, so that NaN makes its neighbour NaN: `_weights` hides what a row does not see before.
    """
    return gl.inline_asm_elementwise(
        """{
            .reg .f32 a, b, r, t;
            fma.rn.f32 a, $2, $4, 0fC2780000;
            fma.rn.f32 b, $3, $5, 0fC2780000;
            ex2.approx.ftz.f32 a, a;
            ex2.approx.ftz.f32 b, b;
            add.sat.f32 a, a, 0f20800000;
            add.sat.f32 b, b, 0f20800000;
            mul.f32 r, a, b;
            rcp.approx.ftz.f32 r, r;
            mul.f32 t, r, b;
            mul.f32 $0, $2, t;
            mul.f32 t, r, a;
            mul.f32 $1, $3, t;
        }""",
        "=&f,=&f,f,f,f,f",
        [x, gl.full_like(x, exponent_factor)],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def _weights(
    x, rows, cols, start_n, length, first_target, contextual, window, whole, cut, alpha,
    HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, HAS_CONTEXT: gl.constexpr, LARGE: gl.constexpr,
):  # fmt: skip
    """SiLU(alpha x) / alpha where it is visible, else zero; blocks in [whole, cut) are visible. LARGE: 2^62
    times that."""
    if (start_n < whole) | (start_n >= cut):
        visible = visible_pairs(
            rows, start_n + cols, length, first_target, contextual, window,
            HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT,
        )  # fmt: skip
        x = gl.where(visible, x, 0.0)
    exponent_factor = alpha * -1.4426950408889634
    if LARGE:
        return _large_silu(x, exponent_factor)
    return x * sigmoid_half(x * exponent_factor)


@gluon.jit(do_not_specialize=["num_sequences", "contextual", "window"])
def ahead_attention_kernel(
    Q, Out, KDesc, VDesc, offsets, num_targets, attn_scale, num_sequences, contextual, window, alpha, scale,
    stride_ql: gl.constexpr, stride_qh: gl.constexpr, stride_ol: gl.constexpr, stride_oh: gl.constexpr,
    NUM_HEADS: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, HAS_CONTEXT: gl.constexpr,
    HAS_SCALE: gl.constexpr, K_DIM: gl.constexpr, V_DIM: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The result of `hstu_attention_kernel` with the production mask.

    Args:
        K_DIM, V_DIM: 16, 32, 64 or 128. BLOCK_M: 16 for each warp; warps are a multiple of four.
        STAGES: blocks of keys, and of values, in shared memory.
        The others are those of `hstu_attention_kernel`. The grid has pairs of a group, blocks of rows, and
        groups: of a group's programs, those of contextual rows start first, then those of the last blocks.
    """
    warps: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = Q.dtype.element_ty
    products: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BLOCK_N, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, V_DIM, 16])
    copies: gl.constexpr = gl.BlockedLayout([1, 8], [256 // K_DIM, K_DIM // 8], [warps, 1], [1, 0])
    stores: gl.constexpr = gl.BlockedLayout([1, 8], [256 // V_DIM, V_DIM // 8], [warps, 1], [1, 0])
    k_bytes: gl.constexpr = BLOCK_N * K_DIM * 2
    v_bytes: gl.constexpr = BLOCK_N * V_DIM * 2
    LARGE: gl.constexpr = dtype == gl.bfloat16

    pair = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
    block_m = gl.num_programs(1) - 1 - gl.program_id(1)
    if HAS_CONTEXT:
        is_context = gl.program_id(1) < (contextual + BLOCK_M - 1) // BLOCK_M
        block_m = gl.where(is_context, gl.program_id(1), block_m + contextual // BLOCK_M)
    start_m = block_m * BLOCK_M
    if pair >= num_sequences * NUM_HEADS:
        return
    sequence = pair // NUM_HEADS
    head = pair % NUM_HEADS
    seq_start = gl.load(offsets + sequence).to(gl.int64)
    length = (gl.load(offsets + sequence + 1) - seq_start).to(gl.int32)
    if start_m >= length:
        return
    first_target = length
    if HAS_TARGETS:
        first_target = length - gl.load(num_targets + sequence).to(gl.int32)
    low, whole, cut, high, own, end = column_ranges(
        start_m, length, first_target, contextual, window, BLOCK_M, BLOCK_N,
        HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT, APART=True,
    )  # fmt: skip
    if HAS_CONTEXT:
        if is_context:
            low, whole, cut, high, own, end = context_ranges(
                start_m, length, first_target, contextual, BLOCK_M, BLOCK_N
            )
    # Blocks of the history's columns come first, then those of the targets' own, `later` in place of `low`
    # away.
    of_history = gl.maximum((high - low + BLOCK_N - 1) // BLOCK_N, 0)
    blocks = of_history + gl.maximum((end - own + BLOCK_N - 1) // BLOCK_N, 0)
    later = own - of_history * BLOCK_N
    in_memory = seq_start.to(gl.int32)

    ks = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, K_DIM], shared_layout(K_DIM))
    vs = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, V_DIM], shared_layout(V_DIM))
    q = gl.allocate_shared_memory(dtype, [BLOCK_M, K_DIM], shared_layout(K_DIM))
    k_arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_arrived.index(stage), count=1)
        mbarrier.init(v_arrived.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.expect(k_arrived.index(stage), k_bytes, pred=stage < blocks)
        mbarrier.expect(v_arrived.index(stage), v_bytes, pred=stage < blocks)
    q_rows = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, copies))
    q_at = Q + seq_start * stride_ql + head.to(gl.int64) * stride_qh
    q_at += q_rows.to(gl.int64)[:, None] * stride_ql
    q_at += gl.arange(0, K_DIM, gl.SliceLayout(0, copies))[None, :]
    _copy_rows(q, q_at, mask=(q_rows < length)[:, None])
    async_copy.commit_group()
    for stage in gl.static_range(STAGES):
        at = in_memory + stage * BLOCK_N + gl.where(stage < of_history, low, later)
        is_there = stage < blocks
        _copy_block(KDesc, [at, head * K_DIM], k_arrived.index(stage), ks.index(stage), pred=is_there)
        _copy_block(VDesc, [at, head * V_DIM], v_arrived.index(stage), vs.index(stage), pred=is_there)
    rows = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, products))
    cols = gl.arange(0, BLOCK_N, gl.SliceLayout(0, products))
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, products)
    acc = gl.zeros([BLOCK_M, V_DIM], gl.float32, sums)
    async_copy.wait_group(0)
    fence_async_shared()
    mbarrier.wait(k_arrived.index(0), 0)
    x = warpgroup_mma(q, ks.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    x = warpgroup_mma_wait(0, deps=(x,))
    _barrier()
    mbarrier.expect(k_arrived.index(0), k_bytes, pred=blocks > STAGES)
    at = in_memory + STAGES * BLOCK_N + gl.where(of_history > STAGES, low, later)
    _copy_block(KDesc, [at, head * K_DIM], k_arrived.index(0), ks.index(0), pred=blocks > STAGES)
    start_n = gl.where(of_history > 0, low, later)
    weights = _weights(
        x, rows, cols, start_n, length, first_target, contextual, window, whole, cut, alpha,
        HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT, LARGE,
    )  # fmt: skip
    slot = 0
    phase = 0
    for block in range(1, blocks):
        # This block's keys, and the values of the one before.
        wraps = slot == STAGES - 1
        k_slot = gl.where(wraps, 0, slot + 1)
        k_phase = phase ^ wraps.to(gl.int32)
        mbarrier.wait(k_arrived.index(k_slot), k_phase)
        x = warpgroup_mma(q, ks.index(k_slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_arrived.index(slot), phase)
        factors = gl.convert_layout(weights.to(dtype), gl.DotOperandLayout(0, sums, 2))
        acc = warpgroup_mma(factors, vs.index(slot), acc, is_async=True)
        x = warpgroup_mma_wait(1, deps=(x,))
        # All warps have read the keys. The compiler does not know that products read until they end.
        _barrier()
        k_next = block + STAGES
        v_next = k_next - 1
        mbarrier.expect(k_arrived.index(k_slot), k_bytes, pred=k_next < blocks)
        mbarrier.expect(v_arrived.index(slot), v_bytes, pred=v_next < blocks)
        at = in_memory + k_next * BLOCK_N + gl.where(k_next < of_history, low, later)
        is_there = k_next < blocks
        _copy_block(KDesc, [at, head * K_DIM], k_arrived.index(k_slot), ks.index(k_slot), pred=is_there)
        start_n = block * BLOCK_N + gl.where(block < of_history, low, later)
        weights = _weights(
            x, rows, cols, start_n, length, first_target, contextual, window, whole, cut, alpha,
            HAS_TARGETS, HAS_WINDOW, HAS_CONTEXT, LARGE,
        )  # fmt: skip
        acc = warpgroup_mma_wait(0, deps=(acc,))
        _barrier()
        at = in_memory + v_next * BLOCK_N + gl.where(v_next < of_history, low, later)
        _copy_block(VDesc, [at, head * V_DIM], v_arrived.index(slot), vs.index(slot), pred=v_next < blocks)
        slot = k_slot
        phase = k_phase
    mbarrier.wait(v_arrived.index(slot), phase)
    if start_n + BLOCK_N > length:
        v_rows = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stores))
        v = vs.index(slot).load(stores)
        vs.index(slot).store(gl.where((v_rows < length)[:, None], v, 0.0))
        fence_async_shared()
    factors = gl.convert_layout(weights.to(dtype), gl.DotOperandLayout(0, sums, 2))
    acc = warpgroup_mma(factors, vs.index(slot), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))

    if LARGE:
        alpha *= 2.0**-62
    if HAS_SCALE:
        scale_rows = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, sums))
        own_scale = gl.load(attn_scale + seq_start + scale_rows, mask=scale_rows < length, other=0.0)
        acc = acc * (own_scale.to(gl.float32) * alpha)[:, None]
    else:
        acc = acc * (scale * alpha)
    out_rows = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, stores))
    out_at = Out + seq_start * stride_ol + head.to(gl.int64) * stride_oh
    out_at += out_rows.to(gl.int64)[:, None] * stride_ol
    out_at += gl.arange(0, V_DIM, gl.SliceLayout(0, stores))[None, :]
    is_own = out_rows < length
    if HAS_CONTEXT:
        is_own = is_own & ((out_rows < contextual) == is_context)
    gl.store(out_at, gl.convert_layout(acc.to(dtype), stores), mask=is_own[:, None])
