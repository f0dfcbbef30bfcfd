"""`hstu_attention`: one operation, two masks, and backends by name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from types import ModuleType

import torch

from kernels.head_sizes import LARGEST_HEAD
from kernels.hstu_attention.argument_checks import (
    bad,
    check_kinds,
    check_mask_numbers,
    check_out,
    check_whole,
)
from kernels.hstu_attention.choice import faster_backend
from kernels.hstu_attention.eager import hstu_attention_eager
from kernels.hstu_attention.hopper_launch import launch_call as launch_hopper
from kernels.hstu_attention.hopper_launch import refusal
from kernels.hstu_attention.layout import Call, Layout, layout_of
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.schedule_checks import misfit
from kernels.hstu_attention.schedules import Schedule

BACKENDS = ("triton", "hopper", "auto", "eager")
# Rounding of float32 factors of a dot product. Half types have one way, "ieee".
DOT_PRECISIONS = ("ieee", "tf32", "tf32x3")
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def missing_triton() -> str:
    """The reason for which triton cannot run here, or an empty text."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install triton, or use backend='eager'"
    return ""


def require_triton(x: torch.Tensor) -> None:
    """Raise RuntimeError, with the reason and the fix, unless triton supports `x`'s device and type."""
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


def dot_precision_of_torch(x: torch.Tensor) -> str:
    """The current dot precision of PyTorch's own products of tensors like `x`.

    Reads `fp32_precision`, which is right for both switches: `allow_tf32` raises after the newer one was set.
    """
    if x.is_cuda and x.dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32":
        return "tf32"
    return "ieee"


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
    out: torch.Tensor | None = None,
    schedule: Schedule | None = None,
) -> torch.Tensor:
    """HSTU's pointwise attention over jagged sequences, without an (N, N) tensor in memory.

    Args:
        q, k: (L, H, K), the L rows of all sequences in order; K at most 256. The last axis is contiguous. The
            others may be strided, so that slices of one projection need no copy.
        v: (L, H, V) in the type of q; V at most 256.
        offsets: (B + 1,) int32 or int64 on the device of q, ascending; sequences may be empty. Rows in
            front of the first offset and behind the last one are not computed.
        max_seq_len: length of the longest row, or more. It is a number on the host, so that a launch does not
            wait for the GPU. The kernel ignores the end of a longer row; the caller must prevent this. The
            eager form reads the offsets, and refuses such a row, and offsets that do not ascend.
        mask: `ResearchMask` or `ProductionMask`, its tensors on the device of q.
        backend: "triton" (a CUDA GPU, or TRITON_INTERPRET=1), "hopper" (CUDA C++ for compute capability 9.0;
            `hopper_launch.refusal` says for which calls), "auto" (the faster one of both by the call's sizes
            and, where these leave it open, a measurement at the first call of a kind, see `choice`) or
            "eager" (plain PyTorch, anywhere).
        dot_precision: for float32: "ieee", "tf32", or "tf32x3" (three tf32 products, close to float32's
            error).
        out: where to write the result, like v; its first two axes may be strided. It may not overlap k or v.
        schedule: block sizes and compiler options of backend="triton", as from `search.search_schedule`; or
            None for those that the rules of `schedules` derive.

    Returns:
        (L, H, V) in the type of q, or `out`; sums are float32 in the kernel.

    Raises:
        ValueError: an argument does not fit; the message has its value and the fix.
        RuntimeError: the backend cannot run here, or has no backward and a gradient is wanted.
    """
    call = Call(q, k, v, offsets, max_seq_len, mask)
    layout = known_layout(call)
    if (backend, dot_precision) not in layout.accepted:
        check_layout(call, backend, dot_precision)
        layout.accepted.add((backend, dot_precision))
    _check_sizes(call)
    if backend != "eager":
        require_no_gradients(backend, (q, k, v, *tensors_of_mask(mask).values()))
    if schedule is not None:
        _check_schedule(schedule, call, backend)
    if out is None:
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
    else:
        check_out(out, v.size(0), v, (k, v))
    if backend == "eager":
        return hstu_attention_eager(q, k, v, offsets, mask, out, max_seq_len)
    if backend == "auto":
        backend = faster_backend(call, out)
    if backend == "hopper":
        if reason := refusal(call, out):
            raise RuntimeError(f"backend='hopper': {reason}; use backend='triton'")
        return launch_hopper(call, out)
    require_triton(q)
    return launcher().launch_call(call, layout, dot_precision, out, schedule)


