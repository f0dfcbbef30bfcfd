"""The common part of both registrations: checks of the inputs, and the launch for TensorRT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorrt as trt
import tensorrt.plugin as trtp

if TYPE_CHECKING:
    from kernels.plugins.ahead_of_time import AttentionShape, CompiledKernel
    from kernels.plugins.schema import HSTUAttentionSettings, STUAttentionSettings

_FLOATS = (trt.float32, trt.float16, trt.bfloat16)

AheadOfTime = tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]
"""Result of an ahead-of-time implementation: the kernel's name, its PTX, its launch and its numbers."""


def require(plugin: str, condition: bool, name: str, value: object, wanted: str) -> None:
    """Raise ValueError, with plugin, input, its value and the wanted one, unless the condition holds."""
    if not condition:
        raise ValueError(f"{plugin}: {name} is {value}, but must be {wanted}")


def check_inputs(
    plugin: str,
    inputs: Mapping[str, trtp.TensorDesc],
    ranks: Mapping[str, int],
    like_q: tuple[str, ...],
) -> None:
    """Check the properties that both masks' inputs share.

    Args:
        plugin: its name.
        inputs: by name, q and offsets among them.
        ranks: rank of each input.
        like_q: names of the inputs that have the type of q.

    Raises:
        ValueError: an input has another rank or type.
    """
    q, offsets = inputs["q"], inputs["offsets"]
    require(plugin, q.dtype in _FLOATS, "the type of q", q.dtype, "float32, float16 or bfloat16")
    for name in like_q:
        dtype = inputs[name].dtype
        require(plugin, dtype == q.dtype, f"the type of {name}", dtype, f"q's, {q.dtype}")
    is_integer = offsets.dtype in (trt.int32, trt.int64)
    require(plugin, is_integer, "the type of offsets", offsets.dtype, "int32 or int64")
    for name, wanted in ranks.items():
        rank = len(inputs[name].shape_expr)
        require(plugin, rank == wanted, f"the rank of {name}", rank, str(wanted))


def is_known(extent: trtp.ShapeExpr) -> bool:
    """Whether an extent is constant when the engine is built."""
    return not extent.is_fake and extent.is_constant


def known(plugin: str, name: str, extent: trtp.ShapeExpr) -> int:
    """The value of a constant extent.

    Raises:
        ValueError: the extent may vary.
    """
    require(plugin, is_known(extent), name, "not known", "known when the engine is built")
    return extent.constant_value()


def shape_of(
    plugin: str, q: trtp.TensorDesc, v: trtp.TensorDesc, offsets: trtp.TensorDesc, **extents: int
) -> AttentionShape:
    """The shape of a call at compile time; `extents` are the mask's own.

    Raises:
        ValueError: the number of heads or their dims may vary.
    """
    import torch

    from kernels.plugins.ahead_of_time import AttentionShape

    dtypes = {trt.float32: torch.float32, trt.float16: torch.float16, trt.bfloat16: torch.bfloat16}
    return AttentionShape(
        dtype=dtypes[q.dtype],
        offsets_dtype=torch.int32 if offsets.dtype == trt.int32 else torch.int64,
        heads=known(plugin, "the second extent of q", q.shape_expr[1]),
        k_dim=known(plugin, "the last extent of q", q.shape_expr[2]),
        v_dim=known(plugin, "the last extent of v", v.shape_expr[2]),
        **extents,
    )


def compile_for_this_gpu(
    shape: AttentionShape, settings: HSTUAttentionSettings | STUAttentionSettings
) -> CompiledKernel:
    """The kernel for this GPU, with TF32 in float32 products as TensorRT's own switch sets it.

    Raises:
        ValueError: the kernel cannot be a plugin's.
    """
    import torch

    from kernels.plugins.ahead_of_time import compile_attention

    allows_tf32 = shape.dtype is torch.float32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    major, minor = torch.cuda.get_device_capability()
    return compile_attention(shape, settings, "tf32" if allows_tf32 else "ieee", 10 * major + minor)


def launch_of(kernel: CompiledKernel, offsets: trtp.TensorDesc, longest: trtp.ShapeExpr) -> AheadOfTime:
    """The kernel and its launch.

    Args:
        kernel: the compiled kernel.
        offsets: (B + 1,).
        longest: N.
    """
    sequences = offsets.shape_expr[0] - 1
    blocks = trtp.cdiv(longest, kernel.block_m)
    launch = trtp.KernelLaunchParams()
    launch.grid_x = blocks * sequences * kernel.programs_per_block
    launch.block_x = kernel.threads
    launch.shared_mem = kernel.shared
    numbers = trtp.SymIntExprs(3)
    for index, value in enumerate((sequences, longest, blocks)):
        numbers[index] = trtp.SymInt32(value)
    return kernel.name, kernel.ptx, launch, numbers
