"""Operations that move elements: shapes, views, slices, gathers, sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tripy_portable.dialect.inference import OpView
from tripy_portable.dialect.layout_inference import slice_bounds
from tripy_portable.kernels.registry import Lowered, identity, known, lowers

Tensor = torch.Tensor


@lowers("shape")
def _shape(view: OpView) -> Lowered:
    dims = torch.tensor(view.type(0).dims, dtype=torch.int32)
    return Lowered(lambda: dims.clone(), uses=())


@lowers("reshape", "collapse_rank")
def _reshape(view: OpView) -> Lowered:
    dims = view.declared[0].dims
    if dims == view.type(0).dims:
        return Lowered(identity, uses=(0,), is_view=True)
    return Lowered(lambda x: x.reshape(dims), uses=(0,), is_view=True)


@lowers("broadcast")
def _broadcast(view: OpView) -> Lowered:
    source, target, positions = view.type(0).dims, view.declared[0].dims, view.attrs["broadcast_dims"]
    if source == target:
        return Lowered(identity, uses=(0,), is_view=True)
    leading = len(target) - len(source)
    if tuple(positions) == tuple(range(leading, len(target))):
        return Lowered(lambda x: x.expand(target), uses=(0,), is_view=True)
    aligned = [1] * len(target)
    for axis, position in enumerate(positions):
        aligned[position] = source[axis]
    order = sorted(range(len(positions)), key=lambda axis: positions[axis])
    return Lowered(lambda x: x.permute(order).reshape(aligned).expand(target), uses=(0,), is_view=True)


@lowers("transpose")
def _transpose(view: OpView) -> Lowered:
    permutation = tuple(view.attrs["permutation"])
    if permutation == tuple(range(len(permutation))):
        return Lowered(identity, is_view=True)
    return Lowered(lambda x: x.permute(permutation), is_view=True)


@lowers("concatenation")
def _concatenation(view: OpView) -> Lowered:
    axis = view.attrs["axis"]
    if len(view.types) == 1:
        return Lowered(identity, is_view=True)
    if view.type(0).element.bits == 8 and view.type(0).element.is_float:
        # torch has no float8 concatenation: join the bytes.
        return Lowered(lambda *xs: torch.cat([x.view(torch.uint8) for x in xs], axis).view(xs[0].dtype))
    return Lowered(lambda *xs: torch.cat(xs, axis))


@lowers("gather")
def _gather(view: OpView) -> Lowered:
    """A negative index counts from the end; an index that is still out of bounds reads zero."""
    axis = view.attrs["axis"]
    extent, dims = view.type(0).dims[axis], view.declared[0].dims
    if extent == 0:
        return Lowered(lambda data, indices: data.new_zeros(dims))
    is_table = axis == 0 and view.type(0).rank == 2 and view.type(0).element.is_float

    def take(data: Tensor, indices: Tensor) -> Tensor:
        if is_table:
            return F.embedding(indices, data)
        return data.index_select(axis, indices.reshape(-1)).reshape(dims)

    indices = view.values[1]
    if indices is not None and _all_inside(indices, extent):
        return Lowered(take)
    mask_dims = [1] * len(dims)
    mask_dims[axis : axis + view.type(1).rank] = view.type(1).dims

    def gather(data: Tensor, indices: Tensor) -> Tensor:
        if indices.is_cpu and _all_inside(indices, extent):
            return take(data, indices)
        indices = torch.where(indices < 0, indices + extent, indices)
        outside = (indices < 0) | (indices >= extent)
        taken = take(data, torch.where(outside, 0, indices))
        return torch.where(outside.reshape(mask_dims), 0, taken).to(data.dtype)

    return Lowered(gather)


def _all_inside(indices: Tensor, extent: int) -> bool:
    """Whether no index is negative or too great. Reads data, so only for host tensors."""
    if indices.numel() == 0:
        return True
    least, greatest = torch.aminmax(indices)
    return bool(least >= 0) and bool(greatest < extent)


@lowers("linspace")
def _linspace(view: OpView) -> Lowered:
    dims = view.declared[0].dims

    def linspace(start: Tensor, step: Tensor) -> Tensor:
        result = start.expand(dims).clone() if dims else start.clone()
        for axis, extent in enumerate(dims):
            line = torch.arange(extent, dtype=step.dtype, device=step.device) * step[axis]
            result += line.reshape([-1] + [1] * (len(dims) - axis - 1))
        return result

    return Lowered(linspace, uses=(1, 2))


@lowers("slice")
def _slice(view: OpView) -> Lowered:
    start, size, stride = (
        values if values is not None else known(view, index)
        for index, values in enumerate(slice_bounds(view), start=1)
    )
    source, mode = view.type(0).dims, view.attrs["mode"]
    if 0 in size:
        dtype = view.type(0).element.torch
        return Lowered(lambda x: torch.empty(size, dtype=dtype, device=x.device), uses=(0,))
    inside = all(
        0 <= a < extent and 0 <= a + s * (n - 1) < extent
        for a, n, s, extent in zip(start, size, stride, source)
    )
    if inside:
        return _inner_slice(source, start, size, stride)
    if mode == "kFILL":
        return _filled_slice(view, start, size, stride)
    indices = [_outer_indices(mode, a, n, s, extent) for a, n, s, extent in zip(start, size, stride, source)]
    return Lowered(_index_each_axis, uses=(0,), tables=tuple(indices))


def _inner_slice(source: Sequence[int], start: list[int], size: list[int], stride: list[int]) -> Lowered:
    """A box that lies inside: a view where all strides are positive."""
    if all(a == 0 and s == 1 or n == extent == 1 for a, n, s, extent in zip(start, size, stride, source)):
        if list(source) == size:
            return Lowered(identity, uses=(0,), is_view=True)
    if all(s > 0 or n == 1 for s, n in zip(stride, size)):
        box = tuple(slice(a, a + max(s, 1) * (n - 1) + 1, max(s, 1)) for a, n, s in zip(start, size, stride))
        return Lowered(lambda x: x[box], uses=(0,), is_view=True)
    indices = [torch.tensor([a + s * i for i in range(n)]) for a, n, s in zip(start, size, stride)]
    return Lowered(_index_each_axis, uses=(0,), tables=tuple(indices))


def _index_each_axis(x: Tensor, *indices: Tensor) -> Tensor:
    for axis, index in enumerate(indices):
        x = x.index_select(axis, index)
    return x


def _outer_indices(mode: str, start: int, count: int, stride: int, extent: int) -> Tensor:
    """Where each element of an axis is read from when the slice leaves the tensor."""
    index = start + stride * torch.arange(count)
    if mode == "kCLAMP":
        return index.clamp(0, extent - 1)
    if mode == "kWRAP":
        return index % extent
    # Reflection repeats no edge: ... 2 1 0 1 2 ... with period 2 * (extent - 1).
    period = max(2 * (extent - 1), 1)
    index = index % period
    return torch.where(index >= extent, period - index, index)


def _filled_slice(view: OpView, start: list[int], size: list[int], stride: list[int]) -> Lowered:
    has_fill = len(view.types) > 4 and view.types[4] is not None
    box, indices = [], []
    for a, n, s, extent in zip(start, size, stride, view.type(0).dims):
        index = a + s * torch.arange(n)
        inside = torch.nonzero((index >= 0) & (index < extent)).flatten()
        # The positions of an axis that lie inside follow each other, whatever the stride.
        box.append(slice(int(inside[0]), int(inside[-1]) + 1) if inside.numel() else slice(0, 0))
        indices.append(index[inside])

    def filled(x: Tensor, *rest: Tensor) -> Tensor:
        if has_fill:
            fill, *inner = rest
            result = fill.reshape(()).expand(size).clone(memory_format=torch.contiguous_format)
        else:
            inner, result = list(rest), x.new_zeros(size)
        result[tuple(box)] = _index_each_axis(x, *inner)
        return result

    return Lowered(filled, uses=(0, 4) if has_fill else (0,), tables=tuple(indices))
