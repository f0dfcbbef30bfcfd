"""Result types of operations that move elements: concatenation, gather, reshape, slice and others."""

from __future__ import annotations

from collections.abc import Sequence

from tripy_portable.diagnostics import VerificationError
from tripy_portable.dialect.inference import OpView, infers
from tripy_portable.dtypes import I32
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type


@infers("concatenation")
def _concatenation(view: OpView) -> list[RankedTensorType]:
    first, axis = view.type(0), view.attrs["axis"]
    if not 0 <= axis < first.rank:
        raise VerificationError("expected axis to be in the range of [0, input rank)")
    dims = list(first.dims)
    for index in range(1, len(view.types)):
        type = view.type(index)
        if type.rank != first.rank:
            raise VerificationError("all inputs must have equal rank")
        for d, (a, b) in enumerate(zip(dims, type.dims)):
            if d == axis:
                dims[d] = DYNAMIC if DYNAMIC in (a, b) else a + b
            elif a == DYNAMIC:
                dims[d] = b
            elif b not in (DYNAMIC, a):
                raise VerificationError(
                    "all concat input tensors must have the same dimensions except on the concatenation axis "
                    f"{axis}, but input tensor[{index}] has size {b} at dimension {d} where those before "
                    f"have {a}"
                )
    return [tensor_type(tuple(dims), first.element)]


@infers("gather")
def _gather(view: OpView) -> list[RankedTensorType]:
    data, indices = view.type(0), view.type(1)
    axis = view.attrs["axis"]
    if not 0 <= axis < data.rank:
        raise VerificationError("axis must obey 0 <= axis < rank(input).")
    return [tensor_type((*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]), data.element)]


@infers("shape")
def _shape(view: OpView) -> list[RankedTensorType]:
    return [tensor_type((view.type(0).rank,), I32)]


@infers("transpose")
def _transpose(view: OpView) -> list[RankedTensorType]:
    data, permutation = view.type(0), view.attrs["permutation"]
    if sorted(permutation) != list(range(data.rank)):
        raise VerificationError(f'expected "permutation" to be a permutation of rank {data.rank}')
    return [tensor_type(tuple(data.dims[d] for d in permutation), data.element)]


@infers("collapse_rank")
def _collapse_rank(view: OpView) -> list[RankedTensorType]:
    data, result = view.type(0), view.declared[0]
    if data.has_static_shape:
        wide = tuple(extent for extent in data.dims if extent != 1)
        if result.rank > data.rank or wide != tuple(d for d in result.dims if d not in (1, DYNAMIC)):
            raise VerificationError(
                f"expected to only drop unit-dims from the shape: got '{data}' and '{result}'"
            )
    return [result]


@infers("reshape")
def _reshape(view: OpView) -> list[RankedTensorType]:
    data, result, target = view.type(0), view.declared[0], view.ints(1)
    if target is None:
        return [result]
    if target.count(-1) > 1:
        raise VerificationError(f"only one dimension of a reshape may be -1, but got {target}")
    if any(extent < -1 for extent in target):
        raise VerificationError(f"dimensions of a reshape must be at least -1, but got {target}")
    dims = list(target)
    if data.has_static_shape:
        volume = _volume(data.dims)
        known = _volume([extent for extent in dims if extent != -1])
        if -1 in dims:
            if known == 0 and volume != 0 or known and volume % known:
                raise VerificationError(_volume_message(volume, known, data, target))
            dims[dims.index(-1)] = volume // known if known else 0
        elif known != volume:
            raise VerificationError(_volume_message(volume, known, data, target))
    return [tensor_type(tuple(DYNAMIC if extent == -1 else extent for extent in dims), data.element)]


def _volume_message(volume: int, target_volume: int, data: RankedTensorType, target: list[int]) -> str:
    is_multiple = volume and target_volume and (volume % target_volume == 0 or target_volume % volume == 0)
    text = (
        "reshape changes volume to multiple of original non-zero volume"
        if is_multiple
        else "reshape changes volume"
    )
    return f"{text}: cannot reshape '{data}' with {volume} elements to {target}"


def _volume(dims: Sequence[int]) -> int:
    volume = 1
    for extent in dims:
        volume *= extent
    return volume


@infers("broadcast")
def _broadcast(view: OpView) -> list[RankedTensorType]:
    data, result, target = view.type(0), view.declared[0], view.ints(1)
    dims = view.attrs["broadcast_dims"]
    if len(dims) != data.rank:
        raise VerificationError(f"expected broadcast_dims size to equal input type rank ({data.rank})")
    extents = tuple(target) if target is not None else result.dims
    for source, position in enumerate(dims):
        if not 0 <= position < result.rank:
            raise VerificationError(f"all broadcast_dims values must be in the range [0,{result.rank})")
        extent = data.dims[source]
        if extent not in (1, DYNAMIC) and extents[position] not in (extent, DYNAMIC):
            raise VerificationError(
                f"expected input shape dimension {source} ({extent}) to be broadcastable to result type "
                "dimension "
                f"{position} ({extents[position]})"
            )
    return [tensor_type(extents, data.element)]


@infers("linspace")
def _linspace(view: OpView) -> list[RankedTensorType]:
    result, target = view.declared[0], view.ints(0)
    return [tensor_type(tuple(target) if target is not None else result.dims, result.element)]


@infers("slice")
def _slice(view: OpView) -> list[RankedTensorType]:
    data = view.type(0)
    start, size, stride = slice_bounds(view)
    for name, values in (("start", start), ("size", size), ("stride", stride)):
        if values is not None and len(values) != data.rank:
            raise VerificationError(
                f"expected {name} to have one value for each of the input's {data.rank} dimensions, got "
                f"{values}"
            )
    if size is None:
        return [tensor_type((DYNAMIC,) * data.rank, data.element)]
    if any(extent < 0 for extent in size):
        raise VerificationError(f"slice size must be non-negative, but got {size}")
    if view.attrs["mode"] in ("kCLAMP", "kWRAP", "kREFLECT"):
        for axis, (count, extent) in enumerate(zip(size, data.dims)):
            if extent == 0 and count > 0:
                raise VerificationError(
                    f"mode {view.attrs['mode']} has nothing to read in dimension {axis} of size 0"
                )
    if view.attrs["mode"] == "kDEFAULT" and start is not None and stride is not None:
        for axis, (first, count, step, extent) in enumerate(zip(start, size, stride, data.dims)):
            last = first + step * (count - 1)
            if count and extent != DYNAMIC and not (0 <= first < extent and 0 <= last < extent):
                raise VerificationError(
                    f"out of bounds access: dimension {axis} has size {extent}, but the slice reads "
                    f"indices {first} to "
                    f"{last} (start {start}, size {size}, stride {stride})"
                )
    return [tensor_type(tuple(size), data.element)]


def slice_bounds(view: OpView) -> tuple[list[int] | None, list[int] | None, list[int] | None]:
    """Start, size and stride of a slice, each None while unknown."""

    def values(index: int, name: str) -> list[int] | None:
        static = view.attrs.get(f"static_{name}")
        return list(static) if static is not None else view.ints(index)

    return values(1, "start"), values(2, "size"), values(3, "stride")
