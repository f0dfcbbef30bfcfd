"""Checks of arguments that cost little: kinds, numbers, and the place of the result."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import fields
from numbers import Real

import torch

from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask, ResearchMask

# The kernels count rows in 32 bits.
_MOST = 2**31 - 1


def bad(field: str, value: object, fix: str) -> ValueError:
    """The error of an argument, with its name, its value and the fix."""
    return ValueError(f"{field}={value!r}: {fix}")


def check_kinds(call: Call) -> None:
    """Raise ValueError unless the tensors of a call are strided tensors, and its mask is one."""
    for name in ("q", "k", "v", "offsets"):
        _check_tensor(name, getattr(call, name))
    check_mask(call.mask)
    for field in fields(call.mask):
        x = getattr(call.mask, field.name)
        if "Tensor" in str(field.type) and x is not None:
            _check_tensor(f"mask.{field.name}", x)


def check_mask(mask: object, kinds: tuple[type, ...] = (ResearchMask, ProductionMask)) -> None:
    """Raise ValueError unless the mask is one of `kinds`."""
    if not isinstance(mask, kinds):
        names = " or a ".join(kind.__name__ for kind in kinds)
        raise bad("mask", type(mask).__name__, f"must be a {names}")


def _check_tensor(name: str, x: object) -> None:
    if not isinstance(x, torch.Tensor):
        raise bad(name, type(x).__name__, "must be a torch.Tensor")
    if x.layout != torch.strided or x.is_nested:
        raise bad(f"{name}.layout", x.layout, "must be a strided tensor")


def check_whole(field: str, value: object, fix: str, most: float = math.inf) -> None:
    """Raise ValueError unless `value` is a whole number on the host, from 0 to `most`."""
    is_number = isinstance(value, int) or (
        hasattr(value, "__index__") and not isinstance(value, torch.Tensor)
    )
    if not is_number or not 0 <= operator.index(value) <= most:  # type: ignore[arg-type]
        raise bad(field, value, fix)


def check_bounds(bounds: Sequence[int], rows: int, longest: int | None = None) -> None:
    """Raise ValueError unless `bounds` ascend within `rows` rows, in steps of at most `longest`.

    It needs the values of the offsets, which the forms on a GPU do not read.
    """
    for index, bound in enumerate(bounds):
        before = bounds[index - 1] if index else 0
        if bound < before:
            wanted = f"follows {before}; give ascending numbers" if index else "give 0 or more"
            raise bad(f"offsets[{index}]", bound, wanted)
        if bound > rows:
            raise bad(f"offsets[{index}]", bound, f"must be at most {rows}, the number of rows")
        if index and longest is not None and bound - before > longest:
            raise bad(
                "max_seq_len", longest, f"offsets[{index}] ends a row of {bound - before}; give its length"
            )


def check_firsts(firsts: Sequence[int], bounds: Sequence[int], capacity: int) -> None:
    """Raise ValueError unless new rows with `bounds`, behind `firsts` cached ones, lie in the cache."""
    for index, first in enumerate(firsts):
        most = capacity - (bounds[index + 1] - bounds[index])
        if not 0 <= first <= most:
            raise bad(
                f"firsts[{index}]", first, f"must be 0 to {most}, so that its new rows fit into the cache"
            )


def check_mask_numbers(mask: ResearchMask | ProductionMask) -> None:
    """Raise ValueError unless the numbers of a mask are numbers on the host, in their ranges."""
    if not (_is_number(mask.divisor) and mask.divisor > 0):
        raise bad("mask.divisor", mask.divisor, "must be a positive number")
    if isinstance(mask, ResearchMask):
        return
    if not (_is_number(mask.alpha) and math.isfinite(mask.alpha)):
        raise bad("mask.alpha", mask.alpha, "must be a finite number")
    window, contextual = mask.max_attn_len, mask.contextual_seq_len
    check_whole("mask.max_attn_len", window, f"must be a whole number up to {_MOST}; 0 is no window", _MOST)
    wanted = f"must be a whole number up to {_MOST // 2}; 0 is none"
    check_whole("mask.contextual_seq_len", contextual, wanted, _MOST // 2)


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) or isinstance(x, Real)


def check_out(out: torch.Tensor, rows: int, v: torch.Tensor, read: Sequence[torch.Tensor]) -> None:
    """Raise ValueError unless `out` takes `rows` rows with the heads, type and device of v, (..., H, V).

    Args:
        read: tensors that `out` may not overlap.
    """
    if not isinstance(out, torch.Tensor):
        raise bad("out", type(out).__name__, "must be a torch.Tensor, or None")
    shape = (rows, *v.shape[-2:])
    if out.shape != shape or out.dtype != v.dtype or out.device != v.device:
        value = (tuple(out.shape), str(out.dtype), str(out.device))
        raise bad("out", value, f"must be {shape}, v's {v.dtype} and {v.device}")
    if out.stride(2) != 1 and out.size(2) > 1:
        raise bad("out.stride()", out.stride(), "make the last axis contiguous")
    own = out.untyped_storage().data_ptr()
    if any(x.untyped_storage().data_ptr() == own and _overlap(out, x) for x in read):
        raise bad("out", tuple(out.shape), "may not overlap k or v, which are read while it is written")


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors of one type and storage share elements.

    Columns of one row beside columns of the other do not, where both have the same distance of rows.
    """
    if x.numel() == 0 or y.numel() == 0:
        return False
    first, second = sorted((x, y), key=lambda tensor: tensor.storage_offset())
    gap = second.storage_offset() - first.storage_offset()
    if gap >= _extent(first, 0):
        return False
    pitch = x.stride(0)
    if pitch != y.stride(0) or pitch == 0:
        return True
    return gap % pitch < _extent(first, 1) or gap % pitch + _extent(second, 1) > pitch


def _extent(x: torch.Tensor, axis: int) -> int:
    """Elements from the first to the last one, along the axes from `axis` on."""
    sizes = zip(x.shape[axis:], x.stride()[axis:], strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes)
