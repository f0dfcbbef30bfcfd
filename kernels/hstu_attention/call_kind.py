"""The kind of a call, as text: what the fastest form of it depends on."""

from __future__ import annotations

import math

import torch

from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.schedules import takes_descriptor

# Lengths up to here count by themselves: they decide how many sequences a program takes.
_EXACT = 64


def key_of(call: Call, dot_precision: str) -> str:
    """What a search's result depends on, as text.

    GPU, Triton, types, heads, and the mask's options count by themselves. Rows, sequences and the longest row
    count as steps of a factor of the square root of two. No value on the device is read: the numbers of
    targets do not count.
    """
    q, k, v, offsets, max_seq_len, mask = call
    sequences = offsets.numel() - 1
    facts: dict[str, object] = {
        **device_facts(q.device),
        "type": str(q.dtype).removeprefix("torch."),
        "dot": dot_precision,
        "heads": f"{q.size(1)} x {q.size(2)}, {v.size(2)}",
        "descriptors": takes_descriptor(k) and takes_descriptor(v),
        "queries side by side": takes_descriptor(q),
        **_mask_facts(mask),
        "rows": _step(q.size(0)),
        "sequences": _step(sequences),
        "longest": max_seq_len if max_seq_len <= _EXACT else f"step {_step(max_seq_len)}",
    }
    return "; ".join(f"{name} {value}" for name, value in facts.items())


def _mask_facts(mask: ResearchMask | ProductionMask) -> dict[str, object]:
    if isinstance(mask, ResearchMask):
        return {"mask": "research", "times": mask.timestamps is not None}
    return {
        "mask": "production",
        "targets": mask.num_targets is not None,
        "scale": mask.attn_scale is not None,
        "window": mask.max_attn_len,
        "contextual": mask.contextual_seq_len,
    }


def _step(number: int) -> int:
    return round(2 * math.log2(max(1, number)))


def device_facts(device: torch.device) -> dict[str, object]:
    """A device's kind, and the compiler's version."""
    import triton

    if device.type != "cuda":
        return {"device": device.type, "triton": triton.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "triton": triton.__version__,
    }
