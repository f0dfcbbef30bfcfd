"""Tensors as dense tensors of real numbers, and tensors in the type of a precision.

A complex tensor (...) is its real and imaginary parts (..., 2), as `torch.view_as_real` has them; a sparse
tensor is the dense one. A port has neither, and verdicts compare neither.
"""

from __future__ import annotations

from typing import Any

import torch


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
        if tensor.is_floating_point():
            return tensor.to(dtype)
        return tensor

    return model._apply(converted)


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor with floating-point numbers in `dtype`; integers and booleans do not change.

    Complex numbers have parts of this precision, in the complex type that PyTorch computes with.
    """
    if tensor.is_complex():
        parts = torch.view_as_real(tensor).to(dtype)
        return torch.view_as_complex(parts.to(complex_dtype(dtype).to_real()))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
