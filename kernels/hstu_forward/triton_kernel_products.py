"""Shared functions of the forward's kernels: products of float32, SiLU, layer norm, a block's projection.

With PARTS = 2, a float32 is the sum of two float16 numbers, 32 x = h + l, and a product of two floats is
three products on tensor cores. Tensor cores multiply float16 exactly and twice as fast as tf32, which they
would truncate. The split loses 2^-23 of x, or 2^-30 for x below 2^-7. Beyond 2,047, h overflows, and the
result is infinity or NaN. One scale for both parts lets the three products share a sum.

With PARTS = 1, a product is a single one, of factors in the type of the weights, or of q, v and k in an
attention.

Sums are float32. The kernels round to the tensors' type at the places where PyTorch does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_forward.weights import FACTOR_SCALE


@triton.constexpr_function
def scale_of(parts: int) -> float:
    """Scale of a factor of so many parts before its split."""
    return FACTOR_SCALE if parts == 2 else 1.0


@triton.constexpr_function
def unit_of(parts: int) -> float:
    """Factor that undoes the scales of a `product` of such factors."""
    return 1.0 / FACTOR_SCALE**2 if parts == 2 else 1.0


@triton.constexpr_function
def divides(divisor: int, number: int) -> bool:
    """Whether a number is a multiple of `divisor`."""
    return number % divisor == 0


@triton.jit
def span_of(offsets, firsts, sequence, capacity, CACHED: tl.constexpr):
    """A sequence's first position of the jagged tensors, the row of position 0 there and in QVK, its length.

    CACHED: the jagged tensors hold the positions from the sequence's entry of `firsts` on, and QVK all of
    them, `capacity` rows a sequence."""
    start = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - start).to(tl.int32)
    first = 0
    qvk_start = start
    if CACHED:
        first = tl.load(firsts + sequence).to(tl.int32)
        qvk_start = sequence.to(tl.int64) * capacity
    return first, start - first, qvk_start, first + length


@triton.jit
def split(x, dtype: tl.constexpr, PARTS: tl.constexpr):
    """The factor of a `product`, from float32 times `scale_of`: a tuple (h, l), or (x in `dtype`,)."""
    high = x.to(dtype)
    if PARTS == 1:
        parts = (high,)
    else:
        parts = (high, (x - high.to(tl.float32)).to(dtype))
    return parts


@triton.jit
def load_parts(at, mask, stride, PARTS: tl.constexpr):
    """PARTS tensors at distances of `stride`, zero outside of the mask, if there is one."""
    loaded = ()
    for part in tl.static_range(PARTS):
        if mask is None:
            loaded = loaded + (tl.load(at + part * stride),)
        else:
            loaded = loaded + (tl.load(at + part * stride, mask=mask, other=0.0),)
    return loaded


@triton.jit
def product(a, b, acc, PARTS: tl.constexpr, CHAINED: tl.constexpr):
    """acc + a b, times both scales. With two parts, the product of the small ones is left out: 2^-24 of a b.

    CHAINED: all three products in one sum, with fewer registers; separate sums round long sums less."""
    if PARTS == 1:
        acc = tl.dot(a[0], b[0], acc, input_precision="ieee")
    elif CHAINED:
        acc = tl.dot(a[1], b[0], acc)
        acc = tl.dot(a[0], b[1], acc)
        acc = tl.dot(a[0], b[0], acc)
    else:
        small = tl.dot(a[1], b[0])
        small = tl.dot(a[0], b[1], small)
        acc = tl.dot(a[0], b[0], acc) + small
    return acc


@triton.jit
def product_transposed(a, b, acc, PARTS: tl.constexpr, CHAINED: tl.constexpr):
    """acc + a b^T."""
    turned = ()
    for part in tl.static_range(PARTS):
        turned = turned + (tl.trans(b[part]),)
    return product(a, turned, acc, PARTS, CHAINED)


@triton.jit
def silu(x, UNIT: tl.constexpr, divisor, GPU: tl.constexpr):
    """x / (divisor (1 + e^(-UNIT x))): SiLU for divisor and UNIT of 1, else with the scales of two products.

    On a GPU it takes two operations of the special-function unit, with the errors (2 and 1 ulp) of Triton's
    own exponential and division. A power that overflows has the reciprocal 0, which is the right result."""
    if GPU:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;",
            "=f,f",
            [x * (-1.4426950408889634 * UNIT)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        over = e * divisor + divisor
        return x * tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [over], dtype=tl.float32, is_pure=True, pack=1
        )
    return x / (divisor * (1.0 + tl.exp(-x * UNIT)))


@triton.jit
def normalized(x, cols, eps, D: tl.constexpr):
    """Layer norm of the first D elements of (BLOCK_M, DP) rows; the rest becomes zero."""
    mean = tl.sum(x, axis=1) / D
    centred = tl.where((cols < D)[None, :], x - mean[:, None], 0.0)
    return centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps))[:, None]


@triton.jit
def store_activated(
    acc, U, QVK, rows, qvk_rows, inside, start, cols,
    GATES: tl.constexpr, FACTORS: tl.constexpr, PARTS: tl.constexpr, QVK_PARTS: tl.constexpr,
    GPU: tl.constexpr,
):  # fmt: skip
    """Store SiLU of a `product` in its columns of U, (L, GATES), and from GATES on of QVK, (L, QVK_PARTS,
    FACTORS), whose rows may be those of a cache.

    QVK is stored `split`, which saves a split in every program that reads it."""
    UNIT: tl.constexpr = unit_of(PARTS)
    FACTOR: tl.constexpr = UNIT * scale_of(QVK_PARTS)
    # One activation before the branches: ptxas cannot wait for products in flight in each branch.
    if divides(cols.shape[0], GATES):
        activated = silu(acc, UNIT, tl.where(start < GATES, 1.0 / UNIT, 1.0 / FACTOR), GPU)
    else:
        activated = silu(acc, UNIT, tl.where(cols < GATES, 1.0 / UNIT, 1.0 / FACTOR)[None, :], GPU)
    if start < GATES:
        mask = inside[:, None] & (cols < GATES)[None, :]
        tl.store(
            U + rows.to(tl.int64)[:, None] * GATES + cols[None, :],
            activated.to(U.dtype.element_ty),
            mask=mask,
        )
    if start + cols.shape[0] > GATES:
        mask = inside[:, None] & (cols >= GATES)[None, :]
        at = QVK + qvk_rows.to(tl.int64)[:, None] * (QVK_PARTS * FACTORS) + (cols - GATES)[None, :]
        parts = split(activated, QVK.dtype.element_ty, QVK_PARTS)
        for part in tl.static_range(QVK_PARTS):
            tl.store(at + part * FACTORS, parts[part], mask=mask)


@triton.jit
def project_rows(
    x, W, U, QVK, rows, qvk_rows, inside, group, groups,
    DP: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr, BLOCK_C: tl.constexpr, PARTS: tl.constexpr,
    QVK_PARTS: tl.constexpr, CHAINED: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """Store SiLU(x W^T) in U and QVK, BLOCK_C columns at a time: one of `groups` shares of all columns.

    (BLOCK_M, DP), (PARTS, GATES + FACTORS, DP) -> (BLOCK_M, GATES), (BLOCK_M, QVK_PARTS, FACTORS)."""
    inner = tl.arange(0, DP)
    xs = split(x * scale_of(PARTS), W.dtype.element_ty, PARTS)
    for start in tl.range(group * BLOCK_C, GATES + FACTORS, groups * BLOCK_C):
        cols = start + tl.arange(0, BLOCK_C)
        w = load_parts(W + cols[:, None] * DP + inner[None, :], None, (GATES + FACTORS) * DP, PARTS)
        acc = tl.zeros([x.shape[0], BLOCK_C], dtype=tl.float32)
        acc = product_transposed(xs, w, acc, PARTS, CHAINED)
        store_activated(
            acc, U, QVK, rows, qvk_rows, inside, start, cols, GATES, FACTORS, PARTS, QVK_PARTS, GPU
        )  # fmt: skip
