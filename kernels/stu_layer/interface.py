"""`stu_layers`, and its norm and gate alone: production STU layers on jagged rows, by kernels or PyTorch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType

import torch

from kernels.hstu_attention.argument_checks import bad, check_mask
from kernels.hstu_attention.interface import (
    BACKENDS,
    TRITON_DTYPES,
    require_no_gradients,
    require_triton,
)
from kernels.hstu_attention.masks import ProductionMask
from kernels.stu_layer.eager import stu_gate_eager, stu_layer_eager, stu_norm_eager
from kernels.stu_layer.parameters import NORM_EPS, Parameters, Sizes, shapes_of

# The backends of norm and gate, and of layers behind a cache.
ROW_BACKENDS = ("triton", "eager")


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
        backend: "triton" (a CUDA GPU, or TRITON_INTERPRET=1), "hopper" or "auto" (the same with that backend
            of `hstu_attention`) or "eager" (plain PyTorch, anywhere).

    Returns:
        (L, D) in x's type. Norms and activations are float32, products as PyTorch's settings say.

    Raises:
        ValueError: an argument does not fit; the message has its value and the fix.
        RuntimeError: the backend cannot run here, or a gradient is wanted.
    """
    check(x, mask, layers, sizes, backend, BACKENDS)
    if backend == "eager":
        for parameters in layers:
            x = stu_layer_eager(x, offsets, mask, parameters, sizes)
        return x
    require_inference(x, layers)
    return launcher().launch(x, offsets, max_seq_len, mask, layers, sizes, backend)


def stu_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float = NORM_EPS,
    *,
    backend: str = "triton",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The layer norm in front of a layer's projection, in float32, for inference alone.

    Args:
        x: (L, D), the last axis contiguous. weight, bias: (D,) in x's type.
        eps: added to the variance.
        backend: one of `ROW_BACKENDS`, see `stu_layers`.
        out: where to write the result, contiguous; or None.

    Returns:
        (L, D) in x's type, or `out`.

    Raises:
        ValueError, RuntimeError: see `stu_layers`.
    """
    _check_rows(x, backend, ROW_BACKENDS)
    _check_vectors(x, x.size(1), weight=weight, bias=bias)
    _check_eps(eps)
    out = _result(x, x.size(1), out)
    if backend == "eager":
        return out.copy_(stu_norm_eager(x, weight, bias, eps))
    require_triton(x)
    require_no_gradients(backend, (x, weight, bias))
    if out.numel():
        launcher().norm(x, weight, bias, out, eps)
    return out


def stu_gate(
    u: torch.Tensor,
    a: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    norm_groups: int = 0,
    eps: float = NORM_EPS,
    *,
    backend: str = "triton",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The factor of a layer's output product, [SiLU(u), a, SiLU(u) * norm(a)], for inference alone.

    Args:
        u, a: (L, H V) in one type, the last axis contiguous.
        weight, bias: (H V,), or (H,) with norm_groups, in u's type.
        norm_groups: H for a norm of each head; 0 for one norm of all heads.
        eps: added to the variance.
        backend: one of `ROW_BACKENDS`, see `stu_layers`.
        out: where to write the result, contiguous; or None. It may not overlap u and a.

    Returns:
        (L, 3 H V) in u's type, or `out`; norm and gate are float32.

    Raises:
        ValueError, RuntimeError: see `stu_layers`.
    """
    _check_rows(u, backend, ROW_BACKENDS, "u")
    _check_rows(a, backend, ROW_BACKENDS, "a")
    width = u.size(1)
    if a.shape != u.shape or a.dtype != u.dtype or a.device != u.device:
        raise bad("a", (tuple(a.shape), str(a.dtype), str(a.device)), f"must be like u, {tuple(u.shape)}")
    if norm_groups < 0 or (norm_groups and width % norm_groups):
        raise bad("norm_groups", norm_groups, f"must divide the {width} columns of u, or be 0")
    _check_vectors(u, norm_groups or width, weight=weight, bias=bias)
    _check_eps(eps)
    out = _result(u, 3 * width, out)
    if backend == "eager":
        return out.copy_(stu_gate_eager(u, a, weight, bias, norm_groups, eps))
    require_triton(u)
    require_no_gradients(backend, (u, a, weight, bias))
    if out.numel():
        launcher().gate(u, a, weight, bias, norm_groups, out, eps)
    return out


