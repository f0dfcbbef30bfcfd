"""Element-wise operations: casts, unary and binary functions, activations, select."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from tripy_portable.diagnostics import UnsupportedOperation
from tripy_portable.dialect.inference import OpView
from tripy_portable.dtypes import BY_TORCH, ElementType
from tripy_portable.kernels.registry import Lowered, identity, lowers

Tensor = torch.Tensor


def _lies_within(x: Tensor, low: float, high: float) -> bool:
    """Whether all values lie strictly between the limits. Reads data, so only for host tensors."""
    if x.numel() == 0:
        return True
    least, greatest = torch.aminmax(x)
    return bool(least > low) and bool(greatest < high)


def saturating_to_integer(x: Tensor, element: ElementType) -> Tensor:
    """Truncates floats towards zero; values out of range saturate, NaN becomes 0.

    torch's own conversion is undefined out of range, and right within.
    """
    low, high = -(2 ** (element.bits - 1)), 2 ** (element.bits - 1) - 1
    if x.is_cpu and _lies_within(x, low, high):
        return x.to(element.torch)
    # The limits are powers of two, which float32 holds; float16 holds those of 8 bits alone.
    wide = x.to(torch.float32) if x.element_size() < 4 else x
    # The float nearest to 2**63 - 1 is 2**63, which doesn't fit: such values are set apart.
    inside = torch.where((wide >= low) & (wide < high + 1), wide, 0.0).to(element.torch)
    saturated = torch.where(wide >= high + 1, high, inside)
    return torch.where(wide < low, low, saturated).to(element.torch)


def rounded_to_integer(x: Tensor, element: ElementType) -> Tensor:
    """Rounds half to even and saturates; NaN becomes 0. An int8 is a number quantized with a scale of 1."""
    low, high = -(2 ** (element.bits - 1)), 2 ** (element.bits - 1) - 1
    return torch.nan_to_num(torch.round(x), nan=0.0).clamp(low, high).to(element.torch)


HALVES = {torch.bfloat16: np.uint16(0x3F80), torch.float16: np.uint16(0x3C00)}
"""The bits of 1.0 in types of two bytes."""
MANY_ELEMENTS = 2**16
"""Elements from which a product of NumPy's is quicker than PyTorch's cast, which is not vectorized."""


def half_of_bool(x: Tensor, dtype: torch.dtype) -> Tensor:
    """1.0 where true, else 0.0, in a type of `HALVES`."""
    if not x.is_cpu or x.numel() < MANY_ELEMENTS:
        return x.to(dtype)
    # A product of bits: one pass, whose loop NumPy vectorizes, into memory of PyTorch's.
    halves = torch.empty_like(x, dtype=torch.int16)
    np.multiply(x.view(torch.uint8).numpy(), HALVES[dtype], out=halves.numpy().view(np.uint16))
    return halves.view(dtype)


@lowers("cast")
def _cast(view: OpView) -> Lowered:
    source, target = view.type(0).element, view.declared[0].element
    if source is target:
        return Lowered(identity, is_view=True)
    if target.is_bool:
        return Lowered(lambda x: x != 0)
    if source.is_float and target.is_integer:
        return Lowered(lambda x: saturating_to_integer(x, target))
    dtype = target.torch
    if source.is_bool and target.torch in HALVES:
        return Lowered(lambda x: half_of_bool(x, dtype))
    return Lowered(lambda x: x.to(dtype))


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "kEXP": torch.exp,
    "kLOG": torch.log,
    "kSQRT": torch.sqrt,
    "kRECIP": torch.reciprocal,
    "kABS": torch.abs,
    "kNEG": torch.neg,
    "kSIN": torch.sin,
    "kCOS": torch.cos,
    "kTAN": torch.tan,
    "kSINH": torch.sinh,
    "kCOSH": torch.cosh,
    "kASIN": torch.asin,
    "kACOS": torch.acos,
    "kATAN": torch.atan,
    "kASINH": torch.asinh,
    "kACOSH": torch.acosh,
    "kATANH": torch.atanh,
    "kCEIL": torch.ceil,
    "kFLOOR": torch.floor,
    "kERF": torch.erf,
    "kNOT": torch.logical_not,
    "kSIGN": torch.sign,
    "kROUND": torch.round,
}


@lowers("unary")
def _unary(view: OpView) -> Lowered:
    return Lowered(_UNARY[view.attrs["operation"]], takes_out=True)


_ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "kRELU": torch.relu,
    "kSIGMOID": torch.sigmoid,
    "kTANH": torch.tanh,
    "kGELU_ERF": F.gelu,
    "kGELU_TANH": lambda x: F.gelu(x, approximate="tanh"),
    "kSOFTSIGN": F.softsign,
}


@lowers("activation")
def _activation(view: OpView) -> Lowered:
    name, element = view.attrs["activation_type"], view.type(0).element
    if name not in _ACTIVATION:
        raise UnsupportedOperation(f"tensorrt.activation {name} is not supported by the portable runtime")
    if element.is_integer and name != "kRELU":
        function = _ACTIVATION[name]
        return Lowered(lambda x: rounded_to_integer(function(x.to(torch.float32)), element))
    return Lowered(_ACTIVATION[name], takes_out=name in ("kSIGMOID", "kTANH"))


def _integer_divide(view: OpView, rounding: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Integer division that never traps: x / 0 is 0, and the least value divided by -1 wraps."""
    divisor = view.values[1]
    if divisor is not None and not ((divisor == 0) | (divisor == -1)).any():
        return lambda a, b: torch.div(a, b, rounding_mode=rounding)

    def divide(a: Tensor, b: Tensor) -> Tensor:
        quotient = torch.div(a, torch.where((b == 0) | (b == -1), 1, b), rounding_mode=rounding)
        quotient = torch.where(b == -1, -a, quotient)
        return torch.where(b == 0, 0, quotient).to(a.dtype)

    return divide


def _float_floor_divide(a: Tensor, b: Tensor) -> Tensor:
    # Not rounding_mode="floor", which corrects by the remainder: 1.0 // 0.1 would be 9 where floor(1.0 /
    # 0.1) is 10.
    return torch.floor(torch.div(a, b))


def _integer_pow(a: Tensor, b: Tensor) -> Tensor:
    return saturating_to_integer(torch.pow(a.to(torch.float64), b.to(torch.float64)), BY_TORCH[a.dtype])


_ELEMENT_WISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kSUM": torch.add,
    "kSUB": torch.sub,
    "kPROD": torch.mul,
    "kMAX": torch.maximum,
    "kMIN": torch.minimum,
    "kDIV": torch.div,
    "kFLOOR_DIV": _float_floor_divide,
    "kPOW": torch.pow,
    "kAND": torch.logical_and,
    "kOR": torch.logical_or,
    "kXOR": torch.logical_xor,
    "kEQUAL": torch.eq,
    "kGREATER": torch.gt,
    "kLESS": torch.lt,
}


@lowers("element_wise")
def _element_wise(view: OpView) -> Lowered:
    operation = view.attrs["operation"]
    if view.type(0).element.is_integer:
        if operation == "kDIV":
            return Lowered(_integer_divide(view, "trunc"))
        if operation == "kFLOOR_DIV":
            return Lowered(_integer_divide(view, "floor"))
        if operation == "kPOW":
            return Lowered(_integer_pow)
    return Lowered(_ELEMENT_WISE[operation], takes_out=operation != "kFLOOR_DIV")


@lowers("select")
def _select(view: OpView) -> Lowered:
    return Lowered(torch.where)
