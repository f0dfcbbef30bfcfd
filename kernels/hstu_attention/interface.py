"""`hstu_attention`: one operation, two masks, two backends."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os

import torch

from kernels.hstu_attention.eager import hstu_attention_eager
from kernels.hstu_attention.masks import ProductionMask, ResearchMask

BACKENDS = ("triton", "eager")
# How float32 factors of a dot product are rounded. Half types have one way, "ieee".
DOT_PRECISIONS = ("ieee", "tf32", "tf32x3")
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256


@functools.cache
def missing_triton() -> str:
    """Why triton cannot run here, or nothing."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install triton, or use backend='eager'"
    return ""


def require_triton(x: torch.Tensor) -> None:
    """Raise RuntimeError, with the reason and the fix, unless triton runs on `x`'s device and in its type."""
    if reason := missing_triton():
        raise RuntimeError(reason)
    if x.device.type == "cuda":
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            f"backend='triton' needs CUDA tensors, not {x.device.type}; use backend='eager', or set "
            "TRITON_INTERPRET=1 before the first import to interpret the kernel"
        )
    if x.dtype == torch.bfloat16:
        raise RuntimeError(
            "backend='triton': its interpreter multiplies bfloat16 as integers; use a CUDA GPU, or "
            "backend='eager'"
        )


def hstu_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    *,
    backend: str = "triton",
    dot_precision: str = "ieee",
) -> torch.Tensor:
    """HSTU's pointwise attention over jagged sequences, without an (N, N) tensor in memory.

    Args:
        q, k: (L, H, K), L rows of all sequences one after the other; K at most 256. The last axis is
            contiguous, the others may be strided, so that slices of one projection need no copy.
        v: (L, H, V) in the type of q; V at most 256.
        offsets: (B + 1,) int32 or int64 on the device of q, from 0 to L, never falling; rows may be empty.
        max_seq_len: the longest row, or more. On the host, so that a launch waits for nothing: a longer row
            would lose its end, which is the caller's to know.
        mask: `ResearchMask` or `ProductionMask`, its tensors on the device of q.
        backend: "triton" (a CUDA GPU, or TRITON_INTERPRET=1) or "eager" (plain PyTorch, anywhere).
        dot_precision: for float32: "ieee", "tf32", or "tf32x3" (three tf32 products, close to float32's
            error).

    Returns:
        (L, H, V) in the type of q; sums are float32 in the kernel.

    Raises:
        ValueError: an argument that does not fit, with its value and the fix.
        RuntimeError: the backend cannot run here.
    """
    _check(q, k, v, offsets, max_seq_len, mask, backend, dot_precision)
    if backend == "eager":
        if dot_precision != "ieee":
            raise ValueError(f"dot_precision={dot_precision!r}: the eager backend has 'ieee' only")
        return hstu_attention_eager(q, k, v, offsets, mask)
    require_triton(q)
    if q.dtype not in TRITON_DTYPES:
        raise ValueError(f"q.dtype={q.dtype}: backend='triton' takes {_names(TRITON_DTYPES)}")
    launcher = importlib.import_module("kernels.hstu_attention.triton_launch")
    return launcher.launch(q, k, v, offsets, max_seq_len, mask, dot_precision)


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _bad(field: str, value: object, fix: str) -> ValueError:
    return ValueError(f"{field}={value!r}: {fix}")


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    backend: str,
    dot_precision: str,
) -> None:
    """Shapes, types and devices: everything that needs no value from the device. A short row's kernel takes
    some 10 microseconds, hence no message is put together before it is needed."""
    if backend not in BACKENDS:
        raise _bad("backend", backend, f"choose one of {BACKENDS}")
    if dot_precision not in DOT_PRECISIONS:
        raise _bad("dot_precision", dot_precision, f"choose one of {DOT_PRECISIONS}")
    if dot_precision != "ieee" and q.dtype != torch.float32:
        raise _bad("dot_precision", dot_precision, f"{q.dtype} has 'ieee' only")
    if q.dim() != 3:
        raise _bad("q.shape", tuple(q.shape), "must be (L, H, K)")
    if k.shape != q.shape:
        raise _bad("k.shape", tuple(k.shape), f"must be q's, {tuple(q.shape)}")
    if v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise _bad("v.shape", tuple(v.shape), f"must be ({q.size(0)}, {q.size(1)}, V)")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not (x.size(1) >= 1 and 1 <= x.size(2) <= LARGEST_HEAD):
            raise _bad(f"{name}.shape", tuple(x.shape), f"needs heads of 1 to {LARGEST_HEAD} elements")
        if x.stride(2) != 1 and x.size(2) > 1:
            raise _bad(f"{name}.stride()", x.stride(), "make the last axis contiguous")
        if x.dtype != q.dtype:
            raise _bad(f"{name}.dtype", x.dtype, f"must be q's, {q.dtype}")
        if x.device != q.device:
            raise _bad(f"{name}.device", str(x.device), f"must be q's, {q.device}")
    if offsets.dim() != 1 or offsets.numel() < 1 or offsets.dtype not in (torch.int32, torch.int64):
        raise _bad("offsets", (tuple(offsets.shape), str(offsets.dtype)), "must be (B + 1,) int32 or int64")
    if max_seq_len < 0:
        raise _bad("max_seq_len", max_seq_len, "must be at least 0")
    if not mask.divisor > 0:
        raise _bad("mask.divisor", mask.divisor, "must be positive")
    if isinstance(mask, ResearchMask):
        _check_research(mask, offsets.numel() - 1, max_seq_len)
    else:
        _check_production(mask, q.size(0), offsets.numel() - 1)
    for name, x in (("offsets", offsets), *vars(mask).items()):
        if isinstance(x, torch.Tensor):
            if x.device != q.device:
                raise _bad(f"{name}.device", str(x.device), f"must be q's, {q.device}")
            if x.stride(-1) != 1 and x.numel() > 1:
                raise _bad(f"{name}.stride()", x.stride(), "make it contiguous")


