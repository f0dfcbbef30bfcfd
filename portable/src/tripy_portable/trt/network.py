"""From a recorded program to a TensorRT network: values become tensors, constants weights, inputs profiles.

Converters of single operations are registered by `converts`, in `pointwise`, `layout` and `contraction`.
They translate one operation to exactly the layers of MLIR-TensorRT: TensorRT refuses the native compiler's
graph for the same reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from tripy_portable.dtypes import I4, ElementType
from tripy_portable.ir.types import DYNAMIC, RankedTensorType
from tripy_portable.program import Node, Program, is_static
from tripy_portable.trt.messages import Message, Recorder, Refused, about, result_names, user_frame

_DATA_TYPES = {
    "f32": "FLOAT",
    "f16": "HALF",
    "bf16": "BF16",
    "f8E4M3FN": "FP8",
    "i64": "INT64",
    "i32": "INT32",
    "i8": "INT8",
    "i4": "INT4",
    "i1": "BOOL",
}

INPUT_NAME, RESULT_NAME = "arg{}", "result{}"
"""Names of an engine's inputs and outputs, by position, as MLIR-TensorRT names them."""

Converter = Callable[["Conversion"], list[Any]]
_CONVERTERS: dict[str, Converter] = {}


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Registers the converter of operations."""

    def register(fn: Converter) -> Converter:
        for name in names:
            _CONVERTERS[name] = fn
        return fn

    return register


def converted_operations() -> frozenset[str]:
    """Names of the dialect's operations that can be translated."""
    return frozenset(_CONVERTERS) | {"constant"}


