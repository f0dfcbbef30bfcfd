"""The dense reference as an ONNX graph with a name for every argument and result of every module.

Three kinds of graphs are cut out of one export by names:

* plain: the model as a user exports it, with the entry's outputs;
* tapped: the same model with every module's results as further outputs, named by tap
  (`parity.capture.names`);
* a module alone, from its arguments to its results.

A mark is a copy of a tensor (`Identity`) in the exported graph. The nodes between a module's marks are the
module. The optimizer removes marks that a graph does not use.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.tape
import torch
from onnxscript import optimizer

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.base.real_numbers import in_real, with_numbers_in
from parity.base.trees import dotted, leaves, map_tree
from parity.capture.outputs import flat_outputs, output_of
from parity.capture.torch_hooks import marked
from parity.case import Case, ModelPair
from parity.case.contract import outputs_by_tap
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import rounded
from parity.runners.onnx.translations import TRANSLATIONS

OPSET = 20
_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
"""Operators, with the constant that changes nothing."""
_NEARLY = 1e-3
"""Distance from a neutral constant, far beyond what an optimizer may take for one."""
IR_VERSION = 10
"""Version of the file format, the one of torch.onnx."""
# Attribute of the exported wrapper that holds the model.
_MODEL = "model"
# torch.export makes sizes of 0 and 1 constants. With so many rows every table has indices.
_TRACED_ROWS = 32
# A case may refuse one of these numbers, such as the length of a sequence.
_NUMBERS_OF_ROWS = range(_TRACED_ROWS, _TRACED_ROWS + 8)


class NotSeparable(ValueError):
    """A module cannot be cut out of its graph; the message names its other inputs."""


def argument_name(tap: str, path: str) -> str:
    """Name of an argument of a call; `path` is its place, such as `args.0` or `kwargs.mask`."""
    return f"{tap}:{path}"


@dataclass(frozen=True)
class Exported:
    """A case's reference as ONNX.

    Attributes:
        graph: Inputs by the names of `feeds`; outputs are the marks. Not optimised.
        taps: Names of the modules' results, in the order in which they finish.
        outputs: Tap names of the entry's outputs, in order.
        dtype: Type of floating-point inputs and weights.
    """

    graph: ir.Graph
    taps: tuple[str, ...]
    outputs: tuple[str, ...]
    dtype: torch.dtype

    def plain(self) -> ir.Model:
        """The model, optimised as `torch.onnx.export` does."""
        return self._cut([value.name for value in self.graph.inputs], self.outputs)

    def tapped(self) -> ir.Model:
        """The optimised model with every module's results as outputs."""
        names = [value.name for value in self.graph.inputs]
        return self._cut(names, (*self.taps, *self.outputs))

    def module(self, tap: str, arguments: list[str], results: tuple[str, ...]) -> ir.Model:
        """One call of a module: from its arguments to its results.

        If torch.export reads a size from one of the model's inputs, that input is an input of this graph.

        Args:
            tap: Base name of the call.
            arguments: Paths of its tensors, as in `argument_keys`.
            results: Its taps.

        Raises:
            NotSeparable: The module depends on values that it does not receive.
        """
        own = [argument_name(tap, path) for path in arguments]
        values = {value.name: value for value in ir.convenience.create_value_mapping(self.graph).values()}
        missing = [name for name in (*own, *results) if name not in values]
        if missing:
            raise NotSeparable(f"the exported graph has no tensor {', '.join(missing)}")
        sizes = _sizes_needed([values[name] for name in results], {values[name] for name in own})
        return self._cut([*own, *sizes], results)

    def _cut(self, inputs: list[str], outputs: tuple[str, ...]) -> ir.Model:
        graph = ir.convenience.extract(self.graph, inputs, outputs)
        model = ir.Model(
            graph, ir_version=IR_VERSION, producer_name="pytorch", producer_version=torch.__version__
        )
        _keep_constants(graph)
        optimizer.optimize(model)
        return model


def _keep_constants(graph: ir.Graph) -> None:
    """Give scalars that are nearly neutral an axis of their own, in place.

    The optimizer takes 1e-8 for 0 and 1.000008 for 1, so that it drops a sum with such an epsilon. It knows
    neutral constants without axes alone.
    """
    for node in list(graph):
        if node.domain or node.op_type not in _NEUTRAL:
            continue
        for place, value in enumerate(node.inputs):
            number = None if value is None else ir.convenience.get_const_tensor(value)
            other = node.inputs[1 - place]
            if number is None or number.shape.rank() or not (other and other.shape and other.shape.rank()):
                continue
            if 0.0 < abs(float(number.numpy()) - _NEUTRAL[node.op_type]) < _NEARLY:
                tape = onnx_ir.tape.Tape()
                kept = tape.op("Constant", [], {"value": ir.tensor(number.numpy().reshape(1))})
                graph.insert_before(node, tape.nodes)
                node.replace_input_with(place, kept)


def save_model(model: ir.Model, path: Path) -> None:
    """Write a model, and its weights into a file beside it: protocol buffers end at 2 GB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ir.save(model, path, external_data=f"{path.name}.data")


def with_fixed_sizes(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give a model's inputs the sizes that they have in one batch, in place."""
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[value.name])


