"""The dialect's builders, with the call forms of the native Python bindings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tripy_portable.diagnostics import (
    DiagnosticInfo,
    MLIRError,
    unsupported_outputs,
    unsupported_plugin,
)
from tripy_portable.dialect.enums import EnumAttr, SliceModeAttr
from tripy_portable.dialect.recording import build
from tripy_portable.ir.attributes import DenseElementsAttr
from tripy_portable.ir.context import current_location
from tripy_portable.ir.operations import OpResult, Value
from tripy_portable.ir.types import RankedTensorType, tensor_type
from tripy_portable.plugins.registry import find


def constant(weights: DenseElementsAttr) -> OpResult:
    """A tensor of given data."""
    tensor = weights.value
    return build("constant", (), {"data": tensor}, [tensor_type(tuple(tensor.shape), weights.type.element)])[
        0
    ]


def cast(result: RankedTensorType, input: Value) -> OpResult:
    """Changes the element type."""
    return build("cast", [input], {}, [result])[0]


def unary(input: Value, unary_operation: EnumAttr) -> OpResult:
    """Applies a unary function."""
    return build("unary", [input], {"operation": unary_operation})[0]


def activation(input: Value, activation_type: EnumAttr, alpha: Any = None, beta: Any = None) -> OpResult:
    """Applies an activation function."""
    attrs = {"activation_type": activation_type, "alpha": alpha, "beta": beta}
    return build("activation", [input], attrs)[0]


def element_wise(input1: Value, input2: Value, elementwise_operation: EnumAttr) -> OpResult:
    """Applies a binary function, with extents of 1 broadcast."""
    return build("element_wise", [input1, input2], {"operation": elementwise_operation})[0]


def select(condition: Value, then_input: Value, else_input: Value) -> OpResult:
    """Chooses between two tensors."""
    return build("select", [condition, then_input, else_input], {})[0]


def matrix_multiply(input0: Value, input1: Value, op0: EnumAttr, op1: EnumAttr) -> OpResult:
    """Multiplies matrices, with batch extents of 1 broadcast."""
    return build("matrix_multiply", [input0, input1], {"op0": op0, "op1": op1})[0]


def softmax(input: Value, axis: int) -> OpResult:
    """Normalises exponentials along an axis."""
    return build("softmax", [input], {"axis": axis})[0]


def reduce(
    input: Value, reduce_axes: Any, reduce_operation: EnumAttr, *, keep_dimensions: bool | None = None
) -> OpResult:
    """Reduces over axes."""
    attrs = {"axes": reduce_axes, "operation": reduce_operation, "keep_dimensions": bool(keep_dimensions)}
    return build("reduce", [input], attrs)[0]


def normalization(
    input: Value, scale: Value, bias: Value, axis: Any, *, eps: Any = None, num_groups: Any = None
) -> OpResult:
    """Normalises to zero mean and unit variance over axes, then scales and shifts."""
    attrs = {
        "axis": axis,
        "eps": 1e-5 if eps is None else eps,
        "num_groups": 1 if num_groups is None else num_groups,
    }
    return build("normalization", [input, scale, bias], attrs)[0]


def top_k(input: Value, k: int, axis: int, topk_operation: EnumAttr) -> list[OpResult]:
    """The k greatest or least values along an axis, and their indices."""
    return build("top_k", [input], {"k": k, "axis": axis, "operation": topk_operation})


def concatenation(inputs: Sequence[Value], axis: int) -> OpResult:
    """Joins tensors along an axis."""
    return build("concatenation", list(inputs), {"axis": axis})[0]


def gather(data: Value, indices: Value, axis: int, *, num_broadcast_dims: int | None = None) -> OpResult:
    """Selects slices of an axis by index."""
    if num_broadcast_dims:
        location = current_location()
        message = "'tensorrt.gather' op: num_broadcast_dims other than 0 is not supported"
        raise MLIRError("Operation creation failed", [DiagnosticInfo(f"{location}: {message}", location)])
    return build("gather", [data, indices], {"axis": axis})[0]


def slice(
    input: Value,
    *,
    fill: Value | None = None,
    start: Value | None = None,
    size: Value | None = None,
    stride: Value | None = None,
    static_start: Sequence[int] | None = None,
    static_size: Sequence[int] | None = None,
    static_stride: Sequence[int] | None = None,
    mode: EnumAttr | None = None,
) -> OpResult:
    """Cuts a strided box out of a tensor; modes define the elements outside of it."""
    attrs = {
        "static_start": static_start,
        "static_size": static_size,
        "static_stride": static_stride,
        "mode": mode if mode is not None else SliceModeAttr.get("kDEFAULT"),
    }
    return build("slice", [input, start, size, stride, fill], attrs)[0]


def shape(input: Value) -> OpResult:
    """A tensor's shape, as a rank-1 int32 tensor."""
    return build("shape", [input], {})[0]


def reshape(result: RankedTensorType, input: Value, *, shape: Value | None = None) -> OpResult:
    """Changes the shape and keeps the elements in row-major order."""
    return build("reshape", [input, shape], {}, [result])[0]


def collapse_rank(result: RankedTensorType, input: Value) -> OpResult:
    """Drops dimensions of extent 1."""
    return build("collapse_rank", [input], {}, [result])[0]


def broadcast(
    result: RankedTensorType, input: Value, broadcast_dims: Any, *, shape: Value | None = None
) -> OpResult:
    """Repeats a tensor along new dimensions and along dimensions of extent 1."""
    return build("broadcast", [input, shape], {"broadcast_dims": broadcast_dims}, [result])[0]


def transpose(input: Value, permutation: Any) -> OpResult:
    """Permutes dimensions."""
    return build("transpose", [input], {"permutation": permutation.permutation}, ())[0]


def linspace(
    result: RankedTensorType,
    *,
    shape: Value | None = None,
    start: Value | None = None,
    step: Value | None = None,
) -> OpResult:
    """An arithmetic sequence along each dimension: start + sum of index times step."""
    return build("linspace", [shape, start, step], {}, [result])[0]


def opaque_plugin(
    results: Sequence[RankedTensorType],
    plugin_name: str,
    plugin_version: str,
    plugin_namespace: str,
    creator_params: Any,
    inputs: Sequence[Value],
) -> OpResult:
    """A plugin that `tensorrt.plugin` has registered.

    Raises:
        UnsupportedOperation: the plugin is not registered (it is native code), or has several outputs, which
            nvtripy does not support; the message names it.
        MLIRError: an attribute has no value, or the plugin's own description refuses the inputs.
    """
    definition = find(plugin_namespace, plugin_name)
    if definition is None or plugin_version != "1":
        raise unsupported_plugin(plugin_namespace, plugin_name, plugin_version)
    attributes = {name: attr.value for name, attr in creator_params.value.items()}
    values = tuple(
        (name, kind(attributes[name])) for name, kind in definition.input_attrs.items() if name in attributes
    )
    attrs = {"namespace": plugin_namespace, "name": plugin_name, "attributes": values}
    if len(results) != 1:
        # The native binding would return a list, which nvtripy 0.1.7 treats as one result.
        raise unsupported_outputs(definition.plugin_id, len(results))
    return build("opaque_plugin", inputs, attrs, results)[0]
