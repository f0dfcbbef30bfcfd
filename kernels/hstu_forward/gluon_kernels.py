"""Projection and output of a wide block with the weights in shared memory, for compute capability 9.0.

`triton_kernel_wide` has the same functions in Triton, whose programs read their weights anew for every block
of rows. Here a program stays: it keeps its share of the weights and takes one block of rows after another.
Gluon, Triton's lower level, names the memory of a tensor, which Triton does not.

Factors have one part and the type of all tensors, float16 or bfloat16. Tensors, padding and roundings are
those of `triton_kernel_wide`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton renamed it.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.constexpr_function
def rows_of_warps(rows: int, columns: int, warps: int) -> object:
    """The layout of stores in which every warp keeps the rows and columns of its products.

    Each thread has 8 columns side by side. A warpgroup has 64 rows, and the warpgroups share the columns."""
    own = columns * 4 // warps
    registers = [[0, 1], [0, 2], [0, 4]]
    registers += [[0, 1 << bit] for bit in range(5, own.bit_length() - 1)]
    registers += [[8, 0]]
    shared = [[0, 1 << bit] for bit in range(own.bit_length() - 1, columns.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=registers,
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0], *shared],
        block_bases=[],
        shape=[rows, columns],
    )


@gluon.jit
def _wait():
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _silu(x):
    """As `triton_kernel_products.silu`."""
    e = gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;",
        "=f,f",
        [x * -1.4426950408889634],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
    return x * gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [e + 1.0], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _copy_rows(to, X, start, total, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):
    """Start a copy of rows of X, (total, WIDTH), into shared memory; rows behind the last one stay."""
    rows = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    cols = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    at = X + rows.to(gl.int64)[:, None] * WIDTH + cols[None, :]
    _copy(to, at, mask=(rows < total)[:, None])
    async_copy.commit_group()


@gluon.jit
def _load_rows(X, start, total, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):
    """Rows of X, (total, WIDTH), as float32, zero behind the last one."""
    rows = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    cols = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    at = X + rows.to(gl.int64)[:, None] * WIDTH + cols[None, :]
    return gl.load(at, mask=(rows < total)[:, None], other=0.0).to(gl.float32)


@gluon.jit
def _normalized(x, cols, eps, COUNT: gl.constexpr, DIM: gl.constexpr, PAD: gl.constexpr):
    """Layer norm over COUNT elements of each row: DIM in each PAD, whose other ones become zero."""
    centred = x - (gl.sum(x, axis=1) / COUNT)[:, None]
    if DIM < PAD:
        centred = gl.where((cols % PAD < DIM)[None, :], centred, 0.0)
    return centred * (1.0 / gl.sqrt(gl.sum(centred * centred, axis=1) / COUNT + eps))[:, None]


@gluon.jit(do_not_specialize=["num_sequences"])
def project_kernel(
    X, W, U, QVK, offsets, num_sequences,
    DP: gl.constexpr, GATES: gl.constexpr, FACTORS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Store SiLU(X W^T) in U and QVK: (L, DP), (GATES + FACTORS, DP) -> (L, GATES), (L, FACTORS).

    BLOCK_N divides GATES and FACTORS. Grid: a multiple of the blocks of columns; each program has one, and
    the programs of a block of columns take the blocks of rows in turn."""
    warps: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = X.dtype.element_ty
    blocks: gl.constexpr = (GATES + FACTORS) // BLOCK_N
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    copies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    products: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, warps // 4], instr_shape=[16, BLOCK_N * 4 // warps, 16]
    )
    stores: gl.constexpr = rows_of_warps(BLOCK_M, BLOCK_N, warps)
    start_n = gl.program_id(0) % blocks * BLOCK_N
    first = gl.program_id(0) // blocks
    step = gl.num_programs(0) // blocks
    w = gl.allocate_shared_memory(dtype, [BLOCK_N, DP], shared)
    x = gl.allocate_shared_memory(dtype, [BLOCK_M, DP], shared)
    _copy_rows(w, W, start_n, GATES + FACTORS, BLOCK_N, DP, copies)
    if DEPENDENT:
        _wait()
    total = gl.load(offsets + num_sequences)
    _copy_rows(x, X, first * BLOCK_M, total, BLOCK_M, DP, copies)
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, products)
    cols = start_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, stores))
    for block in range(first, gl.cdiv(total.to(gl.int32), BLOCK_M), step):
        async_copy.wait_group(0)
        fence_async_shared()
        acc = warpgroup_mma(x, w.permute((1, 0)), zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        # The next rows arrive under the work on these.
        _copy_rows(x, X, (block + step) * BLOCK_M, total, BLOCK_M, DP, copies)
        activated = gl.convert_layout(_silu(acc).to(dtype), stores)
        rows = block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, stores))
        inside = (rows < total)[:, None]
        at = rows.to(gl.int64)[:, None]
        if start_n < GATES:
            gl.store(U + at * GATES + cols[None, :], activated, mask=inside)
        else:
            gl.store(QVK + at * FACTORS + (cols - GATES)[None, :], activated, mask=inside)
    async_copy.wait_group(0)


