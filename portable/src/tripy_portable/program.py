"""A recorded graph as plain data, to compile, plan, save and load.

The file format is a JSON header and the constants' raw little-endian bytes, without pickle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tripy_portable.diagnostics import MTRTException
from tripy_portable.dtypes import BY_CODE
from tripy_portable.ir.attributes import DictAttr, MemorySpaceAttr, ShapeProfileAttr
from tripy_portable.ir.context import Location
from tripy_portable.ir.operations import FuncOp, Module, ModuleOperation
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type

MAGIC = b"TRIPYPRT"
FORMAT_VERSION = 1
_ALIGNMENT = 64


@dataclass(frozen=True)
class Bounds:
    """The least, typical and greatest extents (or values) of an input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class InputSpec:
    """Properties of a program's input beyond its type.

    `on_host` inputs are shape arithmetic: `value_bounds` bounds their values. `dimension_names` maps a
    dimension to a name; dimensions of one name must be equal at run time.
    """

    shape_bounds: Bounds | None = None
    value_bounds: Bounds | None = None
    dimension_names: dict[int, str] = field(default_factory=dict)
    on_host: bool = False


@dataclass(slots=True)
class Node:
    """One operation: operands and results are value numbers; an absent optional operand is None.

    Nobody changes one. It is not frozen: a frozen object takes several times as long to make.

    `origin` is the user's line. `location` is the full location, during compilation only.
    """

    op: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any]
    origin: str = ""
    location: Location | None = None


