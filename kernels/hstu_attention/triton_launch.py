"""Launches `triton_kernel.hstu_attention_kernel`: which block sizes, which arguments.

This module imports triton; `interface` imports it when a call asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hstu_attention.buckets import bucket_table_on
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.triton_kernel import hstu_attention_kernel

# Of the keys and values of the pairs that run beside each other: well below the cache of the smallest GPU meant (40 MB).
_CACHED_BYTES = 24 << 20


@dataclass(frozen=True)
class Schedule:
    """How the kernel is cut and compiled: what it computes does not depend on it, but for the order of sums."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    group: int = 1
    sigmoid: str = "exact"
    use_tma: bool = False
    warp_specialize: bool = False


def padded_dim(dim: int) -> int:
    """A head's size as the kernel sees it: the next power of two, at least 16, the smallest that a dot takes."""
    return max(16, triton.next_power_of_2(dim))


def choose_schedule(
    q: torch.Tensor, v: torch.Tensor, max_seq_len: int, mask: ResearchMask | ProductionMask
) -> Schedule:
    """The schedule for these inputs; docs/kernels_hstu.md says what the choices were measured against."""
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    widest = max(padded_dim(q.size(2)), padded_dim(v.size(2)))
    pair_bytes = max_seq_len * (q.size(2) + v.size(2)) * q.element_size()
    group = max(1, min(64, _CACHED_BYTES // max(pair_bytes, 1)))
    sigmoid = "half" if is_half else "exact"
    if not is_half:
        block = 64 if widest <= 64 else 32
        return Schedule(block, 32, num_warps=4, num_stages=2, group=group)
    if isinstance(mask, ResearchMask) or max_seq_len <= 512 or widest > 128:
        return Schedule(
            64, 64 if widest <= 128 else 32, num_warps=4, num_stages=2, group=group, sigmoid=sigmoid
        )
    return Schedule(128, 64, num_warps=4, num_stages=2, group=group, sigmoid=sigmoid)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    dot_precision: str,
    schedule: Schedule | None = None,
) -> torch.Tensor:
    """(L, H, K), (L, H, K), (L, H, V), (B + 1,) -> (L, H, V); arguments as `interface.hstu_attention` checked them."""
    schedule = schedule or choose_schedule(q, v, max_seq_len, mask)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    sequences, heads = offsets.numel() - 1, q.size(1)
    blocks = triton.cdiv(max_seq_len, schedule.block_m)
    if out.numel() == 0 or blocks == 0:
        return out
    arguments = kernel_arguments(q, k, v, out, offsets, blocks, mask, dot_precision, schedule)
    hstu_attention_kernel[(blocks * sequences * heads,)](
        **arguments, num_warps=schedule.num_warps, num_stages=schedule.num_stages
    )
    return out


def kernel_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    offsets: torch.Tensor,
    num_blocks: int,
    mask: ResearchMask | ProductionMask,
    dot_precision: str,
    schedule: Schedule,
) -> dict[str, object]:
    """The kernel's arguments by name, constexprs included."""
    block_k, block_v = padded_dim(q.size(2)), padded_dim(v.size(2))
    arguments: dict[str, object] = {
        "Q": q,
        "K": k,
        "V": v,
        "Out": out,
        "KDesc": k,
        "VDesc": v,
        "offsets": offsets,
        "stride_ql": q.stride(0),
        "stride_qh": q.stride(1),
        "stride_kl": k.stride(0),
        "stride_kh": k.stride(1),
        "stride_vl": v.stride(0),
        "stride_vh": v.stride(1),
        "stride_ol": out.stride(0),
        "stride_oh": out.stride(1),
        "num_heads": q.size(1),
        "num_sequences": offsets.numel() - 1,
        "num_blocks": num_blocks,
        "K_DIM": q.size(2),
        "V_DIM": v.size(2),
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "BLOCK_M": schedule.block_m,
        "BLOCK_N": schedule.block_n,
        "GROUP": schedule.group,
        "DOT": dot_precision,
        "SIGMOID": schedule.sigmoid,
        "USE_TMA": schedule.use_tma,
        "WARP_SPECIALIZE": schedule.warp_specialize,
        **(_research(mask, q) if isinstance(mask, ResearchMask) else _production(mask, q)),
    }
    if schedule.use_tma:
        arguments["KDesc"] = _descriptor(k, schedule.block_n, block_k)
        arguments["VDesc"] = _descriptor(v, schedule.block_n, block_v)
    return arguments


def _descriptor(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    shape = [x.size(0), x.size(1) * x.size(2)]
    return TensorDescriptor(x, shape=shape, strides=[x.stride(0), 1], block_shape=[rows, columns])


def _research(mask: ResearchMask, q: torch.Tensor) -> dict[str, object]:
    has_time = mask.timestamps is not None
    table, shift, num_times, stride = q, 0, 0, 0
    if mask.timestamps is not None:
        table, shift = bucket_table_on(mask.num_buckets, mask.bucket_divisor, q.device)
        num_times, stride = mask.timestamps.size(1), mask.timestamps.stride(0)
    return {
        # Unused pointers hold q: a launch needs some tensor.
        "timestamps": mask.timestamps if has_time else q,
        "position_weights": mask.position_weights,
        "time_weights": mask.time_weights if has_time else q,
        "bucket_table": table,
        "num_targets": q,
        "attn_scale": q,
        "stride_tb": stride,
        "num_times": num_times,
        "width": mask.width,
        "contextual": 0,
        "window": 0,
        "alpha": 1.0,
        "scale": 1.0 / mask.divisor,
        "HAS_BIAS": True,
        "HAS_TIME": has_time,
        "BUCKET_SHIFT": shift,
        "HAS_TARGETS": False,
        "HAS_WINDOW": False,
        "HAS_CONTEXT": False,
        "HAS_SCALE": False,
    }


def _production(mask: ProductionMask, q: torch.Tensor) -> dict[str, object]:
    return {
        "timestamps": q,
        "position_weights": q,
        "time_weights": q,
        "bucket_table": q,
        "num_targets": q if mask.num_targets is None else mask.num_targets,
        "attn_scale": q if mask.attn_scale is None else mask.attn_scale,
        "stride_tb": 0,
        "num_times": 0,
        "width": 0,
        "contextual": mask.contextual_seq_len,
        "window": mask.max_attn_len,
        "alpha": mask.alpha,
        "scale": 1.0 / mask.divisor,
        "HAS_BIAS": False,
        "HAS_TIME": False,
        "BUCKET_SHIFT": 0,
        "HAS_TARGETS": mask.num_targets is not None,
        "HAS_WINDOW": mask.max_attn_len > 0,
        "HAS_CONTEXT": mask.contextual_seq_len > 0,
        "HAS_SCALE": mask.attn_scale is not None,
    }
