"""Layouts of calls: properties that many batches share, checked once and compiled once.

The kernel of a short row takes about ten microseconds, and each query of a tensor by Python a quarter of one.
A call therefore computes its layout only, and the layout caches all that follows from it. Sizes that change
with the batch (L rows, B sequences, N timestamps) do not belong to a layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from kernels.hstu_attention.masks import ProductionMask, ResearchMask

# More than a program has: strides alone make another layout.
_MOST_LAYOUTS = 1024


class Call(NamedTuple):
    """The arguments of `interface.hstu_attention` without backend and dot precision."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    offsets: torch.Tensor
    max_seq_len: int
    mask: ResearchMask | ProductionMask


@dataclass(eq=False)
class Layout:
    """Cached results for all calls of one layout.

    Attributes:
        accepted: backends and dot precisions that have passed the checks of the layout.
        plans: launch plans of `triton_launch`, by key.
    """

    accepted: set[tuple[str, str]] = field(default_factory=set)
    plans: dict[tuple[object, ...], object] = field(default_factory=dict)


_LAYOUTS: dict[tuple[object, ...], Layout] = {}


def layout_of(call: Call) -> Layout:
    """The layout of a call: types, devices, strides and heads of its tensors and of the mask's."""
    q, k, v, offsets, _, mask = call
    facts = (
        q.dtype,
        q.device,
        q.stride(),
        q.shape[1:],
        k.dtype,
        k.device,
        k.stride(),
        k.shape[1:],
        v.dtype,
        v.device,
        v.stride(),
        v.shape[1:],
        _vector(offsets),
        _facts_of_mask(mask),
    )
    layout = _LAYOUTS.get(facts)
    if layout is None:
        while len(_LAYOUTS) >= _MOST_LAYOUTS:
            _LAYOUTS.pop(next(iter(_LAYOUTS)))
        layout = _LAYOUTS[facts] = Layout()
    return layout


def _facts_of_mask(mask: ResearchMask | ProductionMask) -> tuple[object, ...]:
    if isinstance(mask, ProductionMask):
        if mask.num_targets is None and mask.attn_scale is None:
            return (ProductionMask,)
        return (ProductionMask, _vector(mask.num_targets), _vector(mask.attn_scale))
    times = mask.timestamps
    facts = (ResearchMask, _vector(mask.position_weights), _vector(mask.time_weights), mask.num_buckets)
    return (*facts, mask.bucket_divisor, None if times is None else (times.dtype, times.device, times.dim()))


def _vector(x: torch.Tensor | None) -> tuple[object, ...] | None:
    """Properties of a vector that do not depend on its length."""
    return None if x is None else (x.dtype, x.device, x.dim(), x.is_contiguous())