@dataclass
class Program:
    """A graph in execution order. `types[v]` is the type of value `v`; `constants` holds values with data."""

    types: list[RankedTensorType]
    inputs: list[int]
    outputs: list[int]
    nodes: list[Node]
    constants: dict[int, torch.Tensor]
    specs: list[InputSpec]

    def to_bytes(self) -> bytes:
        """The program's file format."""
        blobs: list[bytes] = []
        offset = 0
        constants = {}
        for value, tensor in self.constants.items():
            flat, strides = _dense(tensor)
            blob = raw_bytes(flat)
            constants[str(value)] = {"offset": offset, "shape": list(tensor.shape), "strides": list(strides)}
            padding = -len(blob) % _ALIGNMENT
            blobs.append(blob + b"\0" * padding)
            offset += len(blob) + padding
        header = {
            "types": [[list(type.dims), type.element.code] for type in self.types],
            "inputs": self.inputs,
            "outputs": self.outputs,
            "nodes": [[n.op, n.inputs, n.outputs, n.attrs, n.origin] for n in self.nodes],
            "constants": constants,
            "specs": [_spec_to_json(spec) for spec in self.specs],
        }
        encoded = json.dumps(header, separators=(",", ":")).encode()
        return b"".join((MAGIC, struct.pack("<IQ", FORMAT_VERSION, len(encoded)), encoded, *blobs))

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """Reads the result of `to_bytes`.

        Raises:
            MTRTException: the data is no program, has another version, or is cut short.
        """
        prefix = len(MAGIC) + struct.calcsize("<IQ")
        if data[: len(MAGIC)] != MAGIC or len(data) < prefix:
            raise MTRTException("InvalidArgument: not an executable of the portable runtime")
        version, length = struct.unpack_from("<IQ", data, len(MAGIC))
        if version != FORMAT_VERSION:
            raise MTRTException(
                f"InvalidArgument: executable has format version {version}, this runtime reads "
                f"{FORMAT_VERSION}; "
                "compile it again"
            )
        try:
            header = json.loads(data[prefix : prefix + length])
        except ValueError as error:
            raise MTRTException("InvalidArgument: the executable's header is damaged or cut short") from error
        types = [tensor_type(tuple(dims), BY_CODE[code]) for dims, code in header["types"]]
        start = prefix + length
        constants = {}
        for value, entry in header["constants"].items():
            dtype = types[int(value)].element.torch
            constants[int(value)] = _tensor(
                data, start + entry["offset"], dtype, entry["shape"], entry["strides"]
            )
        nodes = [
            Node(op, tuple(inputs), tuple(outputs), _tuples(attrs), origin)
            for op, inputs, outputs, attrs, origin in header["nodes"]
        ]
        specs = [_spec_from_json(spec) for spec in header["specs"]]
        return Program(types, header["inputs"], header["outputs"], nodes, constants, specs)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """A host tensor's elements in row-major order."""
    # A clone, because a tensor of one element may have a stride that no byte view accepts.
    flat = tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The memory of a tensor as a vector, and its strides in that vector.

    A tensor with gaps in its memory becomes contiguous. A permuted or repeated tensor keeps its layout,
    because the layout of an operand decides the order of the sums over it.
    """
    if tensor.numel() == 0 or _span(tensor.shape, tensor.stride()) > tensor.numel():
        tensor = tensor.contiguous()
    span = _span(tensor.shape, tensor.stride()) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,)), tensor.stride()


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def _tensor(
    data: bytes, offset: int, dtype: torch.dtype, shape: list[int], strides: list[int]
) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    end = offset + _span(shape, strides) * dtype.itemsize
    if end > len(data):
        raise MTRTException("InvalidArgument: the executable's constants are cut short")
    # A clone, because kernels add in another order where memory is not aligned as PyTorch aligns its own.
    memory = torch.frombuffer(bytearray(data[offset:end]), dtype=dtype).clone()
    return memory.as_strided(shape, strides)


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _bounds_to_json(bounds: Bounds | None) -> list[tuple[int, ...]] | None:
    return None if bounds is None else [bounds.min, bounds.opt, bounds.max]


def _spec_to_json(spec: InputSpec) -> dict[str, Any]:
    return {
        "shape": _bounds_to_json(spec.shape_bounds),
        "value": _bounds_to_json(spec.value_bounds),
        "names": {str(dim): name for dim, name in spec.dimension_names.items()},
        "on_host": spec.on_host,
    }


def _spec_from_json(data: dict[str, Any]) -> InputSpec:
    shape, value = (
        None if data[key] is None else Bounds(*map(tuple, data[key])) for key in ("shape", "value")
    )
    return InputSpec(shape, value, {int(dim): name for dim, name in data["names"].items()}, data["on_host"])


def from_module(module: Module | ModuleOperation) -> Program:
    """The program of a module's `main` function."""
    func: FuncOp = next(func for func in module.body if func.name == "main")
    numbers: dict[int, int] = {}
    types: list[RankedTensorType] = []

    def number(value: Any) -> int:
        numbers[id(value)] = len(types)
        types.append(value.type)
        return numbers[id(value)]

    body = func.body
    assert body is not None, "nvtripy declares no functions, it defines them"
    inputs = [number(argument) for argument in body.arguments]
    nodes: list[Node] = []
    constants: dict[int, torch.Tensor] = {}
    for op in body:
        results = tuple(number(result) for result in op.results)
        if op.name == "constant":
            constants[results[0]] = op.attrs["data"]
            continue
        operands = tuple(None if operand is None else numbers[id(operand)] for operand in op.operands)
        nodes.append(Node(op.name, operands, results, op.attrs, location=op.location))
    outputs = [numbers[id(value)] for value in func.returned]
    specs = [_spec(type, attr) for type, attr in zip((types[v] for v in inputs), func.arg_attrs.value)]
    return Program(types, inputs, outputs, nodes, constants, specs)


def _spec(type: RankedTensorType, attrs: DictAttr) -> InputSpec:
    profile: ShapeProfileAttr | None = attrs.value.get("tensorrt.shape_profile")
    values: ShapeProfileAttr | None = attrs.value.get("tensorrt.value_bounds")
    names = attrs.value.get("tensorrt.dimension_names")
    space: MemorySpaceAttr | None = attrs.value.get("plan.memory_space")
    if profile is not None:
        shape_bounds = Bounds(profile.min, profile.opt, profile.max)
    elif type.has_static_shape:
        shape_bounds = Bounds(type.dims, type.dims, type.dims)
    else:
        shape_bounds = None
    return InputSpec(
        shape_bounds,
        None if values is None else Bounds(values.min, values.opt, values.max),
        {} if names is None else {int(dim): name.value for dim, name in names.value.items()},
        space is not None and space.value == "host",
    )


def is_static(type: RankedTensorType) -> bool:
    """Whether all of a type's dimensions are known."""
    return DYNAMIC not in type.dims
