"""What an entry returns as dense tensors of real numbers, which verdicts compare.

`parity.base.real_numbers` says what a complex or sparse tensor is. A number is a tensor of one element. A
text is the tensor of its length and the code points of its characters; so is a number that is infinite, NaN
or above 64 bits.
"""

from __future__ import annotations

import cmath
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.real_numbers import in_real, is_tensor
from parity.base.trees import dotted, leaves


class NotComparable(UserError):
    """An output of a model that nothing can be compared with."""


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
