"""Folding and scheduling: from a recorded program to steps that run.

`fold` walks a program once with whatever is known: it refines types, evaluates what depends on constants only
(with the operations' own kernels), merges equal operations and drops dead ones. At compile time the inputs'
dynamic dimensions are unknown; when a plan is made for concrete shapes, all shape arithmetic folds away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tripy_portable.diagnostics import GraphError, UnsupportedOperation, VerificationError
from tripy_portable.dialect import legality
from tripy_portable.dialect.inference import OpView, infer
from tripy_portable.ir.types import RankedTensorType
from tripy_portable.kernels import Lowered, lower
from tripy_portable.program import Node, Program, is_static, raw_bytes

Tensor = torch.Tensor
Compute = Callable[[Lowered, Sequence[Tensor]], tuple[Tensor, ...]]

# Constants up to this many elements are compared by content; larger ones are weights, which differ anyway.
MERGED_CONSTANT_ELEMENTS = 1024


def verify(program: Program) -> None:
    """Checks every operation against the dialect's definition.

    Raises:
        GraphError: naming the operation, what is legal and what was found.
    """
    for value in program.constants:
        _checked(None, legality.check, "constant", (), {}, (program.types[value],))
    for node in program.nodes:
        operands = [None if v is None else program.types[v] for v in node.inputs]
        _checked(
            node, legality.check, node.op, operands, node.attrs, [program.types[v] for v in node.outputs]
        )


def _checked(node: Node | None, fn: Callable[..., Any], *args: Any) -> Any:
    """Calls `fn`; what it finds wrong becomes a `GraphError` that knows the node."""
    try:
        return fn(*args)
    except UnsupportedOperation as error:
        text = str(error)
        cause: Exception = error
    except VerificationError as error:
        text = f"'tensorrt.{node.op if node is not None else 'constant'}' op {error}"
        cause = error
    location = node.location if node is not None else None
    origin = location.origin if location is not None else node.origin if node is not None else ""
    raise GraphError(text, location, origin) from cause


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
        program: what to fold; it is not changed.
        input_types: the inputs' types with concrete dimensions; as declared by default.
        input_values: by position, the values of inputs that are part of the shape arithmetic.
        compute: how what is known is evaluated: from host tensors to host tensors.

    Raises:
        GraphError: where shapes don't fit, naming the operation.
    """
    types = list(program.types)
    constants = dict(program.constants)
    for position, value in enumerate(program.inputs):
        if input_types is not None:
            types[value] = input_types[position]
        if input_values is not None and position in input_values:
            constants[value] = input_values[position]

    # Equal small constants become one value, so that operations on them are found equal.
    merged: dict[Any, int] = {}
    renamed = list(range(len(types)))
    for value, tensor in constants.items():
        renamed[value] = merged.setdefault(_content(tensor, types[value]) or value, value)
    seen: dict[Any, tuple[int, ...]] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        inputs = tuple(None if v is None else renamed[v] for v in node.inputs)
        view = OpView(
            node.op,
            [None if v is None else types[v] for v in inputs],
            node.attrs,
            [types[v] for v in node.outputs],
            [None if v is None else constants.get(v) for v in inputs],
        )
        results = _checked(node, infer, view)
        for value, type in zip(node.outputs, results):
            types[value] = type
        key = (node.op, inputs, _hashable(node.attrs), tuple(results))
        if key in seen:
            for value, original in zip(node.outputs, seen[key]):
                renamed[value] = original
            continue
        seen[key] = node.outputs
        computed = _evaluate(node, view, results, compute)
        if computed is None:
            nodes.append(replace(node, inputs=inputs))
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
    return type, raw_bytes(tensor)


