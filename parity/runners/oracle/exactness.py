"""Results that are exact: no rounding error belongs to them.

Exact in any type are moved data, a zero, a result that equals an operand (x + 0, x * 1, a maximum), a whole
number of an operation that rounds to integers, and a whole bound of a clamp. A power of two as a factor or a
divisor changes no digit of a normal number. A product or a quotient of numbers of the type is exact if it is
one, such as 15 / 10, which a rounding to integers may take up or down. So is a sum with a constant, and a sum
of two such numbers that has few digits, such as 0.5 + 0.25.

Sums, differences and products of whole numbers are exact up to 1 / u: an index that a model computes in
floating point, such as `floor(x).clamp(-8, 7) + 8`, is the same number in each program. With an error it
would jump when it becomes an integer. Sums of more terms are exact too, where the partial sums stay whole in
the accumulator.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from parity.base.precision import Precision

_ROUNDS_TO_INTEGERS = frozenset("floor ceil round trunc sign floor_divide".split())
_CLAMPS = frozenset("clamp clamp_min clamp_max hardtanh relu".split())
_EXACT_OF_WHOLE = frozenset(
    "add sub rsub mul neg abs remainder fmod sum cumsum mm bmm mv dot addmm baddbmm addmv".split()
)
"""Operations whose result has no rounding where operands and result are whole and small."""
_OF_THE_TYPE = frozenset("add sub rsub mul div".split())
"""Operations of numbers of the type whose result has no rounding where it is a number of the type."""
_CORNER = 4
"""Elements along each axis that tell most tensors apart from whole numbers."""
_ROWS = 64
"""Rows of a tensor that tell whether it has numbers of a type."""
_WHOLE = 2.0**24
"""Sums and products of whole numbers are exact in float32 below it."""


def is_wide(value: Any) -> bool:
    """Whether a value is a dense float64 tensor."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64 and value.layout is torch.strided


def exact_elements(
    name: str,
    args: tuple,
    kwargs: dict,
    result: torch.Tensor,
    operands: list[torch.Tensor],
    terms_norm: torch.Tensor | None,
    count: int,
    precision: Precision,
) -> torch.Tensor | None:
    """Elements of a result that are exact: a mask that broadcasts with it, or None for none.

    Args:
        name: The operation's name.
        args, kwargs: Its arguments, of which the numbers are read.
        result: Its result.
        operands: Its tensors; those of an elementwise result broadcast with it.
        terms_norm: Norm of the terms of each sum; None for other operations.
        count: Terms of a sum; 1 for an elementwise operation.
        precision: The precision that the result is rounded to.
    """
    is_elementwise, name = count == 1, name.rstrip("_")
    if is_elementwise and (name in _ROUNDS_TO_INTEGERS or kwargs.get("rounding_mode")):
        return result == result.trunc()
    masks = [is_operand(result, operands) if is_elementwise else None]
    if is_elementwise and all(map(_is_whole, operands)):
        masks.append((result == result.trunc()) & (result.abs() <= 1.0 / precision.unit_roundoff))
    if name in _OF_THE_TYPE:
        masks.append(_of_the_type(name, (*args, *kwargs.values()), result, operands, precision))
    if name in _CLAMPS:
        masks.append(result == result.trunc())
    elif name in ("mul", "div") and _is_power_of_two(args, kwargs):
        masks.append(result.abs() >= torch.finfo(precision.dtype).smallest_normal)
    elif name in _EXACT_OF_WHOLE and _are_whole((*args, *kwargs.values()), operands):
        whole = result.abs() <= 1.0 / precision.unit_roundoff
        if is_elementwise:
            masks.append(whole)
        elif terms_norm is not None:
            # No partial sum is larger than the sum of the absolute terms.
            masks.append(whole & (math.sqrt(count) * terms_norm <= _WHOLE))
    present = [mask for mask in masks if mask is not None]
    return functools.reduce(torch.logical_or, present) if present else None


def _is_power_of_two(args: tuple, kwargs: dict) -> bool:
    """Whether the number of a product or a quotient (x, number) is a power of two."""
    number = args[1] if len(args) == 2 and not kwargs else None
    return isinstance(number, (int, float)) and abs(math.frexp(number)[0]) == 0.5


def _of_the_type(
    name: str, arguments: tuple, result: torch.Tensor, operands: list[torch.Tensor], precision: Precision
) -> torch.Tensor | None:
    """Elements of a product, quotient or sum that are numbers of the type, as their operands are."""
    numbers = [value for value in arguments if isinstance(value, (int, float))]
    if not all(_in_type(torch.tensor(number, dtype=torch.float64), precision.dtype) for number in numbers):
        return None
    if not all(_broadcasts(operand, result) and _has_some(operand, precision.dtype) for operand in operands):
        return None
    is_sum_of_two = name not in ("mul", "div") and len(operands) > 1
    # Half of all sums lose no digit by chance, which says nothing of a port that adds in another order.
    exact = _is_short(result, precision) if is_sum_of_two else _in_type(result, precision.dtype)
    for operand in operands:
        exact &= _in_type(operand, precision.dtype)
    return exact


def _has_some(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether rows of a tensor have a number of a type, other than zero. Numbers with an error are none.

    Rows over the whole tensor are read, since the first ones may be zero, and the begin of each row.
    """
    if not tensor.ndim:
        return bool(_in_type(tensor, dtype) & (tensor != 0.0))
    step = max(1, tensor.shape[0] // _ROWS)
    part = tensor[(slice(None, None, step), *(slice(0, _CORNER) for _ in tensor.shape[1:]))]
    return bool((_in_type(part, dtype) & (part != 0.0)).any())


def _in_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The elements that are numbers of a type."""
    return tensor.to(dtype).to(tensor.dtype) == tensor


def _is_short(tensor: torch.Tensor, precision: Precision) -> torch.Tensor:
    """The elements that have at most half of a precision's digits, such as 0.75."""
    mantissa, _ = torch.frexp(tensor)
    scaled = mantissa * 2.0 ** (round(-math.log2(precision.unit_roundoff)) // 2)
    return scaled == scaled.trunc()


def _are_whole(arguments: tuple, operands: list[torch.Tensor]) -> bool:
    """Whether no number of an operation has a fraction: those in its arguments, and in its `operands`."""
    floating = [value for value in arguments if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return (
        len(floating) == len(operands)
        and all(value.is_integer() for value in arguments if isinstance(value, float))
        and all(map(_is_whole, operands))
    )


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether no number of a tensor has a fraction. The corner tells most tensors apart at once."""
    corner = tensor[tuple(slice(0, _CORNER) for _ in tensor.shape)]
    return torch.equal(corner, corner.trunc()) and torch.equal(tensor, tensor.trunc())


def is_operand(result: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor | None:
    """Elements of an elementwise result that equal an operand (x + 0, x * 1, a maximum), which are exact.

    The result is a mask that broadcasts with `result`, or None without operands of a fitting shape.
    """
    exact = None
    for operand in operands:
        if _broadcasts(operand, result):
            same = result == operand
            exact = same if exact is None else exact | same
    return exact


def _broadcasts(operand: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether an operand has the shape of a result, but for axes of 1 and missing ones."""
    pairs = zip(reversed(operand.shape), reversed(result.shape), strict=False)
    return operand.ndim <= result.ndim and all(size in (1, whole) for size, whole in pairs)
