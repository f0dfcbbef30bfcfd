"""Planning: from a folded program to the steps that compute it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tripy_portable.constant_folding import lowered_node
from tripy_portable.dialect.inference import OpView
from tripy_portable.kernels import Lowered
from tripy_portable.program import Node, Program

Tensor = torch.Tensor
# `torch.inference_mode` without its wrapper in Python, which takes longer than a small operation.
InferenceMode = torch._C._InferenceMode
# A step's function, arguments, results, first result, whether it is the only one, and slots to clear.
_Call = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], int, bool, tuple[int, ...]]


@dataclass(slots=True)
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
        """Schedules a program with known shapes.

        Args:
            program: the folded program.
            place: moves a host tensor to the plan's device. Shapes, which lowering reads, stay on the host.
            writes_over: whether a step may reuse the memory of an argument after its last use.
        """
        self._outputs = tuple(program.outputs)
        self.result_types = [program.types[v] for v in program.outputs]

        self.product_types = {
            program.types[value].element.torch
            for node in program.nodes
            if node.op == "matrix_multiply"
            for value in node.inputs
            if value is not None
        }

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
        # An input with a known value is a constant now.
        self._inputs = [
            (position, value)
            for position, value in enumerate(program.inputs)
            if value in used and value not in program.constants
        ]
        self.input_positions = [position for position, _ in self._inputs]
        self._calls: list[_Call] = []
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
        lowered, positions = lowered_node(node, view)
        return node, lowered, tuple(value for i in positions if (value := node.inputs[i]) is not None)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the steps.

        Args:
            inputs: tensors of exactly the plan's shapes. The plan reads those at `input_positions` only.

        Returns:
            Freshly allocated, contiguous results.
        """
        with InferenceMode(True):
            return self._run(self._template.copy(), inputs, self._calls)

    def _run(self, slots: list[Any], inputs: Sequence[Tensor | None], calls: Sequence[_Call]) -> list[Tensor]:
        for position, value in self._inputs:
            slots[value] = inputs[position]
        for run, arguments, outputs, output, is_single, frees in calls:
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
        """The steps' operands besides the inputs: constants, and the tables of operations."""
        return [tensor for tensor in self._template if tensor is not None]

    def evaluate(
        self,
        constants: Sequence[Tensor],
        inputs: Sequence[Tensor | None],
        stored: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Runs the steps with other tensors in place of `constants`, such as a tracer's.

        `stored` receives every computed index of several gathers, and returns what they use.
        """
        replacements = iter(constants)
        slots = [None if tensor is None else next(replacements) for tensor in self._template]
        indices = Counter(step.inputs[1] for step in self.steps if step.node.op == "gather")
        calls = []
        for run, arguments, outputs, output, is_single, frees in self._calls:
            if is_single and indices[output] > 1:
                run = _then(run, stored)
            calls.append((run, arguments, outputs, output, is_single, frees))
        return self._run(slots, inputs, calls)

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
    """Determines the last use of values, and the steps that reuse the memory of a dying argument."""
    last_use: dict[int, int] = {}
    last_use_of_memory: dict[int, int] = {}
    for index, (node, _, inputs) in enumerate(lowered):
        for value in (*inputs, *node.outputs):
            last_use[value] = index
            last_use_of_memory[roots[value]] = index
    lasting = {*program.outputs, *program.constants}
    lasting_memory = {*program.inputs, *(roots[value] for value in lasting)}
    dying: dict[int, list[int]] = {}
    for value, index in last_use.items():
        if value not in lasting:
            dying.setdefault(index, []).append(value)

    steps = []
    for index, (node, step, inputs) in enumerate(lowered):
        run = step.run
        if step.takes_out and writes_over:
            result = program.types[node.outputs[0]]
            for position, value in enumerate(inputs):
                memory_dies = last_use_of_memory[roots[value]] == index and roots[value] not in lasting_memory
                is_alone = all(other == value or roots[other] != roots[value] for other in inputs)
                if roots[value] == value and memory_dies and is_alone and program.types[value] is result:
                    run = _writing_over(step.run, position)
                    break
        steps.append(Step(node, run, inputs, node.outputs, tuple(dying.get(index, ())), step.tables))
    return steps


def _then(run: Callable[..., Tensor], stored: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: stored(run(*arguments))


def _writing_over(run: Callable[..., Tensor], position: int) -> Callable[..., Tensor]:
    """The same function, with its result in the memory of the argument at `position`."""
    if position == 0:
        return lambda first, *rest: run(first, *rest, out=first)
    return lambda first, second: run(first, second, out=second)


def _finishers(program: Program, roots: list[int]) -> list[Callable[[Tensor], Tensor]]:
    """A function for each result that returns fresh memory: a copy where memory is shared."""
    taken = {*program.inputs, *program.constants}
    finishers: list[Callable[[Tensor], Tensor]] = []
    for value in program.outputs:
        finishers.append(_copied if roots[value] in taken else torch.Tensor.contiguous)
        taken.add(roots[value])
    return finishers


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
