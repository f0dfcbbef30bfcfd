"""What the forward's kernels share: products in three precisions, SiLU, layer norm, the next projection.

Sums are float32. Where PyTorch stores a result in the tensors' type before a product, so do the kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def parts(x, DOT: tl.constexpr):
    """What `product` takes for x, a pair. Tensor cores cut a float32 off behind tf32's mantissa, which makes
    every product too small: so it is rounded before, to nearest, ties away. For "tf32x3" the second part is
    what rounding has taken, 2^-12 of x, of which the tensor core cuts off 2^-10."""
    if DOT == "tf32" or DOT == "tf32x3":
        high = ((x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
        return high, x - high
    return x, x


@triton.jit
def product(a, a_low, b, b_low, acc, DOT: tl.constexpr):
    """acc + a b. With "tf32x3" the product of the two small parts is left out: 2^-24 of the product."""
    if DOT == "tf32x3":
        acc = tl.dot(a_low, b, acc, input_precision="tf32")
        acc = tl.dot(a, b_low, acc, input_precision="tf32")
        return tl.dot(a, b, acc, input_precision="tf32")
    return tl.dot(a, b, acc, input_precision=DOT)


@triton.jit
def silu(x, FAST: tl.constexpr):
    """x / (1 + e^-x). FAST is the same in two operations of the special-function unit, whose errors (2 and 1
    ulp) are those that Triton's own exponential and division have; the interpreter has no assembly. e^-x may
    overflow; the reciprocal of that is 0, as it should be."""
    if FAST:
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
def project_rows(
    x, W, WLow, Y, rows, inside, DP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr,
    DOT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Y[rows] = SiLU(x W^T): (BLOCK_M, DP), (WIDTH, DP) -> (BLOCK_M, WIDTH), BLOCK_C columns at a time."""
    inner = tl.arange(0, DP)
    high, low = parts(x.to(Y.dtype.element_ty), DOT)
    for start in tl.range(0, WIDTH, BLOCK_C):
        cols = start + tl.arange(0, BLOCK_C)
        at = cols[:, None] * DP + inner[None, :]
        w = tl.load(W + at)
        w_low = tl.load(WLow + at) if DOT == "tf32x3" else w
        acc = tl.zeros([x.shape[0], BLOCK_C], dtype=tl.float32)
        acc = silu(product(high, low, tl.trans(w), tl.trans(w_low), acc, DOT), FAST)
        to = Y + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
        tl.store(to, acc.to(Y.dtype.element_ty), mask=inside[:, None])