class Translation:
    """A network under construction.

    `buffers` are the weights' memory, which TensorRT reads until the engine is built.
    """

    def __init__(self, library: ModuleType, builder: Any, recorder: Recorder, program: Program):
        self.library = library
        self.recorder = recorder
        self.program = program
        self.buffers: list[torch.Tensor] = []
        # TensorRT 11 knows strongly typed networks only, and has no flag to ask for them.
        flag = getattr(library.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        self.network = builder.create_network(0 if flag is None else 1 << int(flag))
        self._tensors: dict[int, Any] = {}
        self._named_layers = 0
        self._layer_counts: dict[str, int] = {}

    def run(self) -> None:
        """Adds the whole program.

        Raises:
            Refused: TensorRT does not accept an operation.
        """
        for position, value in enumerate(self.program.inputs):
            self._add_input(position, value)
        for node in self.program.nodes:
            self._add_node(node)
        self._mark_outputs()

    def tensor(self, value: int) -> Any:
        """The tensor of a value; a constant becomes a layer when it is first used."""
        if value not in self._tensors:
            self._tensors[value] = self.constant(
                self.program.constants[value], self.program.types[value].element
            )
        return self._tensors[value]

    def constant(self, data: torch.Tensor, element: ElementType) -> Any:
        """A tensor of given values."""
        data = data.detach().cpu().contiguous()
        stored = _packed(data) if element is I4 else data
        self.buffers.append(stored)
        address = stored.data_ptr() if stored.numel() else 0
        weights = self.library.Weights(self.data_type(element), address, data.numel())
        layer = self.network.add_constant(tuple(data.shape), weights)
        if layer is None:
            raise self._refusal("TensorRT refuses a constant")
        return layer.get_output(0)

    def data_type(self, element: ElementType) -> Any:
        """TensorRT's name of an element type."""
        return getattr(self.library.DataType, _DATA_TYPES[element.code])

    def _add_input(self, position: int, value: int) -> None:
        type, spec = self.program.types[value], self.program.specs[position]
        dims = tuple(-1 if extent == DYNAMIC else extent for extent in type.dims)
        tensor = self.network.add_input(INPUT_NAME.format(position), self.data_type(type.element), dims)
        if tensor is None:
            raise self._refusal(f"TensorRT refuses input {position} of type {type}")
        for dim, name in spec.dimension_names.items():
            if dims[dim] == -1:
                tensor.set_dimension_name(dim, name)
        self._tensors[value] = tensor

    def add_profile(self, builder: Any, config: Any) -> None:
        """Gives the builder the bounds of dynamic inputs, where there are any."""
        profile = builder.create_optimization_profile()
        is_needed = False
        for position, (value, spec) in enumerate(zip(self.program.inputs, self.program.specs)):
            name = INPUT_NAME.format(position)
            if not is_static(self.program.types[value]) and spec.shape_bounds is not None:
                profile.set_shape(name, spec.shape_bounds.min, spec.shape_bounds.opt, spec.shape_bounds.max)
                is_needed = True
            if spec.value_bounds is not None:
                bounds = spec.value_bounds
                profile.set_shape_input(name, bounds.min, bounds.opt, bounds.max)
                is_needed = True
        if is_needed and config.add_optimization_profile(profile) < 0:
            raise self._refusal("TensorRT refuses the inputs' optimization profile")

    def _add_node(self, node: Node) -> None:
        self.recorder.current = node
        try:
            converter = _CONVERTERS.get(node.op)
            if converter is None:
                raise self._refusal("there is no translation to TensorRT", node)
            results = converter(Conversion(self, node))
            self._name_layers(node)
            for value, tensor in zip(node.outputs, results, strict=True):
                self._check(node, tensor, self.program.types[value])
                self._tensors[value] = tensor
        finally:
            self.recorder.current = None

    def _check(self, node: Node, tensor: Any, type: RankedTensorType) -> None:
        """Compares TensorRT's inferred type with the dialect's; reading the shape makes TensorRT infer."""
        try:
            rank = len(tensor.shape)
        except (RuntimeError, ValueError):
            # The bindings of some versions raise for a tensor of unknown shape.
            rank = -1
        if rank < 0 or self.recorder.has_error:
            raise self._refusal("TensorRT refuses the operation", node)
        if tensor.dtype != self.data_type(type.element) or rank != type.rank:
            message = f"TensorRT infers {tensor.dtype.name} of rank {rank}, Tripy says {type}"
            raise self._refusal(message, node)

    def _name_layers(self, node: Node) -> None:
        """Names the layers added since the last call: messages and the inspector then lead to the node."""
        names, frame = result_names(node), user_frame(node)
        for index in range(self._named_layers, self.network.num_layers):
            layer = self.network.get_layer(index)
            base = f"{names} {node.op}"[:2000]
            count = self._layer_counts[base] = self._layer_counts.get(base, 0) + 1
            layer.name = base if count == 1 else f"{base}#{count}"
            # The file's name alone: an engine should not tell the folders of the machine that built it.
            layer.metadata = names if frame is None else f"{names} {frame[0].rpartition('/')[2]}:{frame[1]}"
            self.recorder.nodes_by_layer[layer.name] = node
        self._named_layers = self.network.num_layers

    def _mark_outputs(self) -> None:
        taken = {*self.program.inputs, *self.program.constants}
        for position, value in enumerate(self.program.outputs):
            tensor = self.tensor(value)
            if value in taken:
                tensor = self.network.add_identity(tensor).get_output(0)
            taken.add(value)
            tensor.name = RESULT_NAME.format(position)
            self.network.mark_output(tensor)

    def _refusal(self, problem: str, node: Node | None = None) -> Refused:
        messages = self.recorder.messages
        if node is not None and not self.recorder.has_error:
            messages = (*messages, about(node, "ERROR", problem))
        elif not self.recorder.has_error:
            messages = (*messages, Message("ERROR", problem))
        return Refused("TensorRT refuses the graph", messages)

    def refused_layer(self, node: Node) -> Refused:
        """The error for a layer that TensorRT did not make."""
        return self._refusal("TensorRT refuses the operation", node)


class Conversion:
    """One node under translation: its operands as tensors, and helpers that add layers."""

    def __init__(self, translation: Translation, node: Node):
        self.translation = translation
        self.library = translation.library
        self.network = translation.network
        self.node = node
        self.attrs = node.attrs
        self.inputs: list[Any] = [
            None if value is None else translation.tensor(value) for value in node.inputs
        ]
        program = translation.program
        self.types = [None if value is None else program.types[value] for value in node.inputs]
        self.result_types = [program.types[value] for value in node.outputs]

    def type(self, index: int) -> RankedTensorType:
        """The type of an operand that is not optional."""
        operand_type = self.types[index]
        assert operand_type is not None, f"{self.node.op} was recorded without its operand {index}"
        return operand_type

    def operand(self, index: int) -> Any:
        """Operand `index`, or None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def ints(self, index: int) -> list[int] | None:
        """The values of an operand that is a constant of the program, else None."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        constant = None if value is None else self.translation.program.constants.get(value)
        return None if constant is None else constant.reshape(-1).tolist()

    def enum(self, name: str, case: str) -> Any:
        """A case of one of TensorRT's enumerations, by the dialect's name of it."""
        return getattr(getattr(self.library, name), case.removeprefix("k"))

    def data_type(self, element: ElementType) -> Any:
        """TensorRT's name of an element type."""
        return self.translation.data_type(element)

    def layer(self, layer: Any) -> Any:
        """The layer, after a check for None.

        Raises:
            Refused: TensorRT returned None.
        """
        if layer is None:
            raise self.translation.refused_layer(self.node)
        return layer

    def out(self, layer: Any) -> Any:
        """The first output of a layer that TensorRT did make."""
        return self.layer(layer).get_output(0)

    def constant(self, values: Sequence[int] | int, element: ElementType) -> Any:
        """A constant tensor of rank 1, or of rank 0 for a single value."""
        return self.translation.constant(torch.tensor(values, dtype=element.torch), element)


def _packed(data: torch.Tensor) -> torch.Tensor:
    """4-bit integers two to a byte, the first in the low half."""
    flat = data.reshape(-1).to(torch.int16) & 0xF
    if flat.numel() % 2:
        flat = torch.cat([flat, flat.new_zeros(1)])
    return (flat[0::2] | (flat[1::2] << 4)).to(torch.uint8)
