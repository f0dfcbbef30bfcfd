"""Registers the fused HSTU attention with `tensorrt.plugin`.

In NVIDIA's environment, where MLIR-TensorRT builds the engine, TensorRT takes the kernel that
`compile_kernel` compiles. The portable runtime calls `compute`. TensorRT reads the annotations, hence no
postponed evaluation here.
"""

import os

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

    from kernels.hstu_attention import ResearchMask, dot_precision_of_torch, hstu_attention

    given = HSTUAttentionSettings.from_string(settings)
    q, k, v, offsets, timestamps, position_weights, time_weights = (
        torch.from_dlpack(x) for x in (q, k, v, offsets, timestamps, position_weights, time_weights)
    )
    result = hstu_attention(
        q,
        k,
        v,
        offsets,
        timestamps.size(1),
        ResearchMask(position_weights, given.divisor, timestamps, time_weights, given.bucket_divisor),
        backend="triton" if q.is_cuda else "eager",
        dot_precision=dot_precision_of_torch(q),
    )
    torch.from_dlpack(outputs[0]).copy_(result)


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
    """The Triton kernel for the GPU that the engine is built on. The numbers of rows and sequences may vary.

    Raises:
        ImportError: without torch or triton, which compile it.
        ValueError: where another extent varies, or the kernel cannot be a plugin's.
    """
    import torch

    from kernels.plugins.ahead_of_time import AttentionShape, compile_attention

    dtypes = {trt.float32: torch.float32, trt.float16: torch.float16, trt.bfloat16: torch.bfloat16}
    shape = AttentionShape(
        dtype=dtypes[q.dtype],
        offsets_dtype=torch.int32 if offsets.dtype == trt.int32 else torch.int64,
        heads=_known("the second extent of q", q.shape_expr[1]),
        k_dim=_known("the last extent of q", q.shape_expr[2]),
        v_dim=_known("the last extent of v", v.shape_expr[2]),
        width=(_known("the extent of position_weights", position_weights.shape_expr[0]) + 1) // 2,
        num_buckets=_known("the extent of time_weights", time_weights.shape_expr[0]) - 1,
    )
    # TensorRT's own switch for its products of float32.
    allows_tf32 = q.dtype == trt.float32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
    major, minor = torch.cuda.get_device_capability()
    made = compile_attention(
        shape,
        HSTUAttentionSettings.from_string(settings),
        "tf32" if allows_tf32 else "ieee",
        10 * major + minor,
    )
    sequences, times = offsets.shape_expr[0] - 1, timestamps.shape_expr[1]
    blocks = trtp.cdiv(times, made.block_m)
    launch = trtp.KernelLaunchParams()
    launch.grid_x = blocks * sequences * made.programs_per_block
    launch.block_x = made.threads
    launch.shared_mem = made.shared
    numbers = trtp.SymIntExprs(3)
    for index, value in enumerate((sequences, times, blocks)):
        numbers[index] = trtp.SymInt32(value)
    return made.name, made.ptx, launch, numbers


def _known(name: str, extent: trtp.ShapeExpr) -> int:
    is_known = not extent.is_fake and extent.is_constant
    _require(is_known, name, "not known", "known when the engine is built")
    return extent.constant_value()
