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

from tripy_portable.diagnostics import MTRTException, UnsupportedOperation, VerificationError, emit_error
from tripy_portable.dialect import legality
from tripy_portable.dialect.inference import OpView, infer
from tripy_portable.ir.types import RankedTensorType
from tripy_portable.kernels import lower
from tripy_portable.program import Node, Program, is_static

Tensor = torch.Tensor


def verify(program: Program) -> None:
    """Checks every operation against the dialect's definition.

    Raises:
        MTRTException: after writing the located error to file descriptor 2.
    """
    for value in program.constants:
        _located(None, legality.check, "constant", (), {}, (program.types[value],))
    for node in program.nodes:
        operands = [None if v is None else program.types[v] for v in node.inputs]
        _located(node, legality.check, node.op, operands, node.attrs, [program.types[v] for v in node.outputs])


def _located(node: Node | None, fn: Callable[..., Any], *args: Any) -> Any:
    """Calls `fn`; a failure is written to file descriptor 2 with the node's location, and raised as MTRT's."""
    try:
        return fn(*args)
    except (VerificationError, UnsupportedOperation) as error:
        name = node.op if node is not None else "constant"
        text = str(error) if str(error).startswith("tensorrt.") else f"'tensorrt.{name}' op {error}"
        if node is not None and node.location is not None:
            emit_error(node.location, text)
            raise MTRTException("InternalError: failed to run compilation on module") from error
        raise MTRTException(f"InternalError: {text}") from error


def fold(
    program: Program,
    input_types: Sequence[RankedTensorType] | None = None,
    input_values: Mapping[int, Tensor] | None = None,
) -> Program:
    """The program with everything known evaluated.

    Args:
        program: what to fold; it is not changed.
        input_types: the inputs' types with concrete dimensions; as declared by default.
        input_values: by position, the values of inputs that are part of the shape arithmetic.

    Raises:
        MTRTException: where shapes don't fit; the located error is on file descriptor 2.
    """
    types = list(program.types)
    constants = dict(program.constants)
    for position, value in enumerate(program.inputs):
        if input_types is not None:
            types[value] = input_types[position]
        if input_values is not None and position in input_values:
            constants[value] = input_values[position]

    renamed = list(range(len(types)))
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
        results = _located(node, infer, view)
        for value, type in zip(node.outputs, results):
            types[value] = type
        key = (node.op, inputs, _hashable(node.attrs), tuple(results))
        if key in seen:
            for value, original in zip(node.outputs, seen[key]):
                renamed[value] = original
            continue
        seen[key] = node.outputs
        computed = _evaluate(node, view, results)
        if computed is None:
            nodes.append(replace(node, inputs=inputs))
        else:
            constants.update(zip(node.outputs, computed))
    outputs = [renamed[v] for v in program.outputs]
    return _without_dead(Program(types, program.inputs, outputs, nodes, constants, program.specs))


def _hashable(attrs: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(attrs.items())


def _evaluate(node: Node, view: OpView, results: list[RankedTensorType]) -> tuple[Tensor, ...] | None:
    """The node's results, where all that it depends on is known."""
    if not all(is_static(type) for type in results):
        return None
    if node.op == "shape":
        if not is_static(view.types[0]):
            return None
    elif any(type is not None and value is None for type, value in zip(view.types, view.values)):
        return None
    view.declared = results
    lowered = _located(node, lower, view)
    positions = lowered.uses if lowered.uses is not None else _present(view.types)
    computed = lowered.run(*(view.values[i] for i in positions))
    return computed if isinstance(computed, tuple) else (computed,)


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
    """The program with values numbered anew, so that types of dropped values are not kept."""
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
    """One call: `slots[outputs] = run(*slots[inputs])`, after which the slots in `frees` are cleared."""

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]


class Plan:
    """A program's steps for one set of concrete input shapes."""

    def __init__(self, program: Program, device: torch.device):
        """Schedules a program whose shapes are all known.

        Args:
            program: the folded program.
            device: where the data lives.
        """
        self._template: list[Tensor | None] = [None] * len(program.types)
        for value, tensor in program.constants.items():
            self._template[value] = tensor.to(device)
        self._inputs = list(program.inputs)
        self._outputs = list(program.outputs)
        self.result_types = [program.types[v] for v in program.outputs]

        lowered = []
        roots = list(range(len(program.types)))
        last_use: dict[int, int] = {}
        for index, node in enumerate(program.nodes):
            view = OpView(
                node.op,
                [None if v is None else program.types[v] for v in node.inputs],
                node.attrs,
                [program.types[v] for v in node.outputs],
                [None if v is None else program.constants.get(v) for v in node.inputs],
            )
            step = _located(node, lower, view)
            positions = step.uses if step.uses is not None else _present(view.types)
            inputs = tuple(node.inputs[i] for i in positions)
            if step.is_view:
                roots[node.outputs[0]] = roots[inputs[0]]
            for value in (*inputs, *node.outputs):
                last_use[value] = index
            lowered.append((step.run, inputs, node.outputs))

        kept = {*self._outputs, *program.constants}
        dying: dict[int, list[int]] = {}
        for value, index in last_use.items():
            if value not in kept:
                dying.setdefault(index, []).append(value)
        self.steps = [
            Step(run, inputs, outputs, tuple(dying.get(index, ())))
            for index, (run, inputs, outputs) in enumerate(lowered)
        ]
        self._single = [(step.run, step.inputs, step.outputs[0], step.frees, len(step.outputs) == 1) for step in self.steps]
        self._copies = self._outputs_to_copy(program, roots)

    def _outputs_to_copy(self, program: Program, roots: list[int]) -> list[bool]:
        """Which results must be copied: they would share memory with an input, a constant or another result."""
        taken = {*program.inputs, *program.constants}
        copies = []
        for value in self._outputs:
            copies.append(roots[value] in taken)
            taken.add(roots[value])
        return copies

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the steps.

        Args:
            inputs: tensors of exactly the shapes that the plan was made for.

        Returns:
            Freshly allocated, contiguous results.
        """
        slots = self._template.copy()
        for value, tensor in zip(self._inputs, inputs):
            slots[value] = tensor
        with torch.inference_mode():
            for run, arguments, output, frees, is_single in self._single:
                result = run(*[slots[v] for v in arguments])
                if is_single:
                    slots[output] = result
                else:
                    for offset, part in enumerate(result):
                        slots[output + offset] = part
                for value in frees:
                    slots[value] = None
            return [
                slots[value].clone(memory_format=torch.contiguous_format) if copied else slots[value].contiguous()
                for value, copied in zip(self._outputs, self._copies)
            ]