def _hashable(attrs: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(attrs.items())


def _evaluate(
    node: Node, view: OpView, results: list[RankedTensorType], compute: Compute
) -> tuple[Tensor, ...] | None:
    """The node's results, where all that it depends on is known."""
    if not all(is_static(type) for type in results):
        return None
    if node.op == "shape":
        if not is_static(view.type(0)):
            return None
    elif node.op == "opaque_plugin":
        # Its implementation runs where the plan computes, as TensorRT's would.
        return None
    elif any(type is not None and value is None for type, value in zip(view.types, view.values)):
        return None
    view.declared = results
    lowered = _checked(node, lower, view)
    positions = lowered.uses if lowered.uses is not None else _present(view.types)
    known_values = [value for i in positions if (value := view.values[i]) is not None]
    return compute(lowered, known_values)


def _present(types: Sequence[RankedTensorType | None]) -> tuple[int, ...]:
    return tuple(i for i, type in enumerate(types) if type is not None)


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
    """The program with values numbered anew, so that types of dropped values are not kept.

    Locations are reduced to the user's line: their full text is large, and only compiling needs it.
    """
    used = dict.fromkeys(program.inputs)
    used.update(dict.fromkeys(program.constants))
    for node in program.nodes:
        used.update(dict.fromkeys(node.outputs))
    number = {old: new for new, old in enumerate(used)}
    nodes = [
        replace(
            node,
            inputs=tuple(None if v is None else number[v] for v in node.inputs),
            outputs=tuple(number[v] for v in node.outputs),
            origin=node.location.origin if node.location is not None else node.origin,
            location=None,
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


@dataclass(frozen=True)
class Step:
    """One call: `slots[outputs] = run(*slots[inputs], *tables)`; then the slots in `frees` are cleared."""

    node: Node
    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    tables: tuple[Tensor, ...] = ()


class Plan:
    """A program's steps for one set of concrete input shapes."""

    def __init__(self, program: Program, place: Callable[[Tensor], Tensor], writes_over: bool = True):
        """Schedules a program whose shapes are all known.

        Args:
            program: the folded program.
            place: takes a host tensor to where the plan computes. Shapes, read by lowering, stay behind.
            writes_over: whether a step may put its result into the memory of an argument that dies.
        """
        self._outputs = tuple(program.outputs)
        self.result_types = [program.types[v] for v in program.outputs]

        lowered = [self._lower(program, node) for node in program.nodes]
        roots = list(range(len(program.types)))
        for node, lowering, inputs in lowered:
            if lowering.is_view:
                roots[node.outputs[0]] = roots[inputs[0]]
        self.steps = _schedule(program, lowered, roots, writes_over)
        used = {*self._outputs, *(value for step in self.steps for value in step.inputs)}
        self._template: list[Tensor | None] = [None] * len(program.types)
        for value in used.intersection(program.constants):
            self._template[value] = place(program.constants[value])
        # An input whose value is known has become a constant.
        self._inputs = [
            (position, value)
            for position, value in enumerate(program.inputs)
            if value in used and value not in program.constants
        ]
        self.input_positions = [position for position, _ in self._inputs]
        self._calls = []
        for step in self.steps:
            first_table = len(self._template)
            self._template += [place(table) for table in step.tables]
            arguments = (*step.inputs, *range(first_table, len(self._template)))
            self._calls.append(
                (step.run, arguments, step.outputs, step.outputs[0], len(step.outputs) == 1, step.frees)
            )
        self._finish = _finishers(program, roots)

    @staticmethod
    def _lower(program: Program, node: Node) -> tuple[Node, Lowered, tuple[int, ...]]:
        view = OpView(
            node.op,
            [None if v is None else program.types[v] for v in node.inputs],
            node.attrs,
            [program.types[v] for v in node.outputs],
            [None if v is None else program.constants.get(v) for v in node.inputs],
        )
        step = _checked(node, lower, view)
        positions = step.uses if step.uses is not None else _present(view.types)
        return node, step, tuple(value for i in positions if (value := node.inputs[i]) is not None)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the steps.

        Args:
            inputs: tensors of exactly the shapes that the plan was made for. Only those at `input_positions`
                are read.

        Returns:
            Freshly allocated, contiguous results.
        """
        with torch.inference_mode():
            return self._run(self._template.copy(), inputs)

    def _run(self, slots: list[Any], inputs: Sequence[Tensor | None]) -> list[Tensor]:
        for position, value in self._inputs:
            slots[value] = inputs[position]
        for run, arguments, outputs, output, is_single, frees in self._calls:
            result = run(*[slots[v] for v in arguments])
            if is_single:
                slots[output] = result
            else:
                for value, part in zip(outputs, result):
                    slots[value] = part
            for value in frees:
                slots[value] = None
        return [finish(slots[value]) for value, finish in zip(self._outputs, self._finish)]

    @property
    def constants(self) -> list[Tensor]:
        """What the steps read besides the inputs: constants, and the tables of operations."""
        return [tensor for tensor in self._template if tensor is not None]

    def evaluate(self, constants: Sequence[Tensor], inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Runs the steps on other tensors in the place of `constants`, such as those of a tracer."""
        given = iter(constants)
        return self._run([None if tensor is None else next(given) for tensor in self._template], inputs)

    def record_stream(self, queue: torch.cuda.Stream) -> None:
        """Keeps the constants' memory from being reused before the work in a CUDA stream is done."""
        for tensor in self.constants:
            tensor.record_stream(queue)


def _schedule(
    program: Program,
    lowered: list[tuple[Node, Lowered, tuple[int, ...]]],
    roots: list[int],
    writes_over: bool,
) -> list[Step]:
    """Decides when values die, and which steps write over the memory of an argument that dies."""
    last_use: dict[int, int] = {}
    last_use_of_memory: dict[int, int] = {}
    for index, (node, _, inputs) in enumerate(lowered):
        for value in (*inputs, *node.outputs):
            last_use[value] = index
            last_use_of_memory[roots[value]] = index
    kept = {*program.outputs, *program.constants}
    kept_memory = {*program.inputs, *(roots[value] for value in kept)}
    dying: dict[int, list[int]] = {}
    for value, index in last_use.items():
        if value not in kept:
            dying.setdefault(index, []).append(value)

    steps = []
    for index, (node, step, inputs) in enumerate(lowered):
        run = step.run
        if step.takes_out and writes_over:
            result = program.types[node.outputs[0]]
            for position, value in enumerate(inputs):
                memory_dies = last_use_of_memory[roots[value]] == index and roots[value] not in kept_memory
                is_alone = all(other == value or roots[other] != roots[value] for other in inputs)
                if roots[value] == value and memory_dies and is_alone and program.types[value] is result:
                    run = _writing_over(step.run, position)
                    break
        steps.append(Step(node, run, inputs, node.outputs, tuple(dying.get(index, ())), step.tables))
    return steps


def _writing_over(run: Callable[..., Tensor], position: int) -> Callable[..., Tensor]:
    """The same function, with its result in the memory of the argument at `position`."""
    if position == 0:
        return lambda first, *rest: run(first, *rest, out=first)
    return lambda first, second: run(first, second, out=second)


def _finishers(program: Program, roots: list[int]) -> list[Callable[[Tensor], Tensor]]:
    """How each result becomes its caller's own: copied where it shares memory with something else."""
    taken = {*program.inputs, *program.constants}
    finishers: list[Callable[[Tensor], Tensor]] = []
    for value in program.outputs:
        finishers.append(_copied if roots[value] in taken else torch.Tensor.contiguous)
        taken.add(roots[value])
    return finishers


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
