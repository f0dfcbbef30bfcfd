"""What the registrations of both masks share: checks of the inputs, and what TensorRT is told to launch."""

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

Told = tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]
"""What an ahead-of-time implementation returns: the kernel's name, its PTX, and how to launch it."""


def require(plugin: str, condition: bool, name: str, found: object, wanted: str) -> None:
    """Raise ValueError, with plugin, input, what was found and what is wanted, unless the condition holds."""
    if not condition:
        raise ValueError(f"{plugin}: {name} is {found}, but must be {wanted}")


def check_inputs(
    plugin: str,
    inputs: Mapping[str, trtp.TensorDesc],
    ranks: Mapping[str, int],
    like_q: tuple[str, ...],
) -> None:
    """What holds of both masks' inputs.

    Args:
        plugin: its name.
        inputs: by name, q and offsets among them.
        ranks: of each input.
        like_q: the inputs that have the type of q.

    Raises:
        ValueError: an input of another rank or type.
    """
    q, offsets = inputs["q"], inputs["offsets"]
    require(plugin, q.dtype in _FLOATS, "the type of q", q.dtype, "float32, float16 or bfloat16")
    for name in like_q:
        found = inputs[name].dtype
        require(plugin, found == q.dtype, f"the type of {name}", found, f"q's, {q.dtype}")
    is_integer = offsets.dtype in (trt.int32, trt.int64)
    require(plugin, is_integer, "the type of offsets", offsets.dtype, "int32 or int64")
    for name, rank in ranks.items():
        found = len(inputs[name].shape_expr)
        require(plugin, found == rank, f"the rank of {name}", found, str(rank))


def is_known(extent: trtp.ShapeExpr) -> bool:
    """Whether an extent is a number already when the engine is built."""
    return not extent.is_fake and extent.is_constant


def known(plugin: str, name: str, extent: trtp.ShapeExpr) -> int:
    """The extent.

    Raises:
        ValueError: where it may vary.
    """
    require(plugin, is_known(extent), name, "not known", "known when the engine is built")
    return extent.constant_value()


def shape_of(
    plugin: str, q: trtp.TensorDesc, v: trtp.TensorDesc, offsets: trtp.TensorDesc, **extents: int
) -> AttentionShape:
    """What of a call is known when it is compiled; `extents` are those that the mask adds.

    Raises:
        ValueError: where heads or their dims may vary.
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
    """The kernel for the GPU that the engine is built on; float32 products as TensorRT's own switch has them.

    Raises:
        ValueError: where the kernel cannot be a plugin's.
    """
    import torch

    from kernels.plugins.ahead_of_time import compile_attention

    allows_tf32 = shape.dtype is torch.float32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    major, minor = torch.cuda.get_device_capability()
    return compile_attention(shape, settings, "tf32" if allows_tf32 else "ieee", 10 * major + minor)


def launch_of(made: CompiledKernel, offsets: trtp.TensorDesc, longest: trtp.ShapeExpr) -> Told:
    """The kernel and its launch.

    Args:
        made: the kernel.
        offsets: (B + 1,).
        longest: N.
    """
    sequences = offsets.shape_expr[0] - 1
    blocks = trtp.cdiv(longest, made.block_m)
    launch = trtp.KernelLaunchParams()
    launch.grid_x = blocks * sequences * made.programs_per_block
    launch.block_x = made.threads
    launch.shared_mem = made.shared
    numbers = trtp.SymIntExprs(3)
    for index, value in enumerate((sequences, longest, blocks)):
        numbers[index] = trtp.SymInt32(value)
    return made.name, made.ptx, launch, numbers
