"""Registers the fused attention of the production STU with `tensorrt.plugin`; as `hstu_attention` does for
research, with `ProductionMask` in place of `ResearchMask`.
"""

import tensorrt as trt
import tensorrt.plugin as trtp

from kernels.plugins.registration import (
    check_inputs,
    compile_for_this_gpu,
    is_known,
    launch_of,
    require,
    shape_of,
)
from kernels.plugins.schema import STU_ATTENTION, STUAttentionSettings

_RANKS = {"q": 3, "k": 3, "v": 3, "offsets": 1, "num_targets": 1, "attn_scale": 1, "padded": 1}

_WIDTH_IF_IT_VARIES = 1024
"""How long rows are taken to be where an engine serves several N: it decides the schedule alone."""


@trtp.register(STU_ATTENTION)
def describe(
    q: trtp.TensorDesc,
    k: trtp.TensorDesc,
    v: trtp.TensorDesc,
    offsets: trtp.TensorDesc,
    num_targets: trtp.TensorDesc,
    attn_scale: trtp.TensorDesc,
    padded: trtp.TensorDesc,
    settings: str,
) -> trtp.TensorDesc:
    """The output is like v. `schema.STU_ATTENTION` says what goes in.

    Raises:
        ValueError: an input of another rank or type, or settings that cannot be read.
    """
    given = (q, k, v, offsets, num_targets, attn_scale, padded)
    inputs = dict(zip(_RANKS, given, strict=True))
    check_inputs(STU_ATTENTION, inputs, _RANKS, ("k", "v", "attn_scale"))
    is_alike = num_targets.dtype == offsets.dtype
    wanted = f"that of offsets, {offsets.dtype}"
    require(STU_ATTENTION, is_alike, "the type of num_targets", num_targets.dtype, wanted)
    require(STU_ATTENTION, padded.dtype == trt.int32, "the type of padded", padded.dtype, "int32")
    # nvtripy 0.1.7 passes the attributes as one dictionary when it asks for the output's rank and type.
    if isinstance(settings, str):
        STUAttentionSettings.from_string(settings)
    return v.like()


@trtp.impl(STU_ATTENTION)
def compute(
    q: trtp.Tensor,
    k: trtp.Tensor,
    v: trtp.Tensor,
    offsets: trtp.Tensor,
    num_targets: trtp.Tensor,
    attn_scale: trtp.Tensor,
    padded: trtp.Tensor,
    settings: str,
    outputs: tuple[trtp.Tensor],
    stream: int,
) -> None:
    """The Triton kernel on CUDA tensors, its plain PyTorch form on others; in PyTorch's current stream."""
    # Here, since NVIDIA's release container has no PyTorch, and takes the compiled kernel.
    import torch

    from kernels.hstu_attention import ProductionMask, dot_precision_of_torch, hstu_attention

    given = STUAttentionSettings.from_string(settings)
    q, k, v, offsets, num_targets, attn_scale, padded = (
        torch.from_dlpack(x) for x in (q, k, v, offsets, num_targets, attn_scale, padded)
    )
    longest = padded.size(0)
    mask = ProductionMask(
        given.alpha,
        float(longest),
        attn_scale if given.has_attn_scale else None,
        num_targets,
        given.max_attn_len,
        given.contextual_seq_len,
    )
    result = hstu_attention(
        q,
        k,
        v,
        offsets,
        longest,
        mask,
        backend="triton" if q.is_cuda else "eager",
        dot_precision=dot_precision_of_torch(q),
    )
    torch.from_dlpack(outputs[0]).copy_(result)


@trtp.aot_impl(STU_ATTENTION)
def compile_kernel(
    q: trtp.TensorDesc,
    k: trtp.TensorDesc,
    v: trtp.TensorDesc,
    offsets: trtp.TensorDesc,
    num_targets: trtp.TensorDesc,
    attn_scale: trtp.TensorDesc,
    padded: trtp.TensorDesc,
    settings: str,
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> tuple[str | bytes, str | bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    """The Triton kernel for the GPU that the engine is built on. The numbers of rows and sequences and N may
    vary.

    Raises:
        ImportError: without torch or triton, which compile it.
        ValueError: where another extent varies, or the kernel cannot be a plugin's.
    """
    longest = padded.shape_expr[0]
    width = longest.constant_value() if is_known(longest) else _WIDTH_IF_IT_VARIES
    shape = shape_of(STU_ATTENTION, q, v, offsets, width=width)
    made = compile_for_this_gpu(shape, STUAttentionSettings.from_string(settings))
    return launch_of(made, offsets, longest)
