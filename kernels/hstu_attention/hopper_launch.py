"""Launches of the CUDA C++ kernels in `hopper/`: which calls they take, and their arguments.

The first call compiles the kernels on the machine; see `kernels.cuda_build`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from kernels.cuda_build import HOPPER_FLAGS, launch, launcher, multiprocessors, not_hopper
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask

SOURCE = Path(__file__).parent / "hopper" / "attention.cu"
CUDA_FLAGS = HOPPER_FLAGS
DTYPES = (torch.float16, torch.bfloat16)
HEADS = (32, 64, 128)
SCALES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
TILE_ROWS = 128
# Bytes of a tile in the work list, and of the list's header.
_TILE, _HEADER = 16, 16
# With a window, tiles cost the same, and neighbours share columns: groups of so many bytes stay together.
_GROUP_BYTES = 24 << 20
_GROUPS = 64
_ERRORS = {
    -1: "the driver refuses a tensor map",
    -2: "this size of heads is not compiled",
    -3: "the driver has no cuTensorMapEncodeTiled",
}


class Arguments(ctypes.Structure):
    """`hopper::Call`, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "offsets", "num_targets", "attn_scale")),
        ("workspace", ctypes.c_void_p),
        *((f"{name}_{axis}", ctypes.c_int64) for name in ("q", "k", "v", "out") for axis in ("row", "head")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("heads", "size", "sequences", "max_seq_len")),
        *((name, ctypes.c_int32) for name in ("is_half", "wide_offsets", "wide_targets", "scale_type")),
        *((name, ctypes.c_int32) for name in ("contextual", "window", "multiprocessors")),
        *((name, ctypes.c_int32) for name in ("group_rows", "groups")),
        ("alpha", ctypes.c_float),
        ("scale", ctypes.c_float),
    ]


def refusal(call: Call, out: torch.Tensor | None = None) -> str:
    """The reason for which the kernels do not take this call, or an empty text. Reads no tensor's values.

    They take float16 and bfloat16, a `ProductionMask`, equal heads of `HEADS` elements for keys and values,
    and rows and heads aligned to 16 bytes, on a GPU of compute capability 9.0.
    """
    q, k, v, _, _, mask = call
    if not isinstance(mask, ProductionMask):
        return "it has no bias, which the research mask needs"
    if q.dtype not in DTYPES:
        return f"it takes float16 and bfloat16, not {q.dtype}"
    if q.size(2) not in HEADS or v.size(2) != q.size(2):
        return f"it takes equal heads of {HEADS} elements, not {q.size(2)} and {v.size(2)}"
    if mask.attn_scale is not None and mask.attn_scale.dtype not in SCALES:
        return f"it takes no attn_scale of {mask.attn_scale.dtype}"
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        if x is not None and (x.data_ptr() % 16 or any(stride % 8 for stride in x.stride()[:2])):
            return f"{name} is not aligned to 16 bytes: address {x.data_ptr()}, strides {tuple(x.stride())}"
    return not_hopper(q.device)


@functools.cache
def _library() -> Callable[..., int]:
    """The launch function, compiled at the first call on a machine in about a minute."""
    return launcher("tripy_recsys_hstu_hopper", SOURCE, CUDA_FLAGS, "hopper_attention")


def arguments_of(call: Call, out: torch.Tensor, workspace: torch.Tensor, multiprocessors: int) -> Arguments:
    """The arguments of a call that `refusal` takes."""
    q, k, v, offsets, max_seq_len, mask = call
    assert isinstance(mask, ProductionMask)
    targets, scale = mask.num_targets, mask.attn_scale
    pointers = (0 if x is None else x.data_ptr() for x in (q, k, v, out, offsets, targets, scale, workspace))
    rows, heads, size = q.shape
    return Arguments(
        *pointers,
        *(stride for x in (q, k, v, out) for stride in x.stride()[:2]),
        rows,
        heads,
        size,
        offsets.numel() - 1,
        # No row is longer than all of them.
        min(max_seq_len, rows),
        q.dtype == torch.float16,
        offsets.dtype == torch.int64,
        targets is not None and targets.dtype == torch.int64,
        0 if scale is None else SCALES[scale.dtype],
        mask.contextual_seq_len,
        mask.max_attn_len,
        multiprocessors,
        max(1, _GROUP_BYTES // (4 * heads * size)),
        _GROUPS if mask.max_attn_len else 1,
        mask.alpha,
        1.0 / mask.divisor,
    )


def launch_call(call: Call, out: torch.Tensor) -> torch.Tensor:
    """Write the result to `out`, for arguments that `interface.hstu_attention` and `refusal` have checked.

    Raises:
        RuntimeError: the kernels do not build or do not start.
    """
    q, sequences = call.q, call.offsets.numel() - 1
    if not (q.size(0) and sequences and call.max_seq_len):
        return out
    # A sequence has at most one tile that is not full.
    tiles = q.size(0) // TILE_ROWS + sequences
    workspace = torch.empty(_HEADER + _TILE * tiles, dtype=torch.uint8, device=q.device)
    arguments = arguments_of(call, out, workspace, multiprocessors(q.device))
    launch(_library(), arguments, q.device, _ERRORS)
    return out
