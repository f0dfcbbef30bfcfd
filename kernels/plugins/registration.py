"""The common part of the registrations: checks of the inputs, and the launch for TensorRT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorrt as trt
import tensorrt.plugin as trtp

if TYPE_CHECKING:
    import torch

    from kernels.plugins.ahead_of_time import AttentionShape, CompiledKernel, Entry
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
    offsets = inputs["offsets"]
    check_types(plugin, inputs, ("q", *like_q))
    is_integer = offsets.dtype in (trt.int32, trt.int64)
    require(plugin, is_integer, "the type of offsets", offsets.dtype, "int32 or int64")
    check_ranks(plugin, inputs, ranks)


def check_types(plugin: str, inputs: Mapping[str, trtp.TensorDesc], names: tuple[str, ...]) -> None:
    """Check that the inputs of these names have one floating-point type, the first one's.

    Raises:
        ValueError: an input has another type.
    """
    first, *others = names
    wanted = inputs[first].dtype
    require(plugin, wanted in _FLOATS, f"the type of {first}", wanted, "float32, float16 or bfloat16")
    for name in others:
        dtype = inputs[name].dtype
        require(plugin, dtype == wanted, f"the type of {name}", dtype, f"{first}'s, {wanted}")


def check_ranks(plugin: str, inputs: Mapping[str, trtp.TensorDesc], ranks: Mapping[str, int]) -> None:
    """Check the rank of each input.

    Raises:
        ValueError: an input has another rank.
    """
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

    return AttentionShape(
        dtype=dtype_of(q),
        offsets_dtype=torch.int32 if offsets.dtype == trt.int32 else torch.int64,
        heads=known(plugin, "the second extent of q", q.shape_expr[1]),
        k_dim=known(plugin, "the last extent of q", q.shape_expr[2]),
        v_dim=known(plugin, "the last extent of v", v.shape_expr[2]),
        **extents,
    )


def dtype_of(desc: trtp.TensorDesc) -> torch.dtype:
    """The type of a floating-point input."""
    import torch

    dtypes = {trt.float32: torch.float32, trt.float16: torch.float16, trt.bfloat16: torch.bfloat16}
    return dtypes[desc.dtype]


def attention_for_this_gpu(
    shape: AttentionShape, settings: HSTUAttentionSettings | STUAttentionSettings
) -> CompiledKernel:
    """The attention for this GPU, with TF32 in float32 products as TensorRT's own switch sets it.

    Raises:
        ValueError: the kernel cannot be a plugin's.
    """
    import torch

    from kernels.plugins.ahead_of_time import entry_of

    allows_tf32 = shape.dtype is torch.float32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    return compile_for_this_gpu(entry_of(shape, settings, "tf32" if allows_tf32 else "ieee"))


def compile_for_this_gpu(entry: Entry) -> CompiledKernel:
    """A kernel for this GPU. Raises ValueError where it cannot be a plugin's."""
    import torch

    from kernels.plugins.ahead_of_time import compile_entry

    major, minor = torch.cuda.get_device_capability()
    return compile_entry(entry, 10 * major + minor)


def launch_of(kernel: CompiledKernel, offsets: trtp.TensorDesc, longest: trtp.ShapeExpr) -> AheadOfTime:
    """The kernel and its launch.

    Args:
        kernel: the compiled kernel.
        offsets: (B + 1,).
        longest: N.
    """
    sequences = offsets.shape_expr[0] - 1
    blocks = trtp.cdiv(longest, kernel.block_m)
    return launched(kernel, blocks * sequences * kernel.programs_per_block, sequences, longest, blocks)


def launched(kernel: CompiledKernel, programs: trtp.ShapeExpr, *numbers: trtp.ShapeExpr) -> AheadOfTime:
    """The kernel and its launch with so many programs and these int32 arguments."""
    launch = trtp.KernelLaunchParams()
    launch.grid_x = programs
    launch.block_x = kernel.threads
    launch.shared_mem = kernel.shared
    arguments = trtp.SymIntExprs(len(numbers))
    for index, value in enumerate(numbers):
        arguments[index] = trtp.SymInt32(value)
    return kernel.name, kernel.ptx, launch, arguments