@functools.cache
def launcher() -> ModuleType:
    """Imports triton."""
    return importlib.import_module("kernels.hstu_attention.triton_launch")


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def known_layout(call: Call) -> Layout:
    """`layout_of`, with a clear error for arguments of another kind."""
    try:
        return layout_of(call)
    except (AttributeError, RuntimeError):
        check_kinds(call)
        raise


def tensors_of_mask(mask: ResearchMask | ProductionMask) -> dict[str, torch.Tensor]:
    """The tensors of a mask by name, such as `mask.timestamps`."""
    return {f"mask.{name}": x for name, x in vars(mask).items() if isinstance(x, torch.Tensor)}


def require_no_gradients(backend: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError if PyTorch records gradients of one of the tensors: no kernel has a backward."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise RuntimeError(
            f"backend={backend!r} has no backward, but an input requires a gradient; use torch.no_grad(), or "
            "backend='eager'"
        )


def check_layout(call: Call, backend: str, dot_precision: str) -> None:
    """Check the properties that `layout.layout_of` distinguishes: types, devices, strides, heads."""
    q, k, v, offsets, _, mask = call
    if backend not in BACKENDS:
        raise bad("backend", backend, f"choose one of {BACKENDS}")
    if dot_precision not in DOT_PRECISIONS:
        raise bad("dot_precision", dot_precision, f"choose one of {DOT_PRECISIONS}")
    if dot_precision != "ieee" and q.dtype != torch.float32:
        raise bad("dot_precision", dot_precision, f"{q.dtype} has 'ieee' only")
    if dot_precision != "ieee" and backend == "eager":
        raise bad("dot_precision", dot_precision, "the eager backend has 'ieee' only")
    if not q.dtype.is_floating_point:
        raise bad("q.dtype", q.dtype, "use a floating type")
    if backend in ("triton", "auto") and q.dtype not in TRITON_DTYPES:
        raise bad("q.dtype", q.dtype, f"backend={backend!r} takes {_names(TRITON_DTYPES)}")
    if q.dim() != 3:
        raise bad("q.shape", tuple(q.shape), "must be (L, H, K)")
    if k.dim() != 3 or k.shape[1:] != q.shape[1:]:
        raise bad("k.shape", tuple(k.shape), f"must be q's, {tuple(q.shape)}")
    if v.dim() != 3 or v.size(1) != q.size(1):
        raise bad("v.shape", tuple(v.shape), f"must be ({q.size(0)}, {q.size(1)}, V)")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not (x.size(1) >= 1 and 1 <= x.size(2) <= LARGEST_HEAD):
            raise bad(f"{name}.shape", tuple(x.shape), f"needs heads of 1 to {LARGEST_HEAD} elements")
        if x.layout != torch.strided:
            raise bad(f"{name}.layout", x.layout, "must be a strided tensor")
        if x.stride(2) != 1 and x.size(2) > 1:
            raise bad(f"{name}.stride()", x.stride(), "make the last axis contiguous")
        if x.dtype != q.dtype:
            raise bad(f"{name}.dtype", x.dtype, f"must be q's, {q.dtype}")
    if offsets.dim() != 1 or offsets.dtype not in (torch.int32, torch.int64):
        raise bad("offsets", (tuple(offsets.shape), str(offsets.dtype)), "must be (B + 1,) int32 or int64")
    if isinstance(mask, ResearchMask):
        _check_research_layout(mask)
    elif mask.num_targets is not None and mask.num_targets.dtype not in (torch.int32, torch.int64):
        raise bad("mask.num_targets.dtype", mask.num_targets.dtype, "use int32 or int64")
    elif mask.attn_scale is not None and mask.attn_scale.is_complex():
        raise bad("mask.attn_scale.dtype", mask.attn_scale.dtype, "use real numbers")
    for name, x in {"k": k, "v": v, "offsets": offsets, **tensors_of_mask(mask)}.items():
        if x.device != q.device:
            raise bad(f"{name}.device", str(x.device), f"must be q's, {q.device}")
        if x.dim() == 1 and not x.is_contiguous():
            raise bad(f"{name}.stride()", x.stride(), "make it contiguous")


