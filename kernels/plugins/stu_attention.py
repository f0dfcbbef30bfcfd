"""Registers the fused attention of the production STU with `tensorrt.plugin`, without a cache and behind one.

The functions are those of `hstu_attention`, with `ProductionMask` in place of `ResearchMask`.
"""

import tensorrt as trt
import tensorrt.plugin as trtp

from kernels.plugins.registration import (
    attention_for_this_gpu,
    check_inputs,
    is_known,
    launch_of,
    require,
    shape_of,
)
from kernels.plugins.schema import STU_ATTENTION, STU_ATTENTION_CACHED, STUAttentionSettings

_RANKS = {"q": 3, "k": 3, "v": 3, "offsets": 1, "num_targets": 1, "attn_scale": 1, "padded": 1}

_CACHED_RANKS = {"q": 3, "k": 4, "v": 4, "offsets": 1, "firsts": 1, "num_targets": 1}

_WIDTH_IF_IT_VARIES = 1024
"""Assumed length of rows of an engine for several N, for the choice of the schedule."""


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
    """The output, like v. `schema.STU_ATTENTION` describes the inputs.

    Raises:
        ValueError: an input has another rank or type, or the settings cannot be read.
    """
    tensors = (q, k, v, offsets, num_targets, attn_scale, padded)
    inputs = dict(zip(_RANKS, tensors, strict=True))
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
    # Imported here: NVIDIA's release container has no PyTorch and uses the compiled kernel.
    import torch

    from kernels.hstu_attention import ProductionMask, dot_precision_of_torch, hstu_attention

    parsed = STUAttentionSettings.from_string(settings)
    q, k, v, offsets, num_targets, attn_scale, padded = (
        torch.from_dlpack(x) for x in (q, k, v, offsets, num_targets, attn_scale, padded)
    )
    longest = padded.size(0)
    mask = ProductionMask(
        parsed.alpha,
        float(longest),
        attn_scale if parsed.has_attn_scale else None,
        num_targets,
        parsed.max_attn_len,
        parsed.contextual_seq_len,
    )
    hstu_attention(
        q,
        k,
        v,
        offsets,
        longest,
        mask,
        backend="triton" if q.is_cuda else "eager",
        dot_precision=dot_precision_of_torch(q),
        out=torch.from_dlpack(outputs[0]),
    )


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
    """The Triton kernel for this GPU, for any number of rows and sequences and any N.

    Raises:
        ImportError: torch or triton is missing.
        ValueError: another extent varies, or the kernel cannot be a plugin's.
    """
    longest = padded.shape_expr[0]
    width = longest.constant_value() if is_known(longest) else _WIDTH_IF_IT_VARIES
    shape = shape_of(STU_ATTENTION, q, v, offsets, width=width)
    kernel = attention_for_this_gpu(shape, STUAttentionSettings.from_string(settings))
    return launch_of(kernel, offsets, longest)


@trtp.register(STU_ATTENTION_CACHED)
def describe_cached(
    q: trtp.TensorDesc,
    k: trtp.TensorDesc,
    v: trtp.TensorDesc,
    offsets: trtp.TensorDesc,
    firsts: trtp.TensorDesc,
    num_targets: trtp.TensorDesc,
    settings: str,
) -> trtp.TensorDesc:
    """The output, like q with v's dim. `schema.STU_ATTENTION_CACHED` describes the inputs.

    Raises:
        ValueError: an input has another rank or type, or the settings cannot be read or have a scale.
    """
    inputs = dict(zip(_CACHED_RANKS, (q, k, v, offsets, firsts, num_targets), strict=True))
    check_inputs(STU_ATTENTION_CACHED, inputs, _CACHED_RANKS, ("k", "v"))
    for name in ("firsts", "num_targets"):
        dtype, wanted = inputs[name].dtype, f"that of offsets, {offsets.dtype}"
        require(STU_ATTENTION_CACHED, dtype == offsets.dtype, f"the type of {name}", dtype, wanted)
    if isinstance(settings, str):
        has_scale = STUAttentionSettings.from_string(settings).has_attn_scale
        require(STU_ATTENTION_CACHED, not has_scale, "has_attn_scale", has_scale, "false")
    out = q.like()
    out.shape_expr[2] = v.shape_expr[3]
    return out


@trtp.impl(STU_ATTENTION_CACHED)
def compute_cached(
    q: trtp.Tensor,
    k: trtp.Tensor,
    v: trtp.Tensor,
    offsets: trtp.Tensor,
    firsts: trtp.Tensor,
    num_targets: trtp.Tensor,
    settings: str,
    outputs: tuple[trtp.Tensor],
    stream: int,
) -> None:
    """The Triton kernel on CUDA tensors, its plain PyTorch form on others; in PyTorch's current stream."""
    import torch

    from kernels.hstu_attention import ProductionMask, dot_precision_of_torch, hstu_attention_cached

    parsed = STUAttentionSettings.from_string(settings)
    q, k, v, offsets, firsts, num_targets = (
        torch.from_dlpack(x) for x in (q, k, v, offsets, firsts, num_targets)
    )
    sequences, n = k.shape[:2]
    mask = ProductionMask(
        parsed.alpha, float(n), None, num_targets, parsed.max_attn_len, parsed.contextual_seq_len
    )
    hstu_attention_cached(
        q,
        k,
        v,
        offsets,
        firsts,
        n,
        q.size(0) // sequences,
        mask,
        backend="triton" if q.is_cuda else "eager",
        dot_precision=dot_precision_of_torch(q),
        out=torch.from_dlpack(outputs[0]),
    )
