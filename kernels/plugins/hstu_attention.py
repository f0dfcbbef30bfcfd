"""Registers the fused attention of research HSTU with `tensorrt.plugin`.

With NVIDIA's MLIR-TensorRT, the engine contains the kernel of `compile_kernel`. The portable runtime calls
`compute`. TensorRT reads the annotations, hence no postponed evaluation here.
"""

import tensorrt as trt
import tensorrt.plugin as trtp

from kernels.plugins.registration import (
    attention_for_this_gpu,
    check_inputs,
    known,
    launch_of,
    require,
    shape_of,
)
from kernels.plugins.schema import HSTU_ATTENTION, HSTUAttentionSettings

_RANKS = {"q": 3, "k": 3, "v": 3, "offsets": 1, "timestamps": 2, "position_weights": 1, "time_weights": 1}


@trtp.register(HSTU_ATTENTION)
def describe(
    q: trtp.TensorDesc,
    k: trtp.TensorDesc,
    v: trtp.TensorDesc,
    offsets: trtp.TensorDesc,
    timestamps: trtp.TensorDesc,
    position_weights: trtp.TensorDesc,
    time_weights: trtp.TensorDesc,
    settings: str,
) -> trtp.TensorDesc:
    """The output, like v. `schema.HSTU_ATTENTION` describes the inputs.

    Raises:
        ValueError: an input has another rank or type, or the settings cannot be read.
    """
    tensors = (q, k, v, offsets, timestamps, position_weights, time_weights)
    inputs = dict(zip(_RANKS, tensors, strict=True))
    check_inputs(HSTU_ATTENTION, inputs, _RANKS, ("k", "v", "position_weights", "time_weights"))
    is_seconds = timestamps.dtype == trt.int64
    require(HSTU_ATTENTION, is_seconds, "the type of timestamps", timestamps.dtype, "int64")
    # nvtripy 0.1.7 passes the attributes as one dictionary when it asks for the output's rank and type.
    if isinstance(settings, str):
        HSTUAttentionSettings.from_string(settings)
    return v.like()


@trtp.impl(HSTU_ATTENTION)
def compute(
    q: trtp.Tensor,
    k: trtp.Tensor,
    v: trtp.Tensor,
    offsets: trtp.Tensor,
    timestamps: trtp.Tensor,
    position_weights: trtp.Tensor,
    time_weights: trtp.Tensor,
    settings: str,
    outputs: tuple[trtp.Tensor],
    stream: int,
) -> None:
    """The Triton kernel on CUDA tensors, its plain PyTorch form on others; in PyTorch's current stream."""
    # Imported here: NVIDIA's release container has no PyTorch and uses the compiled kernel.
    import torch

    from kernels.hstu_attention import ResearchMask, dot_precision_of_torch, hstu_attention

    parsed = HSTUAttentionSettings.from_string(settings)
    q, k, v, offsets, timestamps, position_weights, time_weights = (
        torch.from_dlpack(x) for x in (q, k, v, offsets, timestamps, position_weights, time_weights)
    )
    hstu_attention(
        q,
        k,
        v,
        offsets,
        timestamps.size(1),
        ResearchMask(position_weights, parsed.divisor, timestamps, time_weights, parsed.bucket_divisor),
        backend="triton" if q.is_cuda else "eager",
        dot_precision=dot_precision_of_torch(q),
        out=torch.from_dlpack(outputs[0]),
    )


@trtp.aot_impl(HSTU_ATTENTION)
def compile_kernel(
    q: trtp.TensorDesc,
    k: trtp.TensorDesc,
    v: trtp.TensorDesc,
    offsets: trtp.TensorDesc,
    timestamps: trtp.TensorDesc,
    position_weights: trtp.TensorDesc,
    time_weights: trtp.TensorDesc,
    settings: str,
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    """The Triton kernel for this GPU, for any number of rows and sequences.

    Raises:
        ImportError: torch or triton is missing.
        ValueError: another extent varies, or the kernel cannot be a plugin's.
    """
    positions = known(HSTU_ATTENTION, "the extent of position_weights", position_weights.shape_expr[0])
    buckets = known(HSTU_ATTENTION, "the extent of time_weights", time_weights.shape_expr[0]) - 1
    shape = shape_of(HSTU_ATTENTION, q, v, offsets, width=(positions + 1) // 2, num_buckets=buckets)
    kernel = attention_for_this_gpu(shape, HSTUAttentionSettings.from_string(settings))
    return launch_of(kernel, offsets, timestamps.shape_expr[1])
