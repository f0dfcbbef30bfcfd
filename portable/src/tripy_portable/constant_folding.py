"""Folding: a program with everything known evaluated.

`fold` walks a program once with the values that are known. It refines types, evaluates operations on
constants with their own kernels, merges equal operations and drops dead ones. At compile time the inputs'
dynamic dimensions are unknown. For concrete shapes, all shape arithmetic folds away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tripy_portable.dialect.inference import OpView, infer
from tripy_portable.ir.types import RankedTensorType
from tripy_portable.kernels import Lowered, lower
from tripy_portable.program import Node, Program, is_static, raw_bytes
from tripy_portable.verification import checked

Tensor = torch.Tensor
Compute = Callable[[Lowered, Sequence[Tensor]], tuple[Tensor, ...]]

# Constants up to this many elements are compared by content; larger ones are weights, which differ anyway.
MERGED_CONSTANT_ELEMENTS = 1024


def compute_on_host(lowered: Lowered, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of an operation on host tensors, as host tensors."""
    results = lowered.run(*arguments, *lowered.tables)
    return results if isinstance(results, tuple) else (results,)


def fold(
    program: Program,
    input_types: Sequence[RankedTensorType] | None = None,
    input_values: Mapping[int, Tensor] | None = None,
    compute: Compute = compute_on_host,
) -> Program:
    """The program with everything known evaluated.

    Args:
        program: the program to fold, which does not change.
        input_types: the inputs' types with concrete dimensions; as declared by default.
        input_values: by position, the values of inputs that are part of the shape arithmetic.
        compute: evaluates a kernel, from host tensors to host tensors.

    Raises:
        GraphError: shapes do not fit; the message names the operation.
    """
    types = list(program.types)
    constants = dict(program.constants)
    for position, value in enumerate(program.inputs):
        if input_types is not None:
            types[value] = input_types[position]
        if input_values is not None and position in input_values:
            constants[value] = input_values[position]

    # Equal small constants become one value, which makes operations on them equal too.
    merged: dict[Any, int] = {}
    renamed = list(range(len(types)))
    for value, tensor in constants.items():
        renamed[value] = merged.setdefault(_content(tensor, types[value]) or value, value)
    seen: dict[Any, tuple[int, ...]] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        inputs = tuple([None if v is None else renamed[v] for v in node.inputs])
        view = OpView(
            node.op,
            [None if v is None else types[v] for v in inputs],
            node.attrs,
            [types[v] for v in node.outputs],
            [constants.get(v) for v in inputs],  # type: ignore[arg-type]  # None has no constant
        )
        results = checked(node, infer, view)
        for value, type in zip(node.outputs, results):
            types[value] = type
        key = (node.op, inputs, *node.attrs.items(), *results)
        originals = seen.setdefault(key, node.outputs)
        if originals is not node.outputs:
            for value, original in zip(node.outputs, originals):
                # An equal constant may stand for the original in turn.
                renamed[value] = renamed[original]
            continue
        computed = _evaluate(node, view, results, compute)
        if computed is None:
            nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        else:
            for value, tensor in zip(node.outputs, computed):
                constants[value] = tensor
                renamed[value] = merged.setdefault(_content(tensor, types[value]) or value, value)
    outputs = [renamed[v] for v in program.outputs]
    return _without_dead(Program(types, program.inputs, outputs, nodes, constants, program.specs))


def _content(tensor: Tensor, type: RankedTensorType) -> Any:
    """A key of a small constant's bits."""
    if tensor.numel() > MERGED_CONSTANT_ELEMENTS or tensor.numel() == 0:
        return None
    # Numbers of a shape are quicker to read than their bytes; floats differ in the sign of a zero.
    if tensor.is_floating_point():
        return type, raw_bytes(tensor)
    return type, tuple(tensor.tolist()) if tensor.ndim == 1 else tuple(tensor.reshape(-1).tolist())


def _evaluate(
    node: Node, view: OpView, results: list[RankedTensorType], compute: Compute
) -> tuple[Tensor, ...] | None:
    """The node's results, or None while an operand is unknown."""
    if node.op == "shape":
        if not is_static(view.type(0)):
            return None
    elif node.op == "opaque_plugin":
        # An implementation runs on the plan's device, like TensorRT's.
        return None
    else:
        for value, type in zip(view.values, view.types):
            if value is None and type is not None:
                return None
    if not all(map(is_static, results)):
        return None
    view.declared = results
    lowered, positions = lowered_node(node, view)
    known_values = [value for i in positions if (value := view.values[i]) is not None]
    return compute(lowered, known_values)


def lowered_node(node: Node, view: OpView) -> tuple[Lowered, tuple[int, ...]]:
    """The kernel of an operation, and the positions of the operands that it reads.

    Raises:
        GraphError: the operation has no kernel for these operands.
    """
    lowered = checked(node, lower, view)
    if lowered.uses is not None:
        return lowered, lowered.uses
    return lowered, tuple(i for i, type in enumerate(view.types) if type is not None)


def _without_dead(program: Program) -> Program:
    live = set(program.outputs)
    nodes = []
    for node in reversed(program.nodes):
        if any(v in live for v in node.outputs):
            live.update(v for v in node.inputs if v is not None)
            nodes.append(node)
    constants = {v: tensor for v, tensor in program.constants.items() if v in live}
    return replace(program, nodes=nodes[::-1], constants=constants)


def compact(program: Program) -> Program:
    """The program with new value numbers, without the types of dropped values.

    Locations are reduced to the user's line: their full text is large, and only the compiler needs it.
    """
    used = dict.fromkeys(program.inputs)
    used.update(dict.fromkeys(program.constants))
    for node in program.nodes:
        used.update(dict.fromkeys(node.outputs))
    number = {old: new for new, old in enumerate(used)}
    nodes = [
        Node(
            node.op,
            inputs=tuple(None if v is None else number[v] for v in node.inputs),
            outputs=tuple(number[v] for v in node.outputs),
            attrs=node.attrs,
            origin=node.location.origin if node.location is not None else node.origin,
        )
        for node in program.nodes
    ]
    return Program(
        [program.types[old] for old in used],
        [number[v] for v in program.inputs],
        [number[v] for v in program.outputs],
        nodes,
        {number[v]: tensor for v, tensor in program.constants.items()},
        program.specs,
    )
