"""Linear layers with their bias and activation, one or two in a kernel.

`two_layer_mlp` is the lecture's last exercise (steps 1 to 9): the hidden layer stays on the chip. Weights
have the layout of `torch.nn.Linear`, (out, in).

Legend: B batch, C columns of the input, H hidden, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from kernels.dlrm.checks import (
    ACTIVATIONS,
    output_for,
    require,
    require_alike,
    require_backend,
    require_packed_rows,
    require_rank,
    require_shape,
)

BACKENDS = ("torch", "triton")
# A program of `two_layer_mlp` holds its rows of the result in registers.
MAX_OUTPUTS = 256


def linear_activation(
    x_BC: torch.Tensor,
    weight_OC: torch.Tensor,
    bias_O: torch.Tensor,
    activation: str = "relu",
    *,
    backend: str = "triton",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(x W^T + b) in one kernel, (B, O); summed in float32 and rounded once.

    Args:
        x_BC: rows may have gaps between them.
        weight_OC: of x's dtype.
        bias_O: of x's dtype.
        activation: "none", "relu" or "sigmoid".
        backend: "torch" or "triton".
        out: (B, O) of x's dtype; rows may have gaps between them.

    Raises:
        KernelError: the arguments do not fit each other, or the backend cannot run.
    """
    require(activation in ACTIVATIONS, "activation", activation, "choose one of none, relu, sigmoid")
    _check_layers({"x_BC": x_BC, "weight_OC": weight_OC, "bias_O": bias_O}, backend)
    if backend == "torch":
        result = _activate(functional.linear(x_BC, weight_OC, bias_O), activation)
        return result if out is None else output_for(out, result.shape, x_BC).copy_(result)
    result = output_for(out, (x_BC.shape[0], weight_OC.shape[0]), x_BC)
    if result.numel():
        from kernels.dlrm.mlp_triton import launch_linear

        launch_linear(x_BC, weight_OC, bias_O, activation, result)
    return result


def two_layer_mlp(
    x_BC: torch.Tensor,
    weight_HC: torch.Tensor,
    bias_H: torch.Tensor,
    weight_OH: torch.Tensor,
    bias_O: torch.Tensor,
    activations: tuple[str, str] = ("relu", "sigmoid"),
    *,
    backend: str = "triton",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation2(activation1(x W1^T + b1) W2^T + b2) in one kernel, (B, O) with O up to 256.

    Sums are float32. The hidden layer is rounded to x's dtype, as between two layers of PyTorch.

    Args:
        x_BC: rows may have gaps between them.
        weight_HC: of x's dtype, like all tensors below.
        bias_H: of the hidden layer.
        weight_OH: of the second layer.
        bias_O: of the second layer.
        activations: of the two layers, each "none", "relu" or "sigmoid".
        backend: "torch" or "triton".
        out: (B, O) of x's dtype; rows may have gaps between them.

    Raises:
        KernelError: the arguments do not fit each other, or the backend cannot run.
    """
    valid = len(activations) == 2 and all(name in ACTIVATIONS for name in activations)
    require(valid, "activations", activations, "give two of none, relu, sigmoid")
    _check_layers(
        {
            "x_BC": x_BC,
            "weight_HC": weight_HC,
            "bias_H": bias_H,
            "weight_OH": weight_OH,
            "bias_O": bias_O,
        },
        backend,
    )
    if backend == "torch":
        hidden_BH = _activate(functional.linear(x_BC, weight_HC, bias_H), activations[0])
        result = _activate(functional.linear(hidden_BH, weight_OH, bias_O), activations[1])
        return result if out is None else output_for(out, result.shape, x_BC).copy_(result)
    outputs = weight_OH.shape[0]
    require(outputs <= MAX_OUTPUTS, "weight_OH.shape[0]", outputs, f"give {MAX_OUTPUTS} at most")
    result = output_for(out, (x_BC.shape[0], outputs), x_BC)
    if result.numel():
        from kernels.dlrm.mlp_triton import launch_two_layers

        launch_two_layers(x_BC, weight_HC, bias_H, weight_OH, bias_O, activations, result)
    return result


def _activate(value: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "relu":
        return torch.relu(value)
    return torch.sigmoid(value) if activation == "sigmoid" else value


def _check_layers(tensors: Mapping[str, torch.Tensor], backend: str) -> None:
    """Raise `KernelError` unless x, weight, bias, weight, bias... are a chain of layers."""
    (x_name, x), *layers = tensors.items()
    require_rank(x_name, x, 2, "(batch, columns)")
    require_alike(tensors)
    width = x.shape[1]
    for (weight_name, weight), (bias_name, bias) in zip(layers[::2], layers[1::2], strict=True):
        require_rank(weight_name, weight, 2, "(out, in)")
        require_shape(weight_name, weight, (weight.shape[0], width))
        width = weight.shape[0]
        require_shape(bias_name, bias, (width,))
    for name, tensor in tensors.items():
        require_packed_rows(name, tensor)
    require_backend(backend, BACKENDS, tensors, (x_name,))
