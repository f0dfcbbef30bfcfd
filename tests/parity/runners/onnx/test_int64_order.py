"""64-bit integers on ONNX Runtime: the order of all pairs, and clamped counts of a model."""

import itertools

import numpy as np
import onnx_ir as ir
import onnx_ir.tape
import pytest
import torch

pytest.importorskip("onnxruntime", reason="the runner needs onnxruntime: pip install onnxruntime")

from parity.runners.onnx import int64_order
from parity.runners.onnx.export import IR_VERSION, OPSET
from parity.runners.onnx.onnxruntime import _OrtSession

NUMBERS = [-(2**40), -(2**31) - 1, -5, -1, 0, 1, 5, 3_000_000, 2**31, 2**40]
PAIRS = np.array(list(itertools.product(NUMBERS, NUMBERS)), dtype=np.int64)
ONE, OTHER = PAIRS.T.copy()
OPERATORS = {
    "Max": np.maximum(ONE, OTHER),
    "Min": np.minimum(ONE, OTHER),
    "Sign": np.sign(ONE),
    "Clip": np.maximum(ONE, -1),
    "Clip at both ends": np.clip(ONE, -1, 2**31),
    "Clip above": np.minimum(ONE, 2**31),
}


def graph(name):
    """The operator on `one`, and on `other` or constants."""
    integers = ir.TensorType(ir.DataType.INT64)
    one, other, result = (
        ir.Value(name=name, shape=ir.Shape(ONE.shape), type=integers) for name in ("one", "other", "result")
    )
    tape = onnx_ir.tape.Tape()
    low, high = (
        tape.initializer(ir.tensor(np.array(end, dtype=np.int64), name=str(end))) for end in (-1, 2**31)
    )
    operands = {
        "Clip": [one, low],
        "Clip at both ends": [one, low, high],
        "Clip above": [one, None, high],
        "Sign": [one],
    }.get(name, [one, other])
    tape.op(name.split(" ")[0], operands, output=result)
    inputs, versions = [one, other], {"": OPSET}
    clamped = ir.Graph(
        inputs,
        [result],
        nodes=tape.nodes,
        initializers=tape.initializers,
        opset_imports=versions,
        name=name,
    )
    return ir.Model(clamped, ir_version=IR_VERSION)


def run(model):
    tensors = {"one": torch.from_numpy(ONE), "other": torch.from_numpy(OTHER)}
    return _OrtSession(model, threads=1)(tensors)["result"].numpy()


@pytest.mark.parametrize("name", OPERATORS)
def test_repaired_operators_have_the_right_order(name):
    model = graph(name)
    int64_order.repair(model)
    assert np.array_equal(run(model), OPERATORS[name])


def test_the_probe_agrees_with_all_pairs():
    plain = all(np.array_equal(run(graph(name)), right) for name, right in OPERATORS.items())
    assert int64_order.is_right() == plain


def test_other_types_and_operators_stay():
    model = graph("Max")
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.type = ir.TensorType(ir.DataType.INT32)
    int64_order.repair(model)
    assert [node.op_type for node in model.graph] == ["Max"]
