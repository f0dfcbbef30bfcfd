"""Parts of the attention kernel: loads, rounding to tf32, and sigmoids, partly in assembly."""

from __future__ import annotations

import triton
import triton.language as tl

# The interpreter has no assembly.
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def load_rows(pointer, index, stride, inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """(rows, BLOCK_D) of a jagged tensor; zero outside of the mask and behind a head's last element."""
    column = tl.arange(0, BLOCK_D)
    at = pointer + index.to(tl.int64)[:, None] * stride + column[None, :]
    if MASKED:
        if DIM != BLOCK_D:
            return tl.load(at, mask=inside[:, None] & (column < DIM)[None, :], other=0.0)
        return tl.load(at, mask=inside[:, None], other=0.0)
    if DIM != BLOCK_D:
        return tl.load(at, mask=(column < DIM)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def as_tf32(x):
    """float32 rounded to the nearest tf32 (11 significant bits), ties away from zero; NaN and infinity stay.

    Tensor cores would truncate the lower bits, and Triton lets them: every product would be up to 2^-10 too
    small, a one-sided error.
    """
    if _INTERPRETED:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def sigmoid_exact(x):
    """1 / (1 + e^-x), in float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid_half(exponent):
    """1 / (1 + 2^exponent) within 2^-20; a half type rounds at 2^-11.

    Two elements share a reciprocal, 1/a = b/(a b) and 1/b = a/(a b). An element then costs 1.5 in place of 2
    operations of the special-function unit. Exponents are clamped to 63: the product does not overflow, and
    its reciprocal is not flushed to zero. For x below -43, the sigmoid is 2^-63.
    """
    return tl.inline_asm_elementwise(
        """{
            .reg .f32 a, b, r;
            min.f32 a, $2, 0f427C0000;
            min.f32 b, $3, 0f427C0000;
            ex2.approx.ftz.f32 a, a;
            ex2.approx.ftz.f32 b, b;
            add.f32 a, a, 0f3F800000;
            add.f32 b, b, 0f3F800000;
            mul.f32 r, a, b;
            rcp.approx.ftz.f32 r, r;
            mul.f32 $0, r, b;
            mul.f32 $1, r, a;
        }""",
        "=f,=f,f,f",
        [exponent],
        dtype=tl.float32,
        is_pure=True,
        pack=2,
    )
