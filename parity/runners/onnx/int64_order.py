"""The order of 64-bit integers on ONNX Runtime's CPU provider, which is wrong on x86-64.

There, Max, Min, Clip and Sign of 64-bit integers take 2^31 for a negative number, and every other number
whose lower half has its highest bit set. The cause is in Eigen, with the vectors of SSE2 (pull request 32475
of microsoft/onnxruntime). Less is right, and the four follow from it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.tape
import onnxruntime as ort

from parity.runners.onnx.export import IR_VERSION, OPSET

_NUMBERS = np.array([2**31, -1, 2**40, -(2**31) - 1] * 2, dtype=np.int64)


@functools.cache
def is_right() -> bool:
    """Whether the CPU provider of this ONNX Runtime has the right order of 64-bit integers."""
    integers = ir.TensorType(ir.DataType.INT64)
    numbers = ir.Value(name="numbers", shape=ir.Shape(_NUMBERS.shape), type=integers)
    clipped = ir.Value(name="clipped", shape=numbers.shape, type=integers)
    tape = onnx_ir.tape.Tape()
    zero = tape.initializer(ir.tensor(np.array(0, dtype=np.int64), name="zero"))
    tape.op("Clip", [numbers, zero], output=clipped)
    graph = ir.Graph(
        [numbers],
        [clipped],
        nodes=tape.nodes,
        initializers=tape.initializers,
        opset_imports={"": OPSET},
        name="order",
    )
    model = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.array_equal(session.run(None, {"numbers": _NUMBERS})[0], np.maximum(_NUMBERS, 0))


def repair(model: ir.Model) -> None:
    """Replace Max, Min, Clip and Sign of 64-bit integers by the same from Less, in place."""
    for node in list(model.graph):
        first = next(iter(node.inputs), None)
        if node.op_type not in ("Max", "Min", "Clip", "Sign") or first is None:
            continue
        if first.dtype != ir.DataType.INT64:
            continue
        tape = onnx_ir.tape.Tape()
        result = _from_less(tape, node.op_type, node.inputs)
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], tape.nodes, node.outputs, [result])


def _from_less(tape: onnx_ir.tape.Tape, name: str, operands: Sequence[ir.Value | None]) -> ir.Value:
    """The result of an operator, from Less."""

    def larger(one: ir.Value, other: ir.Value) -> ir.Value:
        return tape.op("Where", [tape.op("Less", [one, other]), other, one])

    def smaller(one: ir.Value, other: ir.Value) -> ir.Value:
        return tape.op("Where", [tape.op("Less", [other, one]), other, one])

    first, *others = operands
    assert first is not None
    if name == "Sign":
        zero = tape.op("Sub", [first, first])
        signs = [
            tape.op("Cast", [tape.op("Less", pair)], {"to": ir.DataType.INT64})
            for pair in ([zero, first], [first, zero])
        ]
        return tape.op("Sub", signs)
    steps = (larger, smaller) if name == "Clip" else (larger if name == "Max" else smaller,) * len(others)
    for step, other in zip(steps, others, strict=False):
        # An absent end of Clip has no value.
        first = first if other is None else step(first, other)
    return first
