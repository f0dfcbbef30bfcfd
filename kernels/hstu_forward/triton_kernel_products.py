"""What the forward's kernels share: products of float32, SiLU, layer norm, a block's projection.

A float32 is two float16 numbers, 32 x = h + l, and a product of two three products on tensor cores, which
multiply float16 exactly and twice as fast as tf32, whose numbers they would cut off instead of rounding
(PARTS = 2). What is lost of x is 2^-23 of it, or 2^-30 where it is below 2^-7; beyond 2,047 it has no h, and
gives infinity or NaN. One scale for both parts lets the three products share a sum. PARTS = 1 is one product,
of factors in the type of the weights, or, in an attention, of q, v and k, as they are.

Sums are float32. Where PyTorch stores a result in the tensors' type before a product, so do the kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hstu_forward.weights import FACTOR_SCALE


@triton.constexpr_function
def scale_of(parts: int) -> float:
    """What a factor of so many parts is multiplied by before it is split."""
    return FACTOR_SCALE if parts == 2 else 1.0


@triton.constexpr_function
def unit_of(parts: int) -> float:
    """What a `product` of such factors is multiplied by to undo their scales."""
    return 1.0 / FACTOR_SCALE**2 if parts == 2 else 1.0


@triton.constexpr_function
def divides(divisor: int, number: int) -> bool:
    return number % divisor == 0


@triton.jit
def split(x, dtype: tl.constexpr, PARTS: tl.constexpr):
    """Float32, `scale_of` times a factor -> what `product` takes: a tuple of h and l, or of x in `dtype`."""
    high = x.to(dtype)
    if PARTS == 1:
        parts = (high,)
    else:
        parts = (high, (x - high.to(tl.float32)).to(dtype))
    return parts


@triton.jit
def load_parts(at, mask, stride, PARTS: tl.constexpr):
    """PARTS tensors that lie `stride` apart, zero where a mask, if there is one, says so."""
    loaded = ()
    for part in tl.static_range(PARTS):
        if mask is None:
            loaded = loaded + (tl.load(at + part * stride),)
        else:
            loaded = loaded + (tl.load(at + part * stride, mask=mask, other=0.0),)
    return loaded


@triton.jit
def product(a, b, acc, PARTS: tl.constexpr, CHAINED: tl.constexpr):
    """acc + a b, times both their scales. Of two parts the product of the small ones is left out, 2^-24 of
    the product. CHAINED: all three in one sum, which takes fewer registers; apart, long sums round less."""
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
    """x / (divisor (1 + e^(-UNIT x))): SiLU where both are 1, else between the scales of two products, at no
    cost. On a GPU in two operations of the special-function unit, whose errors (2 and 1 ulp) are those that
    Triton's own exponential and division have. The power may overflow; the reciprocal of that is 0, as it
    should be."""
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
    """Layer norm of (BLOCK_M, DP) rows whose first D elements count; the rest becomes zero."""
    mean = tl.sum(x, axis=1) / D
    centred = tl.where((cols < D)[None, :], x - mean[:, None], 0.0)
    return centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps))[:, None]


@triton.jit
def store_activated(
    acc, U, QVK, rows, inside, start, cols, GATES: tl.constexpr, FACTORS: tl.constexpr, PARTS: tl.constexpr,
    QVK_PARTS: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """SiLU of a `product` in its columns of U, (L, GATES), and, from GATES on, of QVK, (L, QVK_PARTS,
    FACTORS), as `split`, since every program that reads them would split them anew."""
    UNIT: tl.constexpr = unit_of(PARTS)
    FACTOR: tl.constexpr = UNIT * scale_of(QVK_PARTS)
    # One activation before the branches: products in flight cannot be waited for in each of them.
    if divides(cols.shape[0], GATES):
        activated = silu(acc, UNIT, tl.where(start < GATES, 1.0 / UNIT, 1.0 / FACTOR), GPU)
    else:
        activated = silu(acc, UNIT, tl.where(cols < GATES, 1.0 / UNIT, 1.0 / FACTOR)[None, :], GPU)
    row = rows.to(tl.int64)[:, None]
    if start < GATES:
        mask = inside[:, None] & (cols < GATES)[None, :]
        tl.store(U + row * GATES + cols[None, :], activated.to(U.dtype.element_ty), mask=mask)
    if start + cols.shape[0] > GATES:
        mask = inside[:, None] & (cols >= GATES)[None, :]
        at = QVK + row * (QVK_PARTS * FACTORS) + (cols - GATES)[None, :]
        parts = split(activated, QVK.dtype.element_ty, QVK_PARTS)
        for part in tl.static_range(QVK_PARTS):
            tl.store(at + part * FACTORS, parts[part], mask=mask)


@triton.jit
def project_rows(
    x, W, U, QVK, rows, inside, DP: tl.constexpr, GATES: tl.constexpr, FACTORS: tl.constexpr,
    BLOCK_C: tl.constexpr, PARTS: tl.constexpr, QVK_PARTS: tl.constexpr, CHAINED: tl.constexpr,
    GPU: tl.constexpr,
):  # fmt: skip
    """SiLU(x W^T) in U and QVK: (BLOCK_M, DP), (PARTS, GATES + FACTORS, DP) -> (BLOCK_M, GATES), (BLOCK_M,
    QVK_PARTS, FACTORS), BLOCK_C columns at a time."""
    inner = tl.arange(0, DP)
    xs = split(x * scale_of(PARTS), W.dtype.element_ty, PARTS)
    for start in tl.range(0, GATES + FACTORS, BLOCK_C):
        cols = start + tl.arange(0, BLOCK_C)
        w = load_parts(W + cols[:, None] * DP + inner[None, :], None, (GATES + FACTORS) * DP, PARTS)
        acc = tl.zeros([x.shape[0], BLOCK_C], dtype=tl.float32)
        acc = product_transposed(xs, w, acc, PARTS, CHAINED)
        store_activated(acc, U, QVK, rows, inside, start, cols, GATES, FACTORS, PARTS, QVK_PARTS, GPU)
