"""Operations of PyTorch as ONNX, where torch.onnx writes a graph that cannot be run or is wrong.

torch.onnx writes some functions of one number by formulas that lose everything for a part of the numbers: a
logarithm of a sigmoid that underflows to 0, 1 + x of a small x, a sum of exponentials that overflow.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20 as op

_END = 2**31 - 1
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple:
    """Sums over bags as a product of memberships (B, L) and rows (L, D); see docs/decisions.md.

    `offsets` holds only the beginnings of bags. The three further results of the operator serve its gradient.
    """
    if mode != 0 or include_last_offset or padding_idx not in (None, -1):
        raise NotImplementedError("only sums over bags, with neither a last offset nor a padding index")
    total = op.Shape(indices)
    starts_B1 = op.Unsqueeze(offsets, [1])
    ends_B1 = op.Unsqueeze(op.Concat(op.Slice(offsets, [1], [_END], [0]), total, axis=0), [1])
    places_L = op.Range(0, op.Squeeze(total), 1)
    is_member_BL = op.And(op.GreaterOrEqual(places_L, starts_B1), op.Less(places_L, ends_B1))
    members_BL = op.CastLike(is_member_BL, weight)
    if per_sample_weights is not None:
        members_BL = op.Mul(members_BL, per_sample_weights)
    pooled_BD = op.MatMul(members_BL, op.Gather(weight, indices, axis=0))
    return pooled_BD, offsets, offsets, offsets


def divide_by_mode(dividend: Any, divisor: Any, rounding_mode: str | None = None) -> Any:
    """Floor division of integers in integers: torch.onnx divides in float32, wrong from 2^24 on."""
    if rounding_mode != "floor" or dividend.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        raise NotImplementedError("only the floor of a division of integers")
    divisor = op.CastLike(divisor, dividend)
    # The remainder has the divisor's sign. The dividend less the remainder is a multiple of the divisor.
    return op.Div(op.Sub(dividend, op.Mod(dividend, divisor)), divisor)


def log_sigmoid(x: Any) -> Any:
    """-log(1 + exp(-x)): torch.onnx takes the logarithm of a sigmoid, which is -inf from -104 on."""
    return op.Neg(op.Softplus(op.Neg(x)))


def log1p(x: Any) -> Any:
    """log(1 + x) with the rounding of 1 + x taken back.

    Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991, theorem 4.
    """
    wide = _wide(x)
    total = op.Add(wide, 1.0)
    rest = op.Sub(total, 1.0)
    # Nothing is left of a small x, and an infinity has no quotient.
    is_kept = op.Or(op.Equal(rest, 0.0), op.IsInf(wide))
    quotient = op.Div(op.Mul(wide, op.Log(total)), op.Where(is_kept, total, rest))
    return op.CastLike(op.Where(is_kept, wide, quotient), x)


def expm1(x: Any) -> Any:
    """exp(x) - 1."""
    return op.CastLike(exp_less_one(op, _wide(x)), x)


def exp_less_one(op: Any, x: Any) -> Any:
    """exp(x) - 1 with the rounding of exp(x) taken back, as in `log1p`.

    Args:
        op: Appends an operator of its attribute's name.
        x: Numbers, float32 or float64.
    """
    power = op.Exp(x)
    rest = op.Sub(power, 1.0)
    is_small = op.Equal(rest, 0.0)
    # The power of a large x is infinite or 0, and its rounding small.
    is_large = op.GreaterOrEqual(op.Abs(rest), 1.0)
    logarithm = op.Log(op.Where(op.Or(is_small, is_large), op.CastLike(2.0, x), power))
    return op.Where(is_small, x, op.Where(is_large, rest, op.Div(op.Mul(rest, x), logarithm)))


def logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)), the larger one and a softplus: torch.onnx's exponentials overflow from 89 on."""
    # The distance of two equal infinities is no number.
    distance = op.Where(op.Equal(x, y), op.CastLike(0.0, x), op.Sub(x, y))
    return op.Add(op.Max(x, y), op.Softplus(op.Neg(op.Abs(distance))))


def _wide(x: Any) -> Any:
    """Halves in float32, where PyTorch computes these functions and rounds once."""
    return op.Cast(x, to=ir.DataType.FLOAT) if x.dtype in _HALVES else x


TRANSLATIONS = {
    torch.ops.aten.embedding_bag.padding_idx: embedding_bag,
    torch.ops.aten.div.Scalar_mode: divide_by_mode,
    torch.ops.aten.div.Tensor_mode: divide_by_mode,
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.log1p.default: log1p,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.logaddexp.default: logaddexp,
}
