"""Registers the fused HSTU attention with `tensorrt.plugin`.

In NVIDIA's environment, where MLIR-TensorRT builds the engine, TensorRT takes the kernel that
`compile_kernel` compiles. The portable runtime calls `compute`. TensorRT reads the annotations, hence no
postponed evaluation here.
"""

import tensorrt as trt
import tensorrt.plugin as trtp

from kernels.plugins.schema import HSTU_ATTENTION, HSTUAttentionSettings

_FLOATS = (trt.float32, trt.float16, trt.bfloat16)


def _require(condition: bool, name: str, found: object, wanted: str) -> None:
    if not condition:
        raise ValueError(f"{HSTU_ATTENTION}: {name} is {found}, but must be {wanted}")


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
    """The output is like v. `schema.HSTU_ATTENTION` says what goes in.

    Raises:
        ValueError: an input of another rank or type, or settings that cannot be read.
    """
    _require(q.dtype in _FLOATS, "the type of q", q.dtype, "float32, float16 or bfloat16")
    same = {"k": k, "v": v, "position_weights": position_weights, "time_weights": time_weights}
    for name, desc in same.items():
        _require(desc.dtype == q.dtype, f"the type of {name}", desc.dtype, f"q's, {q.dtype}")
    _require(offsets.dtype in (trt.int32, trt.int64), "the type of offsets", offsets.dtype, "int32 or int64")
    _require(timestamps.dtype == trt.int64, "the type of timestamps", timestamps.dtype, "int64")
    ranks = {"q": (q, 3), "k": (k, 3), "v": (v, 3), "offsets": (offsets, 1), "timestamps": (timestamps, 2)}
    ranks |= {"position_weights": (position_weights, 1), "time_weights": (time_weights, 1)}
    for name, (desc, rank) in ranks.items():
        _require(len(desc.shape_expr) == rank, f"the rank of {name}", len(desc.shape_expr), str(rank))
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
    # Here, since NVIDIA's release container has no PyTorch, and takes the compiled kernel.
    import torch

    from kernels.hstu_attention import ResearchMask, hstu_attention

    given = HSTUAttentionSettings.from_string(settings)
    q, k, v, offsets, timestamps, position_weights, time_weights = (
        torch.from_dlpack(x) for x in (q, k, v, offsets, timestamps, position_weights, time_weights)
    )
    allows_tf32 = q.is_cuda and q.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
    result = hstu_attention(
        q,
        k,
        v,
        offsets,
        timestamps.size(1),
        ResearchMask(position_weights, given.divisor, timestamps, time_weights, given.bucket_divisor),
        backend="triton" if q.is_cuda else "eager",
        dot_precision="tf32" if allows_tf32 else "ieee",
    )
    torch.from_dlpack(outputs[0]).copy_(result)
