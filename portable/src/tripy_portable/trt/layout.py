"""Translations of operations that move elements: shapes, slices, gathers, sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tripy_portable.dtypes import I32
from tripy_portable.trt.network import Conversion, converts

_SLICE_MODES = {
    # TensorRT's own default also rejects reads out of bounds.
    "kDEFAULT": "STRICT_BOUNDS",
    "kWRAP": "WRAP",
    "kCLAMP": "CLAMP",
    "kFILL": "FILL",
    "kREFLECT": "REFLECT",
}


def _shape(op: Conversion, tensor: Any) -> Any:
    """A tensor's shape as int32: TensorRT's own is int64, the dialect's is not."""
    shape = op.out(op.network.add_shape(tensor))
    return op.out(op.network.add_cast(shape, op.data_type(I32)))


def _extent(op: Conversion, shape: Any, axis: int) -> Any:
    """One extent of a shape, as a tensor of one element."""
    return op.out(op.network.add_slice(shape, (axis,), (1,), (1,)))


def _shuffled(op: Conversion, tensor: Any, dims: Sequence[int] = (), shape: Any = None) -> Any:
    """A reshape to fixed extents (one may be -1) or to the extents in a shape tensor."""
    layer = op.layer(op.network.add_shuffle(tensor))
    # Otherwise an extent of 0 means the input's, and a tensor without elements cannot be reshaped.
    layer.zero_is_placeholder = False
    if shape is not None:
        layer.set_input(1, shape)
    else:
        layer.reshape_dims = tuple(dims)
    return layer.get_output(0)


def _with_axes(op: Conversion, tensor: Any, axes: Sequence[int | None]) -> Any:
    """A reshape: result axis i is the input's axis `axes[i]`, or has extent 1 for None.

    Omitted input axes must have extent 1.
    """
    known = tuple(tensor.shape)
    dims = [1 if axis is None else known[axis] for axis in axes]
    if dims.count(-1) < 2 and not (-1 in dims and 0 in dims):
        return _shuffled(op, tensor, dims)
    shape = _shape(op, tensor)
    parts = [op.constant([1], I32) if axis is None else _extent(op, shape, axis) for axis in axes]
    return _shuffled(op, tensor, shape=op.out(op.network.add_concatenation(parts)))


@converts("shape")
def _shape_of(op: Conversion) -> list[Any]:
    return [_shape(op, op.inputs[0])]


@converts("reshape")
def _reshape(op: Conversion) -> list[Any]:
    dims, shape = op.ints(1), op.operand(1)
    if dims is None and shape is not None:
        return [_shuffled(op, op.inputs[0], shape=shape)]
    return [_shuffled(op, op.inputs[0], op.result_types[0].dims if dims is None else dims)]


@converts("collapse_rank")
def _collapse_rank(op: Conversion) -> list[Any]:
    extents, surplus = tuple(op.inputs[0].shape), op.type(0).rank - op.result_types[0].rank
    # Extents of 1 go, known ones first: an unknown one that goes must turn out to be 1.
    candidates = [axis for axis, extent in enumerate(extents) if extent == 1]
    candidates += [axis for axis, extent in enumerate(extents) if extent == -1]
    dropped = set(candidates[:surplus])
    return [_with_axes(op, op.inputs[0], [axis for axis in range(len(extents)) if axis not in dropped])]


@converts("transpose")
def _transpose(op: Conversion) -> list[Any]:
    layer = op.layer(op.network.add_shuffle(op.inputs[0]))
    layer.first_transpose = tuple(op.attrs["permutation"])
    return [layer.get_output(0)]


@converts("broadcast")
def _broadcast(op: Conversion) -> list[Any]:
    """A slice with stride 0 along axes of extent 1, which repeats their only element."""
    positions, rank = list(op.attrs["broadcast_dims"]), op.result_types[0].rank
    tensor = op.inputs[0]
    if positions != list(range(rank)):
        sources = [positions.index(axis) if axis in positions else None for axis in range(rank)]
        present = [axis for axis in sources if axis is not None]
        if present != sorted(present):
            layer = op.layer(op.network.add_shuffle(tensor))
            layer.first_transpose = tuple(present)
            tensor = layer.get_output(0)
            order = iter(range(len(present)))
            sources = [None if axis is None else next(order) for axis in sources]
        tensor = _with_axes(op, tensor, sources)
    if rank == 0:
        return [op.out(op.network.add_identity(tensor))]
    size = op.ints(1) if op.operand(1) is not None else list(op.result_types[0].dims)
    strides = [-1 if extent == -1 else int(extent != 1) for extent in tuple(tensor.shape)]
    placeholder = (1,) * rank
    fixed_size = placeholder if size is None else tuple(size)
    fixed_strides = placeholder if -1 in strides else tuple(strides)
    layer = op.layer(op.network.add_slice(tensor, (0,) * rank, fixed_size, fixed_strides))
    layer.mode = op.library.SampleMode.STRICT_BOUNDS
    if size is None:
        layer.set_input(2, op.operand(1))
    if -1 in strides:
        layer.set_input(3, _unknown_strides(op, tensor))
    return [layer.get_output(0)]


def _unknown_strides(op: Conversion, tensor: Any) -> Any:
    """min(extent - 1, 1) for each axis: 0 repeats the axis, 1 does not."""
    ones = op.constant([1] * len(tuple(tensor.shape)), I32)
    operations = op.library.ElementWiseOperation
    less_one = op.out(op.network.add_elementwise(_shape(op, tensor), ones, operations.SUB))
    return op.out(op.network.add_elementwise(less_one, ones, operations.MIN))


@converts("concatenation")
def _concatenation(op: Conversion) -> list[Any]:
    layer = op.layer(op.network.add_concatenation(op.inputs))
    layer.axis = op.attrs["axis"]
    return [layer.get_output(0)]


@converts("gather")
def _gather(op: Conversion) -> list[Any]:
    return [op.out(op.network.add_gather(op.inputs[0], op.inputs[1], op.attrs["axis"]))]


@converts("slice")
def _slice(op: Conversion) -> list[Any]:
    rank = op.type(0).rank
    settings = []
    for index, name in ((1, "start"), (2, "size"), (3, "stride")):
        static = op.attrs.get(f"static_{name}")
        settings.append(tuple(static) if static is not None else op.ints(index))
    # TensorRT wants values even where a tensor takes their place.
    fixed = [(1,) * rank if values is None else tuple(values) for values in settings]
    layer = op.layer(op.network.add_slice(op.inputs[0], *fixed))
    layer.mode = op.enum("SampleMode", _SLICE_MODES[op.attrs["mode"]])
    for index, values in enumerate(settings, start=1):
        if values is None:
            layer.set_input(index, op.operand(index))
    if op.operand(4) is not None:
        layer.set_input(4, op.operand(4))
    return [layer.get_output(0)]


@converts("linspace")
def _linspace(op: Conversion) -> list[Any]:
    element, dims = op.result_types[0].element, op.ints(0)
    placeholder = (1,) if dims is None else tuple(dims)
    linspace = op.library.FillOperation.LINSPACE
    layer = op.layer(op.network.add_fill(placeholder, linspace, op.data_type(element)))
    if dims is None:
        layer.set_input(0, op.operand(0))
    layer.set_input(1, op.operand(1))
    layer.set_input(2, op.operand(2))
    return [layer.get_output(0)]
