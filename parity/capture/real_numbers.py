"""Tensors and values as dense tensors of real numbers, which verdicts compare.

A complex tensor (...) is its real and imaginary parts (..., 2), as `torch.view_as_real` has them; a sparse
tensor is the dense one. A number that an entry returns is a tensor of one element. A text is the tensor of
its length and the code points of its characters; so is a number that is infinite, NaN or above 64 bits.
"""

from __future__ import annotations

import cmath
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.trees import dotted, leaves


class NotComparable(UserError):
    """An output of a model that nothing can be compared with."""


def is_tensor(value: Any) -> bool:
    """Whether a value of PyTorch has elements at indices; a nested tensor has rows of several lengths."""
    return isinstance(value, torch.Tensor) and not value.is_nested


def in_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a dense one of real numbers; a view of the tensor itself if it has them."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj().resolve_neg()) if tensor.is_complex() else tensor


_NUMBER = "PyTorch returns a Python"


def has_no_type(form: str) -> bool:
    """Whether a result of a form of `form_of` is a number, which has no type that a port may differ from."""
    return form.startswith(_NUMBER)


def form_of(value: Any) -> str:
    """The form in which a value is compared, in words; empty for a dense tensor of real numbers."""
    if not isinstance(value, torch.Tensor):
        return f"{_NUMBER} {type(value).__name__}, compared as a tensor"
    if value.is_complex():
        return "PyTorch returns complex numbers, compared as (..., 2), the real and imaginary parts"
    return "" if value.layout is torch.strided else "PyTorch returns a sparse tensor, compared as a dense one"


def complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """The complex type of models whose real numbers have a type. 16-bit types have no full counterpart."""
    return torch.complex128 if dtype is torch.float64 else torch.complex64


def with_numbers_in(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The model with its real numbers in a type and its complex ones in the type that belongs to it.

    `model.to` would drop imaginary parts.
    """

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(complex_dtype(dtype))
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return model._apply(converted)


def flat_outputs(named: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of an entry without `None`s, those in containers by their dotted paths."""
    return {
        ".".join([name, *([dotted(path)] if path else [])]): leaf
        for name, value in named.items()
        for path, leaf in leaves(value)
        if leaf is not None
    }


def output_of(name: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """An output of PyTorch's side, or a value that is no tensor of either side, as a tensor of real numbers.

    Args:
        name: Name of the output.
        value: The value.
        dtype: The model's type, for numbers with a fraction.

    Raises:
        NotComparable: The value is none of these.
    """
    if is_tensor(value):
        return in_real(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return in_real(torch.tensor(value))
    if isinstance(value, enum.Enum):
        value = value.name
    if isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return torch.tensor(value, dtype=torch.int64)
    if isinstance(value, (float, complex)) and cmath.isfinite(value):
        parts = [value.real, value.imag] if isinstance(value, complex) else value
        return torch.tensor(parts, dtype=dtype)
    if isinstance(value, (str, int, float, complex)):
        text = str(value)
        return torch.tensor([len(text), *map(ord, text)], dtype=torch.int32)
    kind, fix = type(value).__name__, "return a tensor, a number or a text in its place"
    if isinstance(value, torch.Tensor):
        kind, fix = "nested tensor", "return a padded tensor and the lengths of its rows"
    raise NotComparable("outputs", name, f"is a {kind}, which cannot be compared", fix)
