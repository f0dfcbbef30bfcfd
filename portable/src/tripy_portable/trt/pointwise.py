"""Translations of element-wise operations, reductions, softmax, top-k, normalization and quantization."""

from __future__ import annotations

from typing import Any

from tripy_portable.trt.network import Conversion, converts


def _axes_mask(axes: Any) -> int:
    return sum(1 << axis for axis in axes)


@converts("cast")
def _cast(op: Conversion) -> list[Any]:
    return [op.out(op.network.add_cast(op.inputs[0], op.data_type(op.result_types[0].element)))]


@converts("unary")
def _unary(op: Conversion) -> list[Any]:
    operation = op.enum("UnaryOperation", op.attrs["operation"])
    return [op.out(op.network.add_unary(op.inputs[0], operation))]


@converts("activation")
def _activation(op: Conversion) -> list[Any]:
    kind = op.enum("ActivationType", op.attrs["activation_type"])
    layer = op.layer(op.network.add_activation(op.inputs[0], kind))
    for name in ("alpha", "beta"):
        if op.attrs.get(name) is not None:
            setattr(layer, name, op.attrs[name])
    return [layer.get_output(0)]


@converts("element_wise")
def _element_wise(op: Conversion) -> list[Any]:
    operation = op.enum("ElementWiseOperation", op.attrs["operation"])
    return [op.out(op.network.add_elementwise(op.inputs[0], op.inputs[1], operation))]


@converts("select")
def _select(op: Conversion) -> list[Any]:
    return [op.out(op.network.add_select(*op.inputs))]


@converts("softmax")
def _softmax(op: Conversion) -> list[Any]:
    layer = op.layer(op.network.add_softmax(op.inputs[0]))
    layer.axes = 1 << op.attrs["axis"]
    return [layer.get_output(0)]


@converts("reduce")
def _reduce(op: Conversion) -> list[Any]:
    operation = op.enum("ReduceOperation", op.attrs["operation"])
    axes = _axes_mask(op.attrs["axes"])
    return [op.out(op.network.add_reduce(op.inputs[0], operation, axes, op.attrs["keep_dimensions"]))]


@converts("top_k")
def _top_k(op: Conversion) -> list[Any]:
    operation = op.enum("TopKOperation", op.attrs["operation"])
    layer = op.layer(op.network.add_topk(op.inputs[0], operation, op.attrs["k"], 1 << op.attrs["axis"]))
    return [layer.get_output(0), layer.get_output(1)]


@converts("normalization")
def _normalization(op: Conversion) -> list[Any]:
    layer = op.layer(op.network.add_normalization(*op.inputs, _axes_mask(op.attrs["axis"])))
    layer.epsilon = op.attrs["eps"]
    layer.num_groups = op.attrs["num_groups"]
    return [layer.get_output(0)]


@converts("quantize", "dequantize")
def _quantization(op: Conversion) -> list[Any]:
    add = getattr(op.network, f"add_{op.node.op}")
    layer = op.layer(add(op.inputs[0], op.inputs[1], op.data_type(op.result_types[0].element)))
    if op.attrs["axis"] is not None:
        layer.axis = op.attrs["axis"]
    return [layer.get_output(0)]
