"""What the forward's kernels share: products of float32, SiLU, layer norm, a block's projection.

A float32 x is two float16 numbers, x = h + l / 2048 but for 2^-23 of it, and a product of two three products
on tensor cores, which multiply float16 exactly and twice as fast as tf32, whose numbers they would cut off
instead of rounding (PARTS = 2). The scale keeps l as large as h; a factor beyond 65,504 has no h, and gives
infinity or NaN. PARTS = 1 is one product, of factors in the type of the weights, or, in an attention, of v
and k.

Sums are float32. Where PyTorch stores a result in the tensors' type before a product, so do the kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split(x, dtype: tl.constexpr, PARTS: tl.constexpr):
    """Float32 -> what `product` takes: a tuple of h and l, or of x in `dtype`."""
    if PARTS == 1:
        parts = (x.to(dtype),)
    else:
        # To float16's eleven bits in integers: a GPU converts single numbers slowly, pairs fast.
        high = ((x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
        parts = (high.to(tl.float16), ((x - high) * 2048.0).to(tl.float16))
    return parts


@triton.jit
def load_parts(at, mask, stride, PARTS: tl.constexpr, MASKED: tl.constexpr):
    """PARTS tensors that lie `stride` apart, zero where the mask says so."""
    loaded = ()
    for part in tl.static_range(PARTS):
        if MASKED:
            loaded = loaded + (tl.load(at + part * stride, mask=mask, other=0.0),)
        else:
            loaded = loaded + (tl.load(at + part * stride),)
    return loaded


@triton.jit
def product(a, b, acc, PARTS: tl.constexpr):
    """acc + a b. Of two parts the product of the small ones is left out, 2^-24 of the product."""
    if PARTS == 1:
        acc = tl.dot(a[0], b[0], acc, input_precision="ieee")
    else:
        small = tl.dot(a[1], b[0])
        small = tl.dot(a[0], b[1], small)
        acc = tl.dot(a[0], b[0], acc) + small * (1.0 / 2048.0)
    return acc


@triton.jit
def product_transposed(a, b, acc, PARTS: tl.constexpr):
    """acc + a b^T."""
    turned = ()
    for part in tl.static_range(PARTS):
        turned = turned + (tl.trans(b[part]),)
    return product(a, turned, acc, PARTS)


@triton.jit
def silu(x, GPU: tl.constexpr):
    """x / (1 + e^-x). On a GPU in two operations of the special-function unit, whose errors (2 and 1 ulp) are
    those that Triton's own exponential and division have. e^-x may overflow; the reciprocal of that is 0, as
    it should be."""
    if GPU:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;",
            "=f,f",
            [x * -1.4426950408889634],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        return x * tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + e], dtype=tl.float32, is_pure=True, pack=1
        )
    return x / (1.0 + tl.exp(-x))


@triton.jit
def normalized(x, cols, eps, D: tl.constexpr):
    """Layer norm of (BLOCK_M, DP) rows whose first D elements count; the rest becomes zero."""
    mean = tl.sum(x, axis=1) / D
    centred = tl.where((cols < D)[None, :], x - mean[:, None], 0.0)
    return centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps))[:, None]


@triton.jit
def store_uq(uq, UQ, rows, inside, cols, HALF: tl.constexpr):
    """Columns of u and q."""
    to = UQ + rows.to(tl.int64)[:, None] * HALF + cols[None, :]
    tl.store(to, uq.to(UQ.dtype.element_ty), mask=inside[:, None])


@triton.jit
def store_vk(vk, VK, rows, inside, cols, HALF: tl.constexpr, PARTS: tl.constexpr):
    """Columns of v and k, as `split`, since every program that reads them would split them anew."""
    to = VK + rows.to(tl.int64)[:, None] * (PARTS * HALF) + cols[None, :]
    parts = split(vk, VK.dtype.element_ty, PARTS)
    for part in tl.static_range(PARTS):
        tl.store(to + part * HALF, parts[part], mask=inside[:, None])


@triton.jit
def project_rows(
    x, W, UQ, VK, rows, inside, DP: tl.constexpr, HALF: tl.constexpr, BLOCK_C: tl.constexpr,
    PARTS: tl.constexpr, VK_PARTS: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """SiLU(x W^T) in UQ and VK: (BLOCK_M, DP), (PARTS, 2 HALF, DP) -> (BLOCK_M, HALF), (BLOCK_M, VK_PARTS,
    HALF), BLOCK_C columns at a time."""
    inner = tl.arange(0, DP)
    xs = split(x, W.dtype.element_ty, PARTS)
    for start in tl.range(0, 2 * HALF, BLOCK_C):
        cols = start + tl.arange(0, BLOCK_C)
        w = load_parts(W + cols[:, None] * DP + inner[None, :], None, 2 * HALF * DP, PARTS, False)
        acc = tl.zeros([x.shape[0], BLOCK_C], dtype=tl.float32)
        acc = silu(product_transposed(xs, w, acc, PARTS), GPU)
        if start < HALF:
            store_uq(acc, UQ, rows, inside, cols, HALF)
        else:
            store_vk(acc, VK, rows, inside, cols - HALF, HALF, VK_PARTS)
