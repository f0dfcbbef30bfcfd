"""Whether a schedule that did not come from the rules can run a call."""

from __future__ import annotations

import functools
from dataclasses import fields

import torch

from kernels.hstu_attention.ahead import refusal
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask
from kernels.hstu_attention.schedules import HALF_TYPES, MOST_SPLITS, Schedule, takes_descriptor

_BLOCKS = (16, 32, 64, 128, 256)
# Values of a schedule's fields, or the least and the largest one.
_CHOICES: dict[str, tuple[object, ...]] = {
    "block_m": _BLOCKS,
    "block_n": _BLOCKS,
    "num_warps": (1, 2, 4, 8, 16),
    "sigmoid": ("exact", "half"),
    "use_tma": (False, True),
    "one_loop": (False, True),
    "ahead": (False, True),
}
_RANGES = {
    "num_stages": (1, 8),
    "group": (1, 1 << 20),
    "heads": (1, 1 << 20),
    "splits": (1, MOST_SPLITS),
    "registers": (0, 255),
    "packed": (0, 256),
}
_TYPES = {field.name: type(getattr(Schedule(16, 16, 1, 1), field.name)) for field in fields(Schedule)}


def fault_of(schedule: Schedule) -> str:
    """The first field whose value no attention kernel has, with its fix; or an empty text."""
    for name, kind in _TYPES.items():
        value = getattr(schedule, name)
        if name in _CHOICES:
            # True == 1, and 16.0 == 16.
            if type(value) is not kind or value not in _CHOICES[name]:
                return f"{name}={value!r}: choose one of {_CHOICES[name]}"
        else:
            least, most = _RANGES[name]
            if type(value) is not kind or not least <= value <= most:
                return f"{name}={value!r}: use a whole number from {least} to {most}"
    if schedule.packed and schedule.block_m != schedule.block_n:
        return f"block_n={schedule.block_n}: use block_m, {schedule.block_m}, for a schedule with packed"
    if schedule.packed and (schedule.use_tma or schedule.splits > 1):
        return f"packed={schedule.packed}: use 0 with use_tma or splits"
    if schedule.one_loop and (schedule.packed or schedule.splits > 1):
        return "one_loop=True: use False with packed or splits"
    if schedule.ahead:
        return _fault_ahead(schedule)
    return ""


def _fault_ahead(schedule: Schedule) -> str:
    """The first field whose value the form of `ahead` lacks."""
    needed = {"use_tma": True, "sigmoid": "half", "heads": 1, "splits": 1, "packed": 0, "one_loop": False}
    for name, value in needed.items():
        if getattr(schedule, name) != value:
            return f"{name}={getattr(schedule, name)!r}: use {value!r} with ahead"
    if schedule.num_warps not in (4, 8) or schedule.block_m != 16 * schedule.num_warps:
        return f"block_m={schedule.block_m}: use 64 with 4 warps, or 128 with 8, and ahead"
    return ""


@functools.lru_cache(maxsize=1024)
def _misfit(
    schedule: Schedule, dtype: torch.dtype, device: torch.device, heads: int, is_production: bool
) -> str:
    if fault := fault_of(schedule):
        return fault
    if heads % schedule.heads:
        return f"heads={schedule.heads}: use a divisor of q's {heads} heads"
    is_half = dtype in HALF_TYPES
    if schedule.sigmoid == "half" and not (is_half and device.type == "cuda"):
        return f"sigmoid='half': use 'exact' for {dtype} on {device.type}"
    has_engine = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    if schedule.use_tma and not has_engine:
        return "use_tma=True: use False; the copy engine needs compute capability 9.0"
    if schedule.packed and not (is_half and is_production):
        return f"packed={schedule.packed}: use 0; that kernel has the production mask and half types alone"
    return ""


def misfit(schedule: Schedule, call: Call) -> str:
    """The field of a schedule that does not fit a call, with its fix; or an empty text.

    Whether its blocks fit the GPU's memory shows at the launch, with an error of Triton's.
    """
    q, k, v, _, max_seq_len, mask = call
    if [type(value) for value in vars(schedule).values()] != list(_TYPES.values()):
        # A cache takes 16.0 for 16.
        return fault_of(schedule)
    reason = _misfit(schedule, q.dtype, q.device, q.size(1), isinstance(mask, ProductionMask))
    if reason:
        return reason
    if schedule.ahead and (reason := refusal(call)):
        return f"ahead=True: use False; {reason}"
    if schedule.one_loop and isinstance(mask, ProductionMask) and mask.contextual_seq_len:
        return "one_loop=True: use False with contextual rows"
    if schedule.packed * max_seq_len > schedule.block_m:
        return (
            f"packed={schedule.packed}: use at most {schedule.block_m // max_seq_len}; so many sequences of "
            f"max_seq_len={max_seq_len} fit block_m={schedule.block_m}"
        )
    if schedule.use_tma and not (takes_descriptor(k) and takes_descriptor(v)):
        return (
            "use_tma=True: use False for this k and v; the copy engine needs heads side by side, of 16, 32, "
            "64, 128 or 256 elements, and rows aligned to 16 bytes"
        )
    return ""
