"""`stu_layers`: production STU layers on jagged rows, by fused kernels or in plain PyTorch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType

import torch

from kernels.hstu_attention.interface import BACKENDS, TRITON_DTYPES, require_triton
from kernels.hstu_attention.masks import ProductionMask
from kernels.stu_layer.eager import stu_layer_eager
from kernels.stu_layer.parameters import Parameters, Sizes, shapes_of


def stu_layers(
    x: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ProductionMask,
    layers: Sequence[Parameters],
    sizes: Sizes,
    *,
    backend: str = "triton",
) -> torch.Tensor:
    """Production STU layers, one after the other.

    A layer computes [u, v, q, k] = layer_norm(x) W + beta, u = SiLU(u), a = attention(q, k, v) and
    x + [u, a, u * norm(a)] W_o.

    Args:
        x: (L, D), the L rows of all sequences in order; the last axis is contiguous.
        offsets, max_seq_len, mask: see `kernels.hstu_attention.hstu_attention`.
        layers: parameters of each layer, in x's type and on its device.
        sizes: heads, the same in all layers.
        backend: "triton" (a CUDA GPU, or TRITON_INTERPRET=1) or "eager" (plain PyTorch, anywhere).

    Returns:
        (L, D) in x's type. Norms and activations are float32, products as PyTorch's settings say.

    Raises:
        ValueError: an argument does not fit; the message has its value and the fix.
        RuntimeError: the backend cannot run here.
    """
    _check(x, layers, sizes, backend)
    if backend == "eager":
        for parameters in layers:
            x = stu_layer_eager(x, offsets, mask, parameters, sizes)
        return x
    require_triton(x)
    if torch.is_grad_enabled() and any(tensor.requires_grad for layer in layers for tensor in (x, *layer)):
        raise RuntimeError("backend='triton' has no backward; use torch.no_grad(), or backend='eager'")
    return _launcher().launch(x, offsets, max_seq_len, mask, layers, sizes)


@functools.cache
def _launcher() -> ModuleType:
    """Imports triton."""
    return importlib.import_module("kernels.stu_layer.triton_launch")


def _bad(field: str, value: object, fix: str) -> ValueError:
    return ValueError(f"{field}={value!r}: {fix}")


def _check(x: torch.Tensor, layers: Sequence[Parameters], sizes: Sizes, backend: str) -> None:
    if backend not in BACKENDS:
        raise _bad("backend", backend, f"choose one of {BACKENDS}")
    if backend == "triton" and x.dtype not in TRITON_DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in TRITON_DTYPES)
        raise _bad("x.dtype", x.dtype, f"backend='triton' takes {names}")
    if x.dim() != 2 or x.size(1) < 1:
        raise _bad("x.shape", tuple(x.shape), "must be (L, D)")
    if x.stride(1) != 1 and x.size(1) > 1:
        raise _bad("x.stride()", x.stride(), "make the last axis contiguous")
    if not layers:
        raise _bad("layers", layers, "needs at least one layer")
    shapes = shapes_of(sizes, x.size(1))
    for number, parameters in enumerate(layers):
        for name, tensor in zip(parameters._fields, parameters, strict=True):
            field = f"layers[{number}].{name}"
            if tensor.shape != shapes[name]:
                raise _bad(f"{field}.shape", tuple(tensor.shape), f"must be {shapes[name]}")
            if tensor.dtype != x.dtype or tensor.device != x.device:
                value = (str(tensor.dtype), str(tensor.device))
                raise _bad(f"{field}.dtype and device", value, f"must be x's, {x.dtype} and {x.device}")
            if not tensor.is_contiguous():
                raise _bad(f"{field}.stride()", tensor.stride(), "make it contiguous")