def _check_research_layout(mask: ResearchMask) -> None:
    if mask.position_weights.dim() != 1:
        raise bad("mask.position_weights.shape", tuple(mask.position_weights.shape), "must be (2W - 1,)")
    if not mask.position_weights.is_floating_point():
        raise bad("mask.position_weights.dtype", mask.position_weights.dtype, "use a floating type")
    if (mask.timestamps is None) != (mask.time_weights is None):
        raise bad("mask.time_weights", mask.time_weights, "give timestamps and time_weights, or neither")
    if mask.timestamps is None or mask.time_weights is None:
        return
    if mask.timestamps.dtype != torch.int64:
        raise bad("mask.timestamps.dtype", mask.timestamps.dtype, "use int64")
    if mask.time_weights.dim() != 1 or mask.time_weights.numel() < 2:
        raise bad("mask.time_weights.shape", tuple(mask.time_weights.shape), "must be (num_buckets + 1,)")
    if mask.time_weights.dtype != mask.position_weights.dtype:
        wanted = f"must be position_weights', {mask.position_weights.dtype}"
        raise bad("mask.time_weights.dtype", mask.time_weights.dtype, wanted)


def _check_schedule(schedule: Schedule, call: Call, backend: str) -> None:
    if not isinstance(schedule, Schedule):
        raise bad("schedule", schedule, "use a Schedule, as from search_schedule, or None")
    if backend != "triton":
        raise bad("schedule", schedule, f"backend={backend!r} has none; use None")
    if reason := misfit(schedule, call):
        raise ValueError(f"schedule.{reason}")


def _check_sizes(call: Call) -> None:
    """Check the sizes that change with the batch, without a value from the device."""
    q, k, v, offsets, max_seq_len, mask = call
    shape = q.shape
    if k.shape != shape:
        raise bad("k.shape", tuple(k.shape), f"must be q's, {tuple(shape)}")
    if v.shape[0] != shape[0]:
        raise bad("v.shape", tuple(v.shape), f"must be ({shape[0]}, {shape[1]}, V)")
    sequences = offsets.numel() - 1
    if sequences < 0:
        raise bad("offsets", tuple(offsets.shape), "must be (B + 1,) int32 or int64")
    check_whole("max_seq_len", max_seq_len, "must be a whole number of at least 0")
    check_mask_numbers(mask)
    if isinstance(mask, ResearchMask):
        _check_research(mask, sequences, max_seq_len)
    else:
        _check_production(mask, shape[0], sequences)


def _check_research(mask: ResearchMask, sequences: int, max_seq_len: int) -> None:
    weights, times = mask.position_weights, mask.timestamps
    if weights.numel() % 2 != 1:
        raise bad("mask.position_weights.shape", tuple(weights.shape), "must be (2W - 1,)")
    if max_seq_len > mask.width:
        raise bad("max_seq_len", max_seq_len, f"the position weights serve {mask.width}")
    if times is None:
        return
    shape = tuple(times.shape)
    if len(shape) != 2 or shape[0] != sequences or shape[1] < max_seq_len:
        raise bad("mask.timestamps.shape", shape, f"must be ({sequences}, at least {max_seq_len})")
    if shape[1] > 1 and times.stride(1) != 1:
        raise bad("mask.timestamps.stride()", times.stride(), "make it contiguous")


def _check_production(mask: ProductionMask, length: int, sequences: int) -> None:
    if mask.attn_scale is not None and mask.attn_scale.shape != (length,):
        raise bad("mask.attn_scale.shape", tuple(mask.attn_scale.shape), f"must be ({length},)")
    if mask.num_targets is not None and mask.num_targets.shape != (sequences,):
        raise bad("mask.num_targets.shape", tuple(mask.num_targets.shape), f"must be ({sequences},)")
