"""HSTU attention of new rows against cached keys and values of the production model."""

from __future__ import annotations

import torch

from kernels.hstu_attention.argument_checks import (
    bad,
    check_kinds,
    check_mask,
    check_mask_numbers,
    check_out,
    check_whole,
)
from kernels.hstu_attention.eager import hstu_attention_eager_cached
from kernels.hstu_attention.interface import (
    check_layout,
    launcher,
    require_no_gradients,
    require_triton,
    tensors_of_mask,
)
from kernels.hstu_attention.layout import Call, layout_of
from kernels.hstu_attention.masks import ProductionMask
from kernels.hstu_attention.new_rows import Appended


def hstu_attention_cached(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    firsts: torch.Tensor,
    max_seq_len: int,
    max_new: int,
    mask: ProductionMask,
    *,
    backend: str = "triton",
    dot_precision: str = "ieee",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`hstu_attention` of each sequence's last rows, with the keys and values of all its rows in a cache.

    With the same schedule the result has the bits of a call over all rows.

    Args:
        q: (L, H, K), the new rows of all sequences in order.
        k, v: (B, capacity, H, K) and (B, capacity, H, V), the new rows' included; anything behind a
            sequence's last row. The last axis is contiguous, and sequences lie `capacity` rows apart.
        offsets: (B + 1,) int32 or int64, of the new rows.
        firsts: (B,) int32 or int64, the position of each sequence's first new row.
        max_seq_len: rows of the longest sequence with its new ones, or more; at most `capacity`.
        max_new: most new rows of a sequence, or more.
        mask: of all rows; its attn_scale, (L,), has the new rows' factors.
        backend: "triton" or "eager", see `hstu_attention`.
        dot_precision, out: see `hstu_attention`.

    Returns:
        (L, H, V) in the type of q, or `out`.

    Raises:
        ValueError: an argument does not fit; the message has its value and the fix.
        RuntimeError: the backend cannot run here.
    """
    if backend not in ("triton", "eager"):
        raise bad("backend", backend, "choose 'triton' or 'eager'")
    # `HSTUForward.extend` has the other mask.
    check_mask(mask, (ProductionMask,))
    check_kinds(Call(q, k, v, offsets, max_seq_len, mask))
    check_mask_numbers(mask)
    check_whole("max_seq_len", max_seq_len, "must be a whole number")
    check_whole("max_new", max_new, f"must be a whole number from 0 to max_seq_len={max_seq_len}")
    sequences = offsets.numel() - 1
    if sequences < 0:
        raise bad("offsets", tuple(offsets.shape), "must be (B + 1,) int32 or int64")
    for name, x in (("k", k), ("v", v)):
        if x.dim() != 4 or x.size(0) != sequences or x.size(1) != k.size(1):
            raise bad(f"{name}.shape", tuple(x.shape), f"must be ({sequences}, capacity, H, dim)")
        if x.stride(0) != x.size(1) * x.stride(1):
            raise bad(f"{name}.stride()", x.stride(), "sequences must lie `capacity` rows apart")
    capacity = k.size(1)
    if firsts.shape != (sequences,) or firsts.dtype not in (torch.int32, torch.int64):
        raise bad(
            "firsts", (tuple(firsts.shape), str(firsts.dtype)), f"must be ({sequences},) int32 or int64"
        )
    if firsts.device != q.device or not firsts.is_contiguous():
        raise bad("firsts", (str(firsts.device), firsts.stride()), f"must be contiguous on {q.device}")
    if not 0 <= max_new <= max_seq_len <= capacity:
        raise bad(
            "max_new", max_new, f"needs 0 <= max_new <= max_seq_len={max_seq_len} <= {capacity}, the capacity"
        )
    call = Call(q, k.flatten(0, 1), v.flatten(0, 1), offsets, max_seq_len, mask)
    check_layout(call, backend, dot_precision)
    if backend != "eager":
        require_no_gradients(backend, (q, k, v, *tensors_of_mask(mask).values()))
    for name, x, shape in (
        ("mask.attn_scale", mask.attn_scale, (q.size(0),)),
        ("mask.num_targets", mask.num_targets, (sequences,)),
    ):
        if x is not None and x.shape != shape:
            raise bad(f"{name}.shape", tuple(x.shape), f"must be {shape}")
    if out is None:
        out = v.new_empty((q.size(0), *v.shape[2:]))
    else:
        check_out(out, q.size(0), v, (call.k, call.v))
    if backend == "eager":
        return hstu_attention_eager_cached(q, k, v, offsets, firsts, mask, out)
    require_triton(q)
    appended = Appended(firsts, capacity, max_new)
    return launcher().launch_call(call, layout_of(call), dot_precision, out, appended=appended)
