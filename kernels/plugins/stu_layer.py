"""Registers norm and gate of a production STU layer with `tensorrt.plugin`.

The functions are those of `hstu_attention`, with kernels of `kernels.stu_layer`. TensorRT multiplies between
them: whole layers are these two plugins, the attention's, and two products.
"""

import tensorrt.plugin as trtp

from kernels.plugins.registration import (
    check_ranks,
    check_types,
    compile_for_this_gpu,
    dtype_of,
    known,
    launched,
)
from kernels.plugins.schema import STU_GATE, STU_NORM, STUGateSettings, STUNormSettings

_NORM_RANKS = {"x": 2, "weight": 1, "bias": 1}
_GATE_RANKS = {"u": 2, "a": 2, "weight": 1, "bias": 1}


@trtp.register(STU_NORM)
def describe_norm(
    x: trtp.TensorDesc, weight: trtp.TensorDesc, bias: trtp.TensorDesc, settings: str
) -> trtp.TensorDesc:
    """The output, like x. `schema.STU_NORM` describes the inputs.

    Raises:
        ValueError: an input has another rank or type, or the settings cannot be read.
    """
    inputs = dict(zip(_NORM_RANKS, (x, weight, bias), strict=True))
    check_types(STU_NORM, inputs, tuple(inputs))
    check_ranks(STU_NORM, inputs, _NORM_RANKS)
    # nvtripy 0.1.7 passes the attributes as one dictionary when it asks for the output's rank and type.
    if isinstance(settings, str):
        STUNormSettings.from_string(settings)
    return x.like()


@trtp.impl(STU_NORM)
def compute_norm(
    x: trtp.Tensor,
    weight: trtp.Tensor,
    bias: trtp.Tensor,
    settings: str,
    outputs: tuple[trtp.Tensor],
    stream: int,
) -> None:
    """The Triton kernel on CUDA tensors, its plain PyTorch form on others; in PyTorch's current stream."""
    # Imported here: NVIDIA's release container has no PyTorch and uses the compiled kernel.
    import torch

    from kernels.stu_layer import stu_norm

    x, weight, bias = (torch.from_dlpack(tensor) for tensor in (x, weight, bias))
    eps = STUNormSettings.from_string(settings).eps
    backend = "triton" if x.is_cuda else "eager"
    stu_norm(x, weight, bias, eps, backend=backend, out=torch.from_dlpack(outputs[0]))


@trtp.aot_impl(STU_NORM)
def compile_norm(
    x: trtp.TensorDesc,
    weight: trtp.TensorDesc,
    bias: trtp.TensorDesc,
    settings: str,
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    """The Triton kernel for this GPU, for any number of rows.

    Raises:
        ImportError: torch or triton is missing.
        ValueError: D varies, or the kernel cannot be a plugin's.
    """
    return _compiled(STU_NORM, "x", x, STUNormSettings.from_string(settings), groups=1)


@trtp.register(STU_GATE)
def describe_gate(
    u: trtp.TensorDesc, a: trtp.TensorDesc, weight: trtp.TensorDesc, bias: trtp.TensorDesc, settings: str
) -> trtp.TensorDesc:
    """The output, three times as wide as u. `schema.STU_GATE` describes the inputs.

    Raises:
        ValueError: an input has another rank or type, or the settings cannot be read.
    """
    inputs = dict(zip(_GATE_RANKS, (u, a, weight, bias), strict=True))
    check_types(STU_GATE, inputs, tuple(inputs))
    check_ranks(STU_GATE, inputs, _GATE_RANKS)
    if isinstance(settings, str):
        STUGateSettings.from_string(settings)
    factor = u.like()
    factor.shape_expr[1] = u.shape_expr[1] * 3
    return factor


@trtp.impl(STU_GATE)
def compute_gate(
    u: trtp.Tensor,
    a: trtp.Tensor,
    weight: trtp.Tensor,
    bias: trtp.Tensor,
    settings: str,
    outputs: tuple[trtp.Tensor],
    stream: int,
) -> None:
    """The Triton kernel on CUDA tensors, its plain PyTorch form on others; in PyTorch's current stream."""
    import torch

    from kernels.stu_layer import stu_gate

    u, a, weight, bias = (torch.from_dlpack(tensor) for tensor in (u, a, weight, bias))
    parsed = STUGateSettings.from_string(settings)
    backend = "triton" if u.is_cuda else "eager"
    out = torch.from_dlpack(outputs[0])
    stu_gate(u, a, weight, bias, parsed.norm_groups, parsed.eps, backend=backend, out=out)


@trtp.aot_impl(STU_GATE)
def compile_gate(
    u: trtp.TensorDesc,
    a: trtp.TensorDesc,
    weight: trtp.TensorDesc,
    bias: trtp.TensorDesc,
    settings: str,
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    """The Triton kernel for this GPU, for any number of rows.

    Raises:
        ImportError: torch or triton is missing.
        ValueError: H * V varies, or the kernel cannot be a plugin's.
    """
    parsed = STUGateSettings.from_string(settings)
    return _compiled(STU_GATE, "u", u, parsed, groups=parsed.norm_groups or 1)


def _compiled(
    plugin: str, name: str, rows: trtp.TensorDesc, settings: STUNormSettings | STUGateSettings, groups: int
) -> tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    from kernels.plugins.ahead_of_time import entry_of_rows

    width = known(plugin, f"the last extent of {name}", rows.shape_expr[1])
    kernel = compile_for_this_gpu(entry_of_rows(dtype_of(rows), width, settings))
    count = rows.shape_expr[0] * groups
    return launched(kernel, trtp.cdiv(count, kernel.block_m), count)
