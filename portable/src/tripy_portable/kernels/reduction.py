"""Reductions, top-k and softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tripy_portable.dialect.inference import OpView
from tripy_portable.dtypes import ElementType
from tripy_portable.kernels.registry import Lowered, identity, lowers

Tensor = torch.Tensor


@lowers("reduce")
def _reduce(view: OpView) -> Lowered:
    source = view.type(0)
    axes, keep = tuple(view.attrs["axes"]), view.attrs["keep_dimensions"]
    if not axes:
        return Lowered(identity, is_view=True)
    is_empty = any(source.dims[axis] == 0 for axis in axes)
    return Lowered(
        _REDUCE[view.attrs["operation"]](source.element, axes, keep, is_empty, view.declared[0].dims)
    )


def _sum(element: ElementType, axes: tuple[int, ...], keep: bool, *_: object) -> Callable[[Tensor], Tensor]:
    # The dtype keeps integers from being widened: sums wrap in their own type.
    dtype = element.torch
    return lambda x: torch.sum(x, dim=axes, keepdim=keep, dtype=dtype)


def _prod(element: ElementType, axes: tuple[int, ...], keep: bool, *_: object) -> Callable[[Tensor], Tensor]:
    dtype = element.torch
    wide = torch.float32 if element.is_half else dtype

    def prod(x: Tensor) -> Tensor:
        for axis in reversed(axes):
            x = torch.prod(x, dim=axis, keepdim=keep, dtype=wide)
        return x.to(dtype)

    return prod


def _average(
    element: ElementType, axes: tuple[int, ...], keep: bool, is_empty: bool, dims: tuple[int, ...]
) -> Callable[[Tensor], Tensor]:
    if element.is_float:
        return lambda x: torch.mean(x, dim=axes, keepdim=keep)
    if is_empty:
        return lambda x: x.new_zeros(dims)
    total = _sum(element, axes, keep)

    def average(x: Tensor) -> Tensor:
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        return torch.div(total(x), count, rounding_mode="trunc").to(x.dtype)

    return average


def _extreme(greatest: bool) -> Callable[..., Callable[[Tensor], Tensor]]:
    reduce = torch.amax if greatest else torch.amin

    def make(
        element: ElementType, axes: tuple[int, ...], keep: bool, is_empty: bool, dims: tuple[int, ...]
    ) -> Callable[[Tensor], Tensor]:
        if not is_empty:
            return lambda x: reduce(x, dim=axes, keepdim=keep)
        if element.is_float:
            identity_value = float("-inf") if greatest else float("inf")
        else:
            limits = torch.iinfo(element.torch)
            identity_value = limits.min if greatest else limits.max
        return lambda x: x.new_full(dims, identity_value)

    return make


_REDUCE: dict[str, Callable[..., Callable[[Tensor], Tensor]]] = {
    "kSUM": _sum,
    "kPROD": _prod,
    "kAVG": _average,
    "kMAX": _extreme(True),
    "kMIN": _extreme(False),
}


@lowers("top_k")
def _top_k(view: OpView) -> Lowered:
    k, axis, greatest = view.attrs["k"], view.attrs["axis"], view.attrs["operation"] == "kMAX"
    if k == 1:
        best = torch.max if greatest else torch.min

        def top_one(x: Tensor) -> tuple[Tensor, Tensor]:
            values, indices = best(x, dim=axis, keepdim=True)
            return values, indices.to(torch.int32)

        return Lowered(top_one)

    def top(x: Tensor) -> tuple[Tensor, Tensor]:
        # A stable sort, so that ties are ordered by index: torch.topk leaves their order open.
        values, indices = torch.sort(x, dim=axis, descending=greatest, stable=True)
        return values.narrow(axis, 0, k).contiguous(), indices.narrow(axis, 0, k).to(torch.int32)

    return Lowered(top)


@lowers("softmax")
def _softmax(view: OpView) -> Lowered:
    axis = view.attrs["axis"]
    return Lowered(lambda x: torch.softmax(x, axis))
