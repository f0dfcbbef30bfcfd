"""Checks of the kernels' arguments, and the error that they raise."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence

import torch

FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ACTIVATIONS = ("none", "relu", "sigmoid")


class KernelError(ValueError):
    """An argument that a kernel refuses, or a backend that cannot run here; the message has the fix."""


def require(condition: bool, name: str, value: object, fix: str) -> None:
    """Raise `KernelError` naming the argument, its value and the fix, unless ``condition`` holds."""
    if not condition:
        raise KernelError(f"{name}={value!r}: {fix}")


def require_shape(name: str, tensor: torch.Tensor, wanted: Sequence[int]) -> None:
    """Raise `KernelError` unless ``tensor`` has exactly the shape ``wanted``."""
    if tuple(tensor.shape) != tuple(wanted):
        raise KernelError(f"{name} has shape {tuple(tensor.shape)}: give {tuple(wanted)}")


def require_rank(name: str, tensor: torch.Tensor, rank: int, axes: str) -> None:
    """Raise `KernelError` unless ``tensor`` has ``rank`` axes; ``axes`` names them in the message."""
    if tensor.dim() != rank:
        raise KernelError(f"{name} has shape {tuple(tensor.shape)}: give {axes}")


def require_alike(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `KernelError` unless all tensors have the dtype and the device of the first one."""
    (first, model), *rest = tensors.items()
    for name, tensor in rest:
        for property_ in ("dtype", "device"):
            require_equal(name, property_, getattr(tensor, property_), first, getattr(model, property_))


def require_equal(name: str, property_: str, actual: object, first: str, wanted: object) -> None:
    """Raise `KernelError` unless ``name`` has the dtype or device ``wanted``, which ``first`` has."""
    if actual != wanted:
        raise KernelError(f"{name} has {property_} {actual} and {first} has {wanted}: give one {property_}")


def require_packed_rows(name: str, tensor: torch.Tensor) -> None:
    """Raise `KernelError` unless the elements of a row of a matrix are neighbours in memory."""
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelError(
            f"{name} has strides {tensor.stride()}: the last must be 1, give {name}.contiguous()"
        )


def require_backend(
    backend: str,
    available: Sequence[str],
    tensors: Mapping[str, torch.Tensor],
    multiplied: Sequence[str] = (),
) -> None:
    """Raise `KernelError` unless ``backend`` exists for this operation and can run on these tensors.

    ``multiplied`` names the tensors that enter a matrix product.
    """
    require(backend in available, "backend", backend, f"choose one of {', '.join(available)}")
    if backend == "torch":
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad and torch.is_grad_enabled():
            raise KernelError(
                f"{name} requires a gradient: backend={backend!r} has no backward; use torch.no_grad(), or "
                "backend='torch'"
            )
        is_number = tensor.is_floating_point() or name in multiplied
        if is_number and tensor.dtype not in FUSED_DTYPES:
            wanted = ", ".join(str(dtype) for dtype in FUSED_DTYPES)
            raise KernelError(
                f"{name} has dtype {tensor.dtype}: backend={backend!r} takes {wanted}; use backend='torch'"
            )
    if backend == "triton" and importlib.util.find_spec("triton") is None:
        raise KernelError("backend='triton' needs the package triton: pip install triton")
    if backend == "triton" and interpreting():
        for name in multiplied:
            if tensors[name].dtype == torch.bfloat16:
                raise KernelError(
                    f"{name} has dtype torch.bfloat16: Triton's interpreter multiplies its bit patterns as "
                    "integers; use float16 or float32 there"
                )
        return
    for name, tensor in tensors.items():
        if not tensor.is_cuda:
            hint = ", or set TRITON_INTERPRET=1 before the first call" if backend == "triton" else ""
            raise KernelError(
                f"{name} is on {tensor.device}: backend={backend!r} runs on CUDA tensors; "
                f"move it there, use backend='torch'{hint}"
            )


def interpreting() -> bool:
    """Whether `TRITON_INTERPRET` makes Triton interpret its kernels."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def output_for(
    out: torch.Tensor | None, shape: Sequence[int], like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``out`` after checks, or a new tensor for None.

    Rows of ``out`` may have gaps between them.
    """
    dtype = dtype or like.dtype
    if out is None:
        return torch.empty(tuple(shape), dtype=dtype, device=like.device)
    require_shape("out", out, shape)
    require(out.dtype == dtype, "out.dtype", out.dtype, f"must be {dtype}")
    require(out.device == like.device, "out.device", out.device, f"must be {like.device}")
    require_packed_rows("out", out)
    return out