def module_of(node: ir.Node) -> str:
    """Path of the module that a node belongs to; empty for nodes outside all modules."""
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    # The wrapper, the model, its modules from the outermost to the innermost, and the operation.
    return scopes[-2].removeprefix(_MODEL).removeprefix(".") if len(scopes) > 1 else ""


def _sizes_needed(results: list[ir.Value], arguments: set[ir.Value]) -> list[str]:
    """Names of the model's inputs whose shape the nodes between arguments and results read."""
    needed: dict[str, None] = {}
    seen: set[ir.Value] = set()
    waiting = list(results)
    while waiting:
        value = waiting.pop()
        if value in seen or value in arguments or value.is_initializer():
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            raise NotSeparable(f"it depends on the values of {value.name}, which is no argument of it")
        for source in node.inputs:
            if source is None:
                continue
            if source.is_graph_input() and node.op_type == "Shape" and source not in arguments:
                needed[source.name] = None
            else:
                waiting.append(source)
    return list(needed)


def traced_batch(case: Case) -> Mapping[str, np.ndarray]:
    """The typical batch, with as many rows as a trace needs; of a pair of live models its only batch.

    Raises:
        UserError: The case refuses every such number of rows; its words for the first one.
    """
    if isinstance(case, ModelPair):
        return make_inputs(case).typical.arrays
    refusals = []
    for rows in _NUMBERS_OF_ROWS:
        try:
            return make_inputs(case.with_overrides(batch_size=rows)).typical.arrays
        except UserError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def export(
    case: Case,
    precision: Precision,
    weights: Mapping[str, torch.Tensor],
    arrays: Mapping[str, np.ndarray],
) -> Exported:
    """Export the dense reference of a case, with dynamic first axes as in `Case.dynamic_axes`.

    Args:
        case: The case. Its batch size does not matter.
        precision: Precision of weights and floating-point inputs.
        weights: The reference's state dict in float32.
        arrays: A batch with the sizes of all other axes, such as `traced_batch`.
    """
    model = with_numbers_in(case.build_reference(), precision.dtype)
    model.load_state_dict(rounded(weights, precision.dtype), strict=True)
    arguments = case.entry_arguments(arrays)
    axes = case.dynamic_axes(arrays)
    inputs = {
        path: _traced(tensor) if path in axes else tensor
        for path, tensor in feeds(case, arrays, precision.dtype).items()
    }
    entry = _Entry(model.eval(), case, arguments, precision.dtype)
    sizes = {size: torch.export.Dim(size, min=smallest) for size, smallest in axes.values()}
    shapes = tuple({0: sizes[axes[path][0]]} if path in axes else {} for path in inputs)
    with torch.no_grad():
        traced = torch.export.export(entry, tuple(inputs.values()), dynamic_shapes=(shapes,), strict=False)
    program = torch.onnx.export(
        traced,
        dynamo=True,
        opset_version=OPSET,
        optimize=False,
        verbose=False,
        input_names=list(inputs),
        output_names=entry.names.marks,
        dynamic_shapes=(shapes,),
        custom_translation_table=TRANSLATIONS,
    )
    assert program is not None
    graph = program.model.graph
    for value in list(graph.initializers.values()):
        value.name = value.name.removeprefix(f"{_MODEL}.")
    return Exported(graph, entry.names.taps, entry.names.outputs, precision.dtype)


def _traced(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of as many rows as a trace needs, whose values do not matter to it."""
    return tensor if len(tensor) >= _TRACED_ROWS else tensor.new_zeros(_TRACED_ROWS, *tensor.shape[1:])


def feeds(case: Case, arrays: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A case's arrays as the graph's inputs: the entry's arguments by the names of their leaves."""
    tensors = {}
    for path, array in leaves(case.entry_arguments(arrays)):
        if not _is_array(array):
            continue
        tensor = torch.tensor(array)
        tensors[dotted(path)] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return tensors


def _is_array(leaf: Any) -> bool:
    """Whether a leaf of the entry's arguments is an input of the graph; other values are part of it."""
    return isinstance(leaf, (np.ndarray, torch.Tensor))


class _Names:
    """Names of the tensors that the traced `_Entry` returns: all of them, and two kinds."""

    marks: tuple[str, ...] = ()
    taps: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class _Entry(torch.nn.Module):
    """The entry point with flat arguments and all marks as results."""

    def __init__(
        self, model: torch.nn.Module, case: Case, arguments: dict[str, Any], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.model = model
        self._case = case
        self._arguments = arguments
        self._dtype = dtype
        # An object of its own: torch.export restores a module's attributes after tracing.
        self.names = _Names()

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        waiting = iter(leaves)
        arguments = map_tree(self._arguments, lambda leaf: next(waiting) if _is_array(leaf) else leaf)
        with marked(self.model, argument_name) as marks:
            results = self._case.call(self.model, arguments)
        outputs = {
            name: output_of(name, output, self._dtype).clone()
            for name, output in flat_outputs(outputs_by_tap(self._case, results)).items()
        }
        taps = {**marks.arguments, **marks.results}
        everything = {**{name: in_real(tensor) for name, tensor in taps.items()}, **outputs}
        self.names.marks, self.names.taps, self.names.outputs = (
            tuple(names) for names in (everything, marks.results, outputs)
        )
        return tuple(everything.values())
