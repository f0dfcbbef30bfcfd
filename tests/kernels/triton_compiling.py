"""One Triton kernel compiled for a GPU that need not be there.

Only for programs in a process of their own: tests interpret the kernels, and nothing compiles there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.experimental.gluon.nvidia import hopper
from triton.tools.tensor_descriptor import TensorDescriptor

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
}


def is_tensor(value: object) -> bool:
    """Whether an argument is a tensor. A launch on a GPU finds every tensor at a multiple of 16 bytes."""
    return isinstance(value, torch.Tensor)


def compile_kernel(
    kernel: Any,
    values: Mapping[str, object],
    capability: int,
    options: Mapping[str, int],
    is_aligned: Callable[[object], bool] = is_tensor,
) -> Any:
    """A kernel, compiled for the arguments of a launch.

    Args:
        kernel: The kernel.
        values: Arguments by parameter, constants included.
        capability: Compute capability, such as 90.
        options: Triton's options, such as `num_warps`.
        is_aligned: Whether an argument is a multiple of 16.
    """
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[(index,)] = "constexpr", value
            continue
        signature[parameter.name] = _type(value)
        if is_aligned(value):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    return triton.compile(
        source(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options=dict(options),
    )


def _type(value: object) -> str:
    if isinstance(value, (TensorDescriptor, hopper.TensorDescriptor)):
        layout = f",{value.layout!r}" if isinstance(value, hopper.TensorDescriptor) else ""
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}{layout}>"
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"
