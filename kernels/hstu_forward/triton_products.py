"""What the forward's kernels share: products of float32, SiLU, layer norm, a block's projection.

A float32 is the sum of PARTS bfloat16 numbers: two hold 16 of its 24 bits, three all. Tensor cores multiply these
exactly and twice as fast as tf32, whose numbers they would cut off instead of rounding; their layouts of results
and factors are the same, those of tf32 are not. PARTS = 1 is a product in the factors' own type.

Sums are float32. Where PyTorch stores a result in the tensors' type before a product, so do the kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split(x, dtype: tl.constexpr, PARTS: tl.constexpr):
    """Float32 -> what `product` takes: a tuple of PARTS bfloat16 tensors whose sum it is, or it in `dtype`."""
    if PARTS == 1:
        parts = (x.to(dtype),)
    else:
        # To nearest in integers: a GPU converts single numbers slowly, and pairs that are bfloat16 already fast.
        high = ((x.to(tl.int32, bitcast=True) + 0x8000) & ~0xFFFF).to(tl.float32, bitcast=True)
        rest = x - high
        if PARTS == 2:
            parts = (high.to(tl.bfloat16), rest.to(tl.bfloat16))
        else:
            # Cut off: eight of the sixteen bits that are left, so that the last part is the others, exactly.
            middle = (rest.to(tl.int32, bitcast=True) & ~0xFFFF).to(tl.float32, bitcast=True)
            parts = (high.to(tl.bfloat16), middle.to(tl.bfloat16), (rest - middle).to(tl.bfloat16))
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
def _dot(a, b, acc, GPU: tl.constexpr):
    if GPU:
        return tl.dot(a, b, acc, input_precision="ieee")
    # The interpreter would multiply bfloat16 as integers.
    return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")


@triton.jit
def product(a, b, acc, PARTS: tl.constexpr, GPU: tl.constexpr):
    """acc + a b, small products first. Left out: of two parts each 2^-16 of the product, of three 2^-24."""
    if PARTS == 3:
        acc = _dot(a[2], b[0], acc, GPU)
        acc = _dot(a[0], b[2], acc, GPU)
        acc = _dot(a[1], b[1], acc, GPU)
    if PARTS > 1:
        acc = _dot(a[1], b[0], acc, GPU)
        acc = _dot(a[0], b[1], acc, GPU)
    return _dot(a[0], b[0], acc, GPU)


@triton.jit
def product_transposed(a, b, acc, PARTS: tl.constexpr, GPU: tl.constexpr):
    """acc + a b^T."""
    turned = ()
    for part in tl.static_range(PARTS):
        turned = turned + (tl.trans(b[part]),)
    return product(a, turned, acc, PARTS, GPU)


@triton.jit
def silu(x, GPU: tl.constexpr):
    """x / (1 + e^-x). On a GPU in two operations of the special-function unit, whose errors (2 and 1 ulp) are
    those that Triton's own exponential and division have. e^-x may overflow; the reciprocal of that is 0, as it
    should be."""
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
    x, W, UQ, VK, rows, inside, dtype: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr,
    BLOCK_C: tl.constexpr, PARTS: tl.constexpr, GPU: tl.constexpr,
):  # fmt: skip
    """SiLU(x W^T) in UQ and VK: (BLOCK_M, DP), (PARTS, 2 HALF, DP) -> (BLOCK_M, HALF), (BLOCK_M, PARTS, HALF),
    BLOCK_C columns at a time."""
    inner = tl.arange(0, DP)
    xs = split(x, dtype, PARTS)
    for start in tl.range(0, 2 * HALF, BLOCK_C):
        cols = start + tl.arange(0, BLOCK_C)
        w = load_parts(W + cols[:, None] * DP + inner[None, :], None, 2 * HALF * DP, PARTS, False)
        acc = tl.zeros([x.shape[0], BLOCK_C], dtype=tl.float32)
        acc = silu(product_transposed(xs, w, acc, PARTS, GPU), GPU)
        if start < HALF:
            store_uq(acc, UQ, rows, inside, cols, HALF)
        else:
            store_vk(acc, VK, rows, inside, cols - HALF, HALF, PARTS)