def _check_research(mask: ResearchMask, sequences: int, max_seq_len: int) -> None:
    weights, times = mask.position_weights, mask.timestamps
    if weights.dim() != 1 or weights.numel() % 2 != 1:
        raise _bad("mask.position_weights.shape", tuple(weights.shape), "must be (2W - 1,)")
    if max_seq_len > mask.width:
        raise _bad("max_seq_len", max_seq_len, f"the position weights serve {mask.width}")
    if (times is None) != (mask.time_weights is None):
        raise _bad("mask.time_weights", mask.time_weights, "give timestamps and time_weights, or neither")
    if times is None or mask.time_weights is None:
        return
    if times.dim() != 2 or times.size(0) != sequences or times.size(1) < max_seq_len:
        raise _bad(
            "mask.timestamps.shape", tuple(times.shape), f"must be ({sequences}, at least {max_seq_len})"
        )
    if times.dtype != torch.int64:
        raise _bad("mask.timestamps.dtype", times.dtype, "use int64")
    if mask.time_weights.dim() != 1 or mask.time_weights.numel() < 2:
        raise _bad("mask.time_weights.shape", tuple(mask.time_weights.shape), "must be (num_buckets + 1,)")


def _check_production(mask: ProductionMask, length: int, sequences: int) -> None:
    if mask.max_attn_len < 0:
        raise _bad("mask.max_attn_len", mask.max_attn_len, "0 is no window")
    if mask.contextual_seq_len < 0:
        raise _bad("mask.contextual_seq_len", mask.contextual_seq_len, "0 is none")
    if mask.attn_scale is not None and mask.attn_scale.shape != (length,):
        raise _bad("mask.attn_scale.shape", tuple(mask.attn_scale.shape), f"must be ({length},)")
    if mask.num_targets is not None:
        if mask.num_targets.shape != (sequences,):
            raise _bad("mask.num_targets.shape", tuple(mask.num_targets.shape), f"must be ({sequences},)")
        if mask.num_targets.dtype not in (torch.int32, torch.int64):
            raise _bad("mask.num_targets.dtype", mask.num_targets.dtype, "use int32 or int64")
