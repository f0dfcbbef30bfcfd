"""Functions of one number that ONNX Runtime's CPU provider computes wrong, and the same from right ones.

Sigmoid has a relative error of 2e-4 and more below -8 and is 0 below -18 (issue 22557 of
microsoft/onnxruntime). Without a Sigmoid in the graph, no fusion to QuickGelu brings the kernel back. Elu,
Celu and Selu compute exp(x) - 1 by a subtraction, which leaves nothing of a small x. Exp, Log and Div are
right, and the four follow from them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnx_ir.tape
import onnxruntime as ort

from parity.runners.onnx.export import IR_VERSION, OPSET
from parity.runners.onnx.translations import exp_less_one

_OPERATIONS = 4
"""Operations in the longest chain here, each of them right to one unit in the last place."""
_LIMIT = _OPERATIONS * float(np.finfo(np.float32).eps)
"""Largest relative error of a right function."""
_SMALL_TO_LARGE = np.geomspace(1e-30, 85.0, 2000, dtype=np.float32)
_NUMBERS = np.concatenate([-_SMALL_TO_LARGE[::-1], _SMALL_TO_LARGE])
"""Grid of a probe. The results of all functions are normal numbers."""

_SELU_ALPHA, _SELU_GAMMA = (
    float(np.float32(value)) for value in (1.67326319217681884765625, 1.05070102214813232421875)
)
"""The attributes of Selu that the standard gives it by default."""


class _Operators:
    """Appends an operator of an attribute's name, on float32 values, to a tape."""

    def __init__(self, tape: onnx_ir.tape.Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Callable[..., ir.Value]:
        return lambda *operands: self._tape.op(name, [self._value(operand) for operand in operands])

    def _value(self, operand: ir.Value | float) -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        return self._tape.op("Constant", [], {"value": ir.tensor(np.array(operand, dtype=np.float32))})


def _sigmoid(op: _Operators, x: ir.Value, node: ir.Node) -> ir.Value:
    return op.Div(1.0, op.Add(1.0, op.Exp(op.Neg(x))))


def _elu(op: _Operators, x: ir.Value, node: ir.Node) -> ir.Value:
    return _from_zero_up(op, x, op.Mul(_attribute(node, "alpha"), exp_less_one(op, op.Min(x, 0.0))))


def _celu(op: _Operators, x: ir.Value, node: ir.Node) -> ir.Value:
    alpha = _attribute(node, "alpha")
    return _from_zero_up(op, x, op.Mul(alpha, exp_less_one(op, op.Div(op.Min(x, 0.0), alpha))))


def _selu(op: _Operators, x: ir.Value, node: ir.Node) -> ir.Value:
    alpha, gamma = _attribute(node, "alpha", _SELU_ALPHA), _attribute(node, "gamma", _SELU_GAMMA)
    return op.Mul(gamma, _from_zero_up(op, x, op.Mul(alpha, exp_less_one(op, op.Min(x, 0.0)))))


def _from_zero_up(op: _Operators, x: ir.Value, below: ir.Value) -> ir.Value:
    return op.Where(op.Less(x, 0.0), below, x)


def _attribute(node: ir.Node, name: str, default: float = 1.0) -> float:
    return node.attributes[name].as_float() if name in node.attributes else default


@dataclass(frozen=True)
class _Function:
    """A function of one number.

    Attributes:
        truth: The function of an array in float64, with the standard's attributes.
        replacement: The function of a value and of a node with its attributes, from right operators.
    """

    truth: Callable[[np.ndarray], np.ndarray]
    replacement: Callable[[_Operators, ir.Value, ir.Node], ir.Value]


def _elu_truth(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0.0, np.expm1(np.minimum(x, 0.0)), x)


FUNCTIONS = {
    "Celu": _Function(_elu_truth, _celu),
    "Elu": _Function(_elu_truth, _elu),
    "Selu": _Function(
        lambda x: _SELU_GAMMA * np.where(x < 0.0, _SELU_ALPHA * np.expm1(np.minimum(x, 0.0)), x), _selu
    ),
    "Sigmoid": _Function(lambda x: 1.0 / (1.0 + np.exp(-x)), _sigmoid),
}
"""The functions by operator, in the order of a label."""


@functools.cache
def wrong() -> tuple[str, ...]:
    """The operators of `FUNCTIONS` that the CPU provider of this ONNX Runtime computes wrong, in order."""
    return tuple(name for name in FUNCTIONS if _error(name) > _LIMIT)


def _error(name: str) -> float:
    """The largest relative error of an operator on the grid."""
    floats = ir.TensorType(ir.DataType.FLOAT)
    numbers, results = (
        ir.Value(name=own, shape=ir.Shape(_NUMBERS.shape), type=floats) for own in ("numbers", "results")
    )
    tape = onnx_ir.tape.Tape()
    tape.op(name, [numbers], output=results)
    graph = ir.Graph([numbers], [results], nodes=tape.nodes, opset_imports={"": OPSET}, name=name)
    model = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    own = session.run(None, {"numbers": _NUMBERS})[0].astype(np.float64)
    truth = FUNCTIONS[name].truth(_NUMBERS.astype(np.float64))
    error = float(np.abs(own / truth - 1.0).max())
    return math.inf if math.isnan(error) else error


def repair(model: ir.Model, names: tuple[str, ...]) -> None:
    """Replace these operators by the same from right ones, in place, in bodies of loops and conditions, too.

    Halves are computed in float32 and rounded once, as ONNX Runtime does. Numbers in float64 stay.
    """
    for node in list(model.graph.all_nodes()):
        x = next(iter(node.inputs), None)
        if node.op_type not in names or node.domain or x is None or x.dtype == ir.DataType.DOUBLE:
            continue
        assert node.graph is not None
        tape = onnx_ir.tape.Tape()
        wide = x if x.dtype == ir.DataType.FLOAT else tape.op("Cast", [x], {"to": ir.DataType.FLOAT})
        result = FUNCTIONS[node.op_type].replacement(_Operators(tape), wide, node)
        if wide is not x:
            result = tape.op("CastLike", [result, x])
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, node.outputs, [result])
