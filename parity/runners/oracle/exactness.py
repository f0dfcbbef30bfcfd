"""Results that are exact: no rounding error belongs to them.

Exact in any type are moved data, a zero, a result that equals an operand (x + 0, x * 1, a maximum), a whole
number of an operation that rounds to integers, and a whole bound of a clamp. A power of two as a factor or a
divisor changes no digit of a normal number. A product or a quotient of numbers of the type is exact if it is
one, such as 15 / 10, which a rounding to integers may take up or down. So is a sum with a constant.

Sums, differences and products of whole numbers are exact up to 1 / u: an index that a model computes in
floating point, such as `floor(x).clamp(-8, 7) + 8`, is the same number in each program. With an error it
would jump when it becomes an integer. Sums of more terms are exact too, where the partial sums stay whole in
the accumulator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from parity.base.precision import Precision

_ROUNDS_TO_INTEGERS = frozenset("floor ceil round trunc sign floor_divide".split())
_CLAMPS = frozenset("clamp clamp_min clamp_max hardtanh relu".split())
_EXACT_OF_WHOLE = frozenset(
    "add sub rsub mul neg abs remainder fmod sum cumsum mm bmm mv dot addmm baddbmm addmv".split()
)
"""Operations whose result has no rounding where operands and result are whole and small."""
_CORNER = 4
"""Elements along each axis that tell most tensors apart from whole numbers."""
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
    is_elementwise = count == 1
    if is_elementwise and (name.rstrip("_") in _ROUNDS_TO_INTEGERS or kwargs.get("rounding_mode")):
        return result == result.trunc()
    masks = [is_operand(result, operands) if is_elementwise else None]
    if is_elementwise and all(map(_is_whole, operands)):
        masks.append((result == result.trunc()) & (result.abs() <= 1.0 / precision.unit_roundoff))
    is_scaling = name.rstrip("_") in ("mul", "div") or _is_offset(name, args)
    if is_scaling and _are_of(precision.dtype, (*args, *kwargs.values()), operands):
        masks.append(_in_type(result, precision.dtype))
    if name.rstrip("_") in _CLAMPS:
        masks.append(result == result.trunc())
    elif name.rstrip("_") in ("mul", "div") and _is_power_of_two(args, kwargs):
        masks.append(result.abs() >= torch.finfo(precision.dtype).smallest_normal)
    elif name.rstrip("_") in _EXACT_OF_WHOLE and _are_whole((*args, *kwargs.values()), operands):
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


def _is_offset(name: str, args: tuple) -> bool:
    """Whether an operation adds a number to a tensor, or subtracts one."""
    return name.rstrip("_") in ("add", "sub", "rsub") and isinstance(args[1], (int, float))


def _are_of(dtype: torch.dtype, arguments: tuple, operands: list[torch.Tensor]) -> bool:
    """Whether all numbers of an operation are of a type: those in its arguments, and its `operands`."""
    numbers = [value for value in arguments if isinstance(value, (int, float))]
    tensors = [*operands, torch.tensor(numbers, dtype=torch.float64)]
    return all(_is_everywhere(tensor, lambda part: _in_type(part, dtype)) for tensor in tensors)


def _in_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The elements that are numbers of a type."""
    return tensor.to(dtype).to(tensor.dtype) == tensor


def _are_whole(arguments: tuple, operands: list[torch.Tensor]) -> bool:
    """Whether no number of an operation has a fraction: those in its arguments, and in its `operands`."""
    floating = [value for value in arguments if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return (
        len(floating) == len(operands)
        and all(value.is_integer() for value in arguments if isinstance(value, float))
        and all(map(_is_whole, operands))
    )


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether no number of a tensor has a fraction."""
    return _is_everywhere(tensor, lambda part: part == part.trunc())


def _is_everywhere(tensor: torch.Tensor, holds: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a condition holds for all elements. The corner tells most tensors apart at once."""
    corner = tensor[tuple(slice(0, _CORNER) for _ in tensor.shape)]
    return bool(holds(corner).all()) and bool(holds(tensor).all())


def is_operand(result: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor | None:
    """Elements of an elementwise result that equal an operand (x + 0, x * 1, a maximum), which are exact.

    The result is a mask that broadcasts with `result`, or None without operands of a fitting shape.
    """
    exact = None
    for operand in operands:
        pairs = zip(reversed(operand.shape), reversed(result.shape), strict=False)
        if operand.ndim <= result.ndim and all(size in (1, whole) for size, whole in pairs):
            same = result == operand
            exact = same if exact is None else exact | same
    return exact
