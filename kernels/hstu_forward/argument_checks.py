"""Checks of a forward's state dict, settings and batches, without a value from the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import torch

from kernels.hstu_attention.argument_checks import bad, check_whole
from kernels.hstu_forward.parameters import Settings

_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.int32, torch.int64)
_ITEMS = "_embedding_module._item_emb.weight"


def check_settings(settings: Settings) -> None:
    """Raise ValueError unless the settings are numbers in their ranges."""
    for field in fields(settings):
        value, name = getattr(settings, field.name), f"settings.{field.name}"
        if field.name in ("num_heads", "attention_dim", "linear_dim"):
            check_whole(name, value, "must be a whole number of at least 1")
        if not (value > 0 and math.isfinite(value)):
            raise bad(name, value, "must be positive and finite")


def check_state(state: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless the floating-point tensors have one of the types, and one device."""
    if _ITEMS not in state:
        raise ValueError(f"state dict: {_ITEMS} is missing; give one of research HSTU's public names")
    items = state[_ITEMS]
    if items.dtype not in _TYPES:
        raise ValueError(f"{_ITEMS}: {items.dtype}; use float32, float16 or bfloat16")
    for name, x in state.items():
        if x.is_floating_point() and (x.dtype != items.dtype or x.device != items.device):
            raise ValueError(
                f"{name}: {x.dtype} on {x.device}; use the items' {items.dtype} on {items.device}"
            )
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError(
                f"{name}: requires a gradient, but the kernels have no backward; give model.state_dict(), or "
                "use torch.no_grad()"
            )


def check_batch(
    ids: torch.Tensor,
    offsets: torch.Tensor,
    timestamps: torch.Tensor,
    max_seq_len: int,
    device: torch.device,
    firsts: torch.Tensor | None = None,
) -> None:
    """Raise ValueError unless the tensors of a batch have their types, axes and strides, on `device`."""
    check_whole("max_seq_len", max_seq_len, "must be a whole number of at least 0")
    vectors = {"ids": ids, "offsets": offsets} | ({} if firsts is None else {"firsts": firsts})
    for name, x in vectors.items():
        if x.dim() != 1 or x.dtype not in _WHOLE or not x.is_contiguous():
            value = (tuple(x.shape), str(x.dtype), x.stride())
            raise bad(name, value, "must be a contiguous vector of int32 or int64")
    if offsets.numel() == 0:
        raise bad("offsets", tuple(offsets.shape), "must be (B + 1,)")
    sequences, shape = offsets.numel() - 1, tuple(timestamps.shape)
    if len(shape) != 2 or shape[0] != sequences or timestamps.dtype != torch.int64:
        value = (shape, str(timestamps.dtype))
        raise bad("timestamps", value, f"must be ({sequences}, N) int64, a row for each sequence of offsets")
    if shape[1] > 1 and timestamps.stride(1) != 1:
        raise bad("timestamps.stride()", timestamps.stride(), "make the last axis contiguous")
    if firsts is not None and firsts.numel() != sequences:
        raise bad("firsts", tuple(firsts.shape), f"must be ({sequences},)")
    for name, x in {**vectors, "timestamps": timestamps}.items():
        if x.device != device:
            raise bad(f"{name}.device", str(x.device), f"must be the model's, {device}")
