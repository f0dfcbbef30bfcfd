"""What of a call stays the same from batch to batch: found once, checked once, compiled once.

A short row's kernel takes some ten microseconds, and Python a quarter of one for each thing that it asks of a
tensor. So a call asks for its layout alone, all of it at once, and what follows from a layout is kept with
it. Sizes that change with the batch, L rows, B sequences and N timestamps, are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from kernels.hstu_attention.masks import ProductionMask, ResearchMask

# More than any program has; a layout is a stride away from another one.
_MOST_LAYOUTS = 1024


class Call(NamedTuple):
    """The arguments of `interface.hstu_attention` that are no choice of how it is computed."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    offsets: torch.Tensor
    max_seq_len: int
    mask: ResearchMask | ProductionMask


@dataclass(eq=False)
class Layout:
    """What is known of all calls of one layout.

    Attributes:
        accepted: the backends and dot precisions with which it has passed the checks that no size decides.
        plans: what `triton_launch` keeps for its launches.
    """

    accepted: set[tuple[str, str]] = field(default_factory=set)
    plans: dict[tuple[object, ...], object] = field(default_factory=dict)


_LAYOUTS: dict[tuple[object, ...], Layout] = {}


def layout_of(call: Call) -> Layout:
    """The layout of a call: its tensors' types, devices and strides, their heads, and which the mask has."""
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
    found = _LAYOUTS.get(facts)
    if found is None:
        while len(_LAYOUTS) >= _MOST_LAYOUTS:
            _LAYOUTS.pop(next(iter(_LAYOUTS)))
        found = _LAYOUTS[facts] = Layout()
    return found


def _facts_of_mask(mask: ResearchMask | ProductionMask) -> tuple[object, ...]:
    if isinstance(mask, ProductionMask):
        if mask.num_targets is None and mask.attn_scale is None:
            return (ProductionMask,)
        return (ProductionMask, _vector(mask.num_targets), _vector(mask.attn_scale))
    times = mask.timestamps
    facts = (ResearchMask, _vector(mask.position_weights), _vector(mask.time_weights), mask.num_buckets)
    return (*facts, mask.bucket_divisor, None if times is None else (times.dtype, times.device, times.dim()))


def _vector(x: torch.Tensor | None) -> tuple[object, ...] | None:
    """A vector is contiguous, or not, whatever its length."""
    return None if x is None else (x.dtype, x.device, x.dim(), x.is_contiguous())