def require_inference(x: torch.Tensor, layers: Sequence[Parameters]) -> None:
    """The kernels can run on x, and nobody asks for gradients.

    Raises:
        RuntimeError: otherwise.
    """
    require_triton(x)
    require_no_gradients("triton", (x, *(tensor for layer in layers for tensor in layer)))


def _result(x: torch.Tensor, width: int, out: torch.Tensor | None) -> torch.Tensor:
    """`out`, or a new tensor of the rows of x, `width` wide."""
    shape = (x.size(0), width)
    if out is None:
        return x.new_empty(shape)
    if out.shape != shape or out.dtype != x.dtype or out.device != x.device or not out.is_contiguous():
        value = (tuple(out.shape), str(out.dtype), str(out.device), out.stride())
        raise bad("out", value, f"must be {shape} in {x.dtype} on {x.device}, contiguous")
    return out


@functools.cache
def launcher() -> ModuleType:
    """Imports triton."""
    return importlib.import_module("kernels.stu_layer.triton_launch")


def _check_rows(x: torch.Tensor, backend: str, available: tuple[str, ...], name: str = "x") -> None:
    if backend not in available:
        raise bad("backend", backend, f"choose one of {available}")
    if backend != "eager" and x.dtype not in TRITON_DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in TRITON_DTYPES)
        raise bad(f"{name}.dtype", x.dtype, f"backend={backend!r} takes {names}")
    if x.dim() != 2 or x.size(1) < 1:
        raise bad(f"{name}.shape", tuple(x.shape), "must be (L, D)")
    if x.stride(1) != 1 and x.size(1) > 1:
        raise bad(f"{name}.stride()", x.stride(), "make the last axis contiguous")


def _check_eps(eps: float) -> None:
    if not eps >= 0:
        raise bad("eps", eps, "must be at least 0")


def _check_vectors(x: torch.Tensor, size: int, **vectors: torch.Tensor) -> None:
    for name, vector in vectors.items():
        if vector.shape != (size,) or vector.dtype != x.dtype or vector.device != x.device:
            value = (tuple(vector.shape), str(vector.dtype), str(vector.device))
            raise bad(name, value, f"must be ({size},) in {x.dtype} on {x.device}")
        if not vector.is_contiguous():
            raise bad(f"{name}.stride()", vector.stride(), "make it contiguous")


def check(
    x: torch.Tensor,
    mask: ProductionMask,
    layers: Sequence[Parameters],
    sizes: Sizes,
    backend: str,
    available: tuple[str, ...] = ROW_BACKENDS,
) -> None:
    """Raise ValueError unless mask, layers and sizes fit x, and `backend` is one of `available`."""
    _check_rows(x, backend, available)
    check_mask(mask, (ProductionMask,))
    if isinstance(layers, Parameters) or not layers:
        raise bad("layers", type(layers).__name__, "give a sequence of at least one layer's Parameters")
    for name in ("num_heads", "attention_dim", "hidden_dim"):
        if getattr(sizes, name) < 1:
            raise bad(f"sizes.{name}", getattr(sizes, name), "must be at least 1")
    shapes = shapes_of(sizes, x.size(1))
    for number, parameters in enumerate(layers):
        for name, tensor in zip(parameters._fields, parameters, strict=True):
            field = f"layers[{number}].{name}"
            if tensor.shape != shapes[name]:
                raise bad(f"{field}.shape", tuple(tensor.shape), f"must be {shapes[name]}")
            if tensor.dtype != x.dtype or tensor.device != x.device:
                value = (str(tensor.dtype), str(tensor.device))
                raise bad(f"{field}.dtype and device", value, f"must be x's, {x.dtype} and {x.device}")
            if not tensor.is_contiguous():
                raise bad(f"{field}.stride()", tensor.stride(), "make it contiguous")
