"""Operations of PyTorch that Tripy spells differently, rounded where PyTorch rounds.

PyTorch computes an elementwise operation on half tensors in float32 and rounds once. Composed operations
(SiLU) also round once, and a Python number as an operand stays unrounded. Tripy is strongly typed: every step
and every number takes the tensor's dtype. ``tp.silu(x)`` rounds twice, and ``x / 1011`` divides by 1012 in
bfloat16. The functions below widen, compute, and round where PyTorch does. For float32 tensors, tracing
removes the casts and leaves the plain operation.
"""

from __future__ import annotations

import nvtripy as tp


def silu(x: tp.Tensor) -> tp.Tensor:
    """x * sigmoid(x), elementwise, rounded once to x's dtype."""
    return tp.cast(tp.silu(tp.cast(x, tp.float32)), x.dtype)


def both(a: tp.Tensor, b: tp.Tensor) -> tp.Tensor:
    """a and b, elementwise, of booleans: Tripy has ~ and | for them, and no &."""
    return ~(~a | ~b)


def scale(x: tp.Tensor, factor: float) -> tp.Tensor:
    """x * factor, elementwise, with the factor in float32."""
    return tp.cast(tp.cast(x, tp.float32) * float(factor), x.dtype)


def divide(x: tp.Tensor, divisor: float) -> tp.Tensor:
    """x / divisor, elementwise, with the divisor in float32."""
    return tp.cast(tp.cast(x, tp.float32) / float(divisor), x.dtype)


def bfloat16_parts(x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor, tp.Tensor]:
    """Three float32 tensors, the largest first, that add up to the float32 x exactly and fit into bfloat16.

    Three parts of 8 bits hold 24 bits. TF32 rounds a factor to 11 bits, with float32's range, and leaves the
    parts unchanged. A product with 0 or 1 stays exact on every GPU. Numbers from 3.39e38 on round to infinity
    in bfloat16; they have no such parts and become NaN.
    """
    high = tp.cast(tp.cast(x, tp.bfloat16), tp.float32)
    rest = x - high
    middle = tp.cast(tp.cast(rest, tp.bfloat16), tp.float32)
    return high, middle, rest - middle


def vector_norm(x: tp.Tensor) -> tp.Tensor:
    """Euclidean norm over the last axis, which is kept with size 1; accumulated in float32, rounded once."""
    wide = tp.cast(x, tp.float32)
    return tp.cast(tp.sqrt(tp.sum(wide * wide, dim=-1, keepdim=True)), x.dtype)


def layer_norm(x: tp.Tensor, normalized_dim: int, eps: float) -> tp.Tensor:
    """Layer norm over the last axis, of size normalized_dim, without weight and bias.

    One normalization operation, which accumulates in float32 as PyTorch does. TensorRT's operation requires
    the affine part, and gets constants. They are created here: on a module they would become parameters with
    names of their own in the state dict.
    """
    norm = tp.LayerNorm(normalized_dim, dtype=x.dtype, eps=eps)
    norm.weight = tp.cast(tp.Tensor([1.0] * normalized_dim), x.dtype)
    norm.bias = tp.cast(tp.Tensor([0.0] * normalized_dim), x.dtype)
    return norm(x)
