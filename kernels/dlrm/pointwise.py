"""Pointwise operations after a matrix product, in one pass: bias and ReLU, and LoRA's x + scale * y + bias.

They are the lecture's `pointwise_add_relu_fusion` and `fused_add_mul_activation`, for any shape and dtype.
The kernels compute in float32 and round once, where eager PyTorch rounds after every operation.

Departures from the lecture: the result is a new tensor by default, rows have any width, no call synchronises,
and a ReLU keeps NaN. `out=x` overwrites the input, as in the lecture.

Legend: M rows, N columns.
"""

from __future__ import annotations

import torch

from kernels.dlrm.checks import (
    KernelError,
    output_for,
    require,
    require_alike,
    require_backend,
    require_shape,
)

BACKENDS = ("torch", "triton", "cuda")
POINTWISE_ACTIVATIONS = ("relu", "sigmoid")


def add_bias_relu(
    x: torch.Tensor, bias_N: torch.Tensor, *, backend: str = "triton", out: torch.Tensor | None = None
) -> torch.Tensor:
    """relu(x + bias), where x is (..., N), contiguous, and bias (N,) of its dtype.

    Args:
        x: the summand, such as the result of a matrix product.
        bias_N: one number for each column.
        backend: see `kernels.dlrm`.
        out: destination, contiguous, of x's shape and dtype; ``x`` itself is allowed.

    Raises:
        KernelError: the arguments do not fit each other, or the backend cannot run.
    """
    return _dispatch(x, None, bias_N, 1.0, "relu", backend, out)


def lora_activation(
    x: torch.Tensor,
    y: torch.Tensor,
    bias_N: torch.Tensor,
    scale: float,
    activation: str = "relu",
    *,
    backend: str = "triton",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(x + scale * y + bias): a layer's result, low-rank update (arXiv:2106.09685), bias.

    Args:
        x: (..., N), contiguous.
        y: of x's shape and dtype, contiguous.
        bias_N: one number for each column.
        scale: LoRA's alpha / rank.
        activation: "relu" or "sigmoid".
        backend: see `kernels.dlrm`.
        out: see `add_bias_relu`.

    Raises:
        KernelError: the arguments do not fit each other, or the backend cannot run.
    """
    require(activation in POINTWISE_ACTIVATIONS, "activation", activation, "choose one of relu, sigmoid")
    return _dispatch(x, y, bias_N, float(scale), activation, backend, out)


def _dispatch(
    x: torch.Tensor,
    y: torch.Tensor | None,
    bias_N: torch.Tensor,
    scale: float,
    activation: str,
    backend: str,
    out: torch.Tensor | None,
) -> torch.Tensor:
    if x.dim() == 0:
        raise KernelError("x is a scalar: give (..., N)")
    tensors = {"x": x, "bias_N": bias_N} | ({} if y is None else {"y": y})
    require_alike(tensors)
    require_shape("bias_N", bias_N, x.shape[-1:])
    if y is not None:
        require_shape("y", y, x.shape)
    for name, tensor in tensors.items():
        require(tensor.is_contiguous(), f"{name}.stride()", tensor.stride(), f"give {name}.contiguous()")
    require_backend(backend, BACKENDS, tensors)
    if backend == "torch":
        summed = x + bias_N if y is None else x + scale * y + bias_N
        result = torch.relu(summed) if activation == "relu" else torch.sigmoid(summed)
        return result if out is None else output_for(out, x.shape, x).copy_(result)
    result = output_for(out, x.shape, x)
    require(result.is_contiguous(), "out.stride()", result.stride(), "give a contiguous tensor")
    if result.numel() == 0:
        return result
    if backend == "triton":
        from kernels.dlrm.pointwise_triton import launch_pointwise
    else:
        from kernels.dlrm.cuda_extension import launch_pointwise
    launch_pointwise(x, y, bias_N, scale, activation, result)
    return result
