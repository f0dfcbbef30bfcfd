"""Functions of one number on ONNX Runtime: repaired ones are right, alone and fused, and right ones stay."""

import numpy as np
import onnx_ir as ir
import onnx_ir.tape
import pytest
import torch

pytest.importorskip("onnxruntime", reason="the runner needs onnxruntime: pip install onnxruntime")

from parity.runners.onnx import elementwise
from parity.runners.onnx.export import IR_VERSION, OPSET
from parity.runners.onnx.onnxruntime import _OrtSession

TYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.float64: ir.DataType.DOUBLE,
}
SMALL_TO_LARGE = np.geomspace(1e-30, 85.0, 3001)
NUMBERS = torch.from_numpy(np.concatenate([-SMALL_TO_LARGE, SMALL_TO_LARGE, [0.0, -0.0, -np.inf, np.inf]]))
FUNCTIONS = {
    "Sigmoid": torch.sigmoid,
    "Elu": torch.nn.functional.elu,
    "Celu": torch.nn.functional.celu,
    "Selu": torch.selu,
}
# Four operations, each right to one unit in the last place.
UNITS = 4.0


def graph(build, dtype):
    """A graph from `x` to `result`, by a function that appends operators to a tape."""
    x, result = (
        ir.Value(name=name, shape=ir.Shape(NUMBERS.shape), type=ir.TensorType(TYPES[dtype]))
        for name in ("x", "result")
    )
    tape = onnx_ir.tape.Tape()
    build(tape, x, result)
    whole = ir.Graph([x], [result], nodes=tape.nodes, opset_imports={"": OPSET}, name="function")
    return ir.Model(whole, ir_version=IR_VERSION)


def alone(name, **attributes):
    return lambda tape, x, result: tape.op(name, [x], attributes or None, output=result)


def run(model, dtype):
    return _OrtSession(model, threads=1)({"x": NUMBERS.to(dtype)})["result"]


def repaired(build, dtype):
    model = graph(build, dtype)
    elementwise.repair(model, tuple(elementwise.FUNCTIONS))
    return model


def is_right(result, truth):
    """Whether results are right to four units in the last place; the last of them are subnormal."""
    limits = torch.finfo(result.dtype)
    unit = limits.eps * truth.abs().clamp(min=limits.tiny)
    return bool(((result.double() == truth) | ((result.double() - truth).abs() <= UNITS * unit)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_repaired_functions_are_right_from_end_to_end(name, dtype):
    if (name, dtype) == ("Celu", torch.float16):
        pytest.skip("ONNX has no Celu of halves")
    truth = FUNCTIONS[name](NUMBERS.to(dtype).double())
    assert is_right(run(repaired(alone(name), dtype), dtype), truth)


@pytest.mark.parametrize("name", ["Elu", "Celu"])
def test_the_attributes_count(name):
    truth = FUNCTIONS[name](NUMBERS.float().double(), alpha=0.5)
    result = run(repaired(alone(name, alpha=0.5), torch.float32), torch.float32)
    assert is_right(result, truth)


@pytest.mark.parametrize("slope", [1.0, 1.702])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_no_fusion_brings_the_wrong_sigmoid_back(slope, dtype):
    """ONNX Runtime makes QuickGelu of x * Sigmoid(slope * x), which has the same kernel."""

    def silu(tape, x, result):
        scale = tape.op("Constant", [], {"value": ir.tensor(torch.tensor(slope, dtype=dtype).numpy())})
        tape.op("Mul", [x, tape.op("Sigmoid", [tape.op("Mul", [x, scale])])], output=result)

    x = NUMBERS.to(dtype)
    sigmoid = torch.sigmoid((x * torch.tensor(slope, dtype=dtype)).double())
    # The sigmoid itself is no subnormal number, which has lost digits before it is multiplied.
    counts = x.isfinite() & (sigmoid >= torch.finfo(dtype).tiny)
    result = run(repaired(silu, dtype), dtype)
    assert counts.sum() > len(NUMBERS) / 2
    assert is_right(result[counts], (x.double() * sigmoid)[counts])


def test_the_probe_agrees_with_the_grid():
    for name, function in FUNCTIONS.items():
        truth = function(NUMBERS.float().double())
        assert (name in elementwise.wrong()) == (
            not is_right(run(graph(alone(name), torch.float32), torch.float32), truth)
        )


def test_a_right_library_changes_nothing():
    model = graph(alone("Sigmoid"), torch.float32)
    elementwise.repair(model, ())
    assert [node.op_type for node in model.graph] == ["Sigmoid"]


def test_other_operators_and_float64_stay():
    assert [node.op_type for node in repaired(alone("Tanh"), torch.float32).graph] == ["Tanh"]
    assert [node.op_type for node in repaired(alone("Sigmoid"), torch.float64).graph] == ["Sigmoid"]
