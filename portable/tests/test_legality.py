"""The dialect rejects illegal types. The message names the operand, the legal types and the actual one."""

import pytest
import torch
from harness import compile_graph, constant, ranked

from mlir_tensorrt.compiler import ir
from mlir_tensorrt.compiler.dialects import tensorrt
from mlir_tensorrt.runtime.api import MTRTException
from tripy_portable.dialect.legality import OPERANDS, RESULTS
from tripy_portable.dtypes import ALL, BF16, F8, F16, F32, F64, I1, I4, I8, I16, I32, I64
from tripy_portable.ir.types import tensor_type

NEVER = (F64, I16)


def cases():
    """An operation, how to build it, and the element types that TensorRT accepts for its data."""
    enum = tensorrt
    floats, index = {F32, F16, BF16}, {I32, I64}
    axes = ir.DenseI64ArrayAttr.get([0])

    def binary(name):
        return lambda x: tensorrt.element_wise(x, x, enum.ElementWiseOperationAttr.get(name))

    def unary(name):
        return lambda x: tensorrt.unary(x, enum.UnaryOperationAttr.get(name))

    def activation(name):
        return lambda x: tensorrt.activation(x, enum.ActivationTypeAttr.get(name))

    none = enum.MatrixOperationAttr.get("kNONE")
    yield "add", binary("kSUM"), floats | index | {I8}
    yield "pow", binary("kPOW"), floats | {I8, I64}
    yield "less", binary("kLESS"), floats | index | {I8}
    yield "equal", binary("kEQUAL"), floats | index | {I8, I1}
    yield "or", binary("kOR"), {I1}
    yield "exp", unary("kEXP"), floats
    yield "abs", unary("kABS"), floats | index | {I8}
    yield "not", unary("kNOT"), {I1}
    yield "tan", unary("kTAN"), {F32, F16}
    yield "relu", activation("kRELU"), floats | index | {I8}
    yield "sigmoid", activation("kSIGMOID"), floats | {I8}
    yield "softmax", lambda x: tensorrt.softmax(x, 0), floats
    yield "matmul", lambda x: tensorrt.matrix_multiply(x, x, none, none), floats
    yield "sum", lambda x: tensorrt.reduce(x, axes, enum.ReduceOperationAttr.get("kSUM")), floats | index
    yield "top_k", lambda x: tensorrt.top_k(x, 1, 0, enum.TopKOperationAttr.get("kMAX"))[0], floats | index
    yield "concatenation", lambda x: tensorrt.concatenation([x, x], axis=0), floats | index | {I1, I8, F8}
    yield "shape", tensorrt.shape, floats | index | {I1, I4, I8, F8}
    yield "cast", lambda x: tensorrt.cast(tensor_type(x.type.dims, F32), x), floats | index | {I1, I8}
    yield (
        "dequantize",
        lambda x: tensorrt.dequantize(tensor_type(x.type.dims, F32), x, _scale()),
        {I8, I4, F8},
    )


def _scale():
    return constant(1.0, torch.float32)


@pytest.mark.parametrize(
    ("name", "build", "legal"), list(cases()), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("element", ALL, ids=str)
def test_element_types(name, build, legal, element, capfd):
    def compile_it():
        return compile_graph(build, [tensor_type((2, 2), element)])

    if element in legal:
        compile_it()
        return
    with pytest.raises(MTRTException, match="failed to run pass pipeline"):
        compile_it()
    assert "operand #0 must be tensor of" in capfd.readouterr().err


def test_no_operation_accepts_types_that_tensorrt_lacks():
    for rules in OPERANDS.values():
        for rule in rules:
            assert callable(rule) or not rule & set(NEVER)
    assert not any(legal & set(NEVER) for legal in RESULTS.values())


def test_mixed_types_are_rejected(capfd):
    add = tensorrt.ElementWiseOperationAttr.get("kSUM")
    with pytest.raises(MTRTException):
        compile_graph(
            lambda a, b: tensorrt.element_wise(a, b, add), [tensor_type((2,), F32), tensor_type((2,), F16)]
        )
    assert "requires the same element type for all operands" in capfd.readouterr().err


def test_rank_above_eight_is_rejected(capfd):
    relu = tensorrt.ActivationTypeAttr.get("kRELU")
    with pytest.raises(MTRTException):
        compile_graph(lambda x: tensorrt.activation(x, relu), [tensor_type((1,) * 9, F32)])
    assert "at most 8 dimensions" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda x: tensorrt.softmax(x, 2), "axis to be non-negative and less than 2"),
        (lambda x: tensorrt.gather(x, tensorrt.shape(x), axis=5), "axis must obey"),
        (lambda x: tensorrt.top_k(x, 3, 0, tensorrt.TopKOperationAttr.get("kMAX"))[0], "K attribute value 3"),
        (lambda x: tensorrt.concatenation([x, x], axis=2), "axis to be in the range"),
        (lambda x: tensorrt.broadcast(ranked(2, torch.float32), x, [0]), "broadcast_dims size"),
        (
            lambda x: tensorrt.reduce(
                x, ir.DenseI64ArrayAttr.get([4]), tensorrt.ReduceOperationAttr.get("kSUM")
            ),
            "reduction axes",
        ),
    ],
)
def test_attributes_out_of_range(build, text):
    with pytest.raises(ir.MLIRError, match="Operation creation failed") as caught:
        compile_graph(build, [tensor_type((2, 2), F32)])
    assert text in str(caught.value)


def test_unknown_enumeration_case():
    with pytest.raises(ValueError, match="'kNOPE' is not one of"):
        tensorrt.ActivationTypeAttr.get("kNOPE")


def test_an_operation_without_a_kernel_is_named(capfd):
    elu = tensorrt.ActivationTypeAttr.get("kELU")
    with pytest.raises(MTRTException):
        compile_graph(lambda x: tensorrt.activation(x, elu), [tensor_type((2,), F32)])
    assert "tensorrt.activation kELU is not supported" in capfd.readouterr().err