@gluon.jit(do_not_specialize=["num_sequences"])
def output_kernel(
    A, U, W, bias, X, Out, XN, offsets, num_sequences, eps, l2_eps,
    HEADS: gl.constexpr, V: gl.constexpr, VP: gl.constexpr, D: gl.constexpr, DP: gl.constexpr,
    BLOCK_M: gl.constexpr, LAST: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Out = (layer_norm(A) * u) W^T + bias + X, and XN = layer_norm(Out); Out may be X. With LAST, Out is
    (L, D), over its own norm, and there is no XN.

    A, U: (L, HEADS * VP). W: (DP, HEADS * VP). X, XN, Out: (L, DP). Grid: any; the programs take the blocks
    of rows in turn."""
    warps: gl.constexpr = gl.num_warps()
    width: gl.constexpr = HEADS * VP
    dtype: gl.constexpr = X.dtype.element_ty
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    copies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    products: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, warps // 4], instr_shape=[16, DP * 4 // warps, 16]
    )
    w = gl.allocate_shared_memory(dtype, [DP, width], shared)
    gated = gl.allocate_shared_memory(dtype, [BLOCK_M, width], shared)
    x = gl.allocate_shared_memory(dtype, [BLOCK_M, DP], shared)
    _copy_rows(w, W, 0, DP, DP, width, copies)
    added = gl.load(bias + gl.arange(0, DP, gl.SliceLayout(0, products))).to(gl.float32)
    inner = gl.arange(0, width, gl.SliceLayout(0, copies))
    cols = gl.arange(0, DP, gl.SliceLayout(0, copies))
    zeros = gl.zeros([BLOCK_M, DP], gl.float32, products)
    if DEPENDENT:
        _wait()
    total = gl.load(offsets + num_sequences)
    for block in range(gl.program_id(0), gl.cdiv(total.to(gl.int32), BLOCK_M), gl.num_programs(0)):
        start_m = block * BLOCK_M
        _copy_rows(x, X, start_m, total, BLOCK_M, DP, copies)
        a = _load_rows(A, start_m, total, BLOCK_M, width, copies)
        u = _load_rows(U, start_m, total, BLOCK_M, width, copies)
        # The norm is rounded where PyTorch rounds it; u is zero in the padding.
        normal = _normalized(a, inner, eps, HEADS * V, V, VP).to(dtype).to(gl.float32)
        gated.store((normal * u).to(dtype))
        async_copy.wait_group(0)
        fence_async_shared()
        acc = warpgroup_mma(gated, w.permute((1, 0)), zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        acc = acc + added[None, :] + x.load(products).to(gl.float32)
        rows = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, copies))
        inside = (rows < total)[:, None]
        at = rows.to(gl.int64)[:, None]
        if LAST:
            norm = gl.maximum(gl.sqrt(gl.sum(acc * acc, axis=1)), l2_eps)
            x.store((acc / norm[:, None]).to(dtype))
            gl.store(Out + at * D + cols[None, :], x.load(copies), mask=inside & (cols < D)[None, :])
        else:
            x.store(acc.to(dtype))
            stored = x.load(copies)
            gl.store(Out + at * DP + cols[None, :], stored, mask=inside)
            normal = _normalized(stored.to(gl.float32), cols, eps, D, D, DP)
            gl.store(XN + at * DP + cols[None, :], normal.to(dtype), mask=inside)
