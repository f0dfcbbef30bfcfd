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


def require_triton(device: torch.device) -> None:
    """Raise RuntimeError, with the reason and the fix, unless triton runs on `device`."""
    if missing_triton():
        raise RuntimeError(missing_triton())
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            f"backend='triton' needs CUDA tensors, not {device.type}; use backend='eager', or set TRITON_INTERPRET=1 "
            "before the first import to interpret the kernel"
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
        q, k: (L, H, K), L rows of all sequences one after the other; K at most 256. The last axis is contiguous,
            the others may be strided, so that slices of one projection need no copy.
        v: (L, H, V) in the type of q; V at most 256.
        offsets: (B + 1,) int32 or int64 on the device of q, from 0 to L, never falling; rows may be empty.
        max_seq_len: the longest row, or more. On the host, so that a launch waits for nothing: a longer row would
            lose its end, which is the caller's to know.
        mask: `ResearchMask` or `ProductionMask`, its tensors on the device of q.
        backend: "triton" (a CUDA GPU, or TRITON_INTERPRET=1) or "eager" (plain PyTorch, anywhere).
        dot_precision: for float32: "ieee", "tf32", or "tf32x3" (three tf32 products, close to float32's error).

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
    require_triton(q.device)
    if q.dtype not in TRITON_DTYPES:
        raise ValueError(f"q.dtype={q.dtype}: backend='triton' takes {_names(TRITON_DTYPES)}")
    launcher = importlib.import_module("kernels.hstu_attention.triton_launch")
    return launcher.launch(q, k, v, offsets, max_seq_len, mask, dot_precision)


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _require(condition: bool, field: str, value: object, fix: str) -> None:
    if not condition:
        raise ValueError(f"{field}={value!r}: {fix}")


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
    """Shapes, types and devices: everything that needs no value from the device."""
    _require(backend in BACKENDS, "backend", backend, f"choose one of {BACKENDS}")
    _require(
        dot_precision in DOT_PRECISIONS, "dot_precision", dot_precision, f"choose one of {DOT_PRECISIONS}"
    )
    _require(q.dim() == 3, "q.shape", tuple(q.shape), "must be (L, H, K)")
    _require(k.shape == q.shape, "k.shape", tuple(k.shape), f"must be q's, {tuple(q.shape)}")
    _require(
        v.dim() == 3 and v.shape[:2] == q.shape[:2],
        "v.shape",
        tuple(v.shape),
        f"must be ({q.size(0)}, {q.size(1)}, V)",
    )
    for name, x in (("q", q), ("k", k), ("v", v)):
        _require(
            x.size(2) <= LARGEST_HEAD, f"{name}.shape", tuple(x.shape), f"heads have up to {LARGEST_HEAD}"
        )
        _require(x.size(2) >= 1 and x.size(1) >= 1, f"{name}.shape", tuple(x.shape), "has an empty head")
        _require(
            x.stride(2) == 1 or x.size(2) == 1,
            f"{name}.stride()",
            x.stride(),
            "make the last axis contiguous",
        )
        _require(x.dtype == q.dtype, f"{name}.dtype", x.dtype, f"must be q's, {q.dtype}")
        _require(x.device == q.device, f"{name}.device", str(x.device), f"must be q's, {q.device}")
    is_offsets = offsets.dim() == 1 and offsets.numel() >= 1 and offsets.dtype in (torch.int32, torch.int64)
    described = (tuple(offsets.shape), str(offsets.dtype))
    _require(is_offsets, "offsets", described, "must be (B + 1,) int32 or int64")
    _require(max_seq_len >= 0, "max_seq_len", max_seq_len, "must be at least 0")
    _require(mask.divisor > 0, "mask.divisor", mask.divisor, "must be positive")
    half = q.dtype in (torch.float16, torch.bfloat16)
    _require(
        not half or dot_precision == "ieee", "dot_precision", dot_precision, f"{q.dtype} has 'ieee' only"
    )
    if isinstance(mask, ResearchMask):
        _check_research(mask, offsets.numel() - 1, max_seq_len)
    else:
        _check_production(mask, q.size(0), offsets.numel() - 1)
    tensors = {"offsets": offsets, **{f"mask.{name}": value for name, value in vars(mask).items()}}
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor):
            _require(x.device == q.device, f"{name}.device", str(x.device), f"must be q's, {q.device}")
            _require(
                x.stride(-1) == 1 or x.numel() <= 1, f"{name}.stride()", x.stride(), "make it contiguous"
            )


def _check_research(mask: ResearchMask, sequences: int, max_seq_len: int) -> None:
    shape = tuple(mask.position_weights.shape)
    _require(len(shape) == 1 and shape[0] % 2 == 1, "mask.position_weights.shape", shape, "must be (2W - 1,)")
    _require(
        max_seq_len <= mask.width, "max_seq_len", max_seq_len, f"the position weights serve {mask.width}"
    )
    together = (mask.timestamps is None) == (mask.time_weights is None)
    _require(together, "mask.time_weights", mask.time_weights, "give timestamps and time_weights, or neither")
    if mask.timestamps is not None and mask.time_weights is not None:
        shape = tuple(mask.timestamps.shape)
        fits = len(shape) == 2 and shape[0] == sequences and shape[1] >= max_seq_len
        _require(fits, "mask.timestamps.shape", shape, f"must be ({sequences}, at least {max_seq_len})")
        _require(
            mask.timestamps.dtype == torch.int64, "mask.timestamps.dtype", mask.timestamps.dtype, "use int64"
        )
        shape = tuple(mask.time_weights.shape)
        fits = len(shape) == 1 and shape[0] >= 2
        _require(fits, "mask.time_weights.shape", shape, "must be (num_buckets + 1,)")


def _check_production(mask: ProductionMask, length: int, sequences: int) -> None:
    _require(mask.max_attn_len >= 0, "mask.max_attn_len", mask.max_attn_len, "0 is no window")
    _require(mask.contextual_seq_len >= 0, "mask.contextual_seq_len", mask.contextual_seq_len, "0 is none")
    if mask.attn_scale is not None:
        shape = tuple(mask.attn_scale.shape)
        _require(shape == (length,), "mask.attn_scale.shape", shape, f"must be ({length},)")
    if mask.num_targets is not None:
        shape = tuple(mask.num_targets.shape)
        _require(shape == (sequences,), "mask.num_targets.shape", shape, f"must be ({sequences},)")
        is_int = mask.num_targets.dtype in (torch.int32, torch.int64)
        _require(is_int, "mask.num_targets.dtype", mask.num_targets.dtype, "use int32 or int64")
