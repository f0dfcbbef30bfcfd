"""Result types of plugins, as the functions that describe them say."""

from __future__ import annotations

from typing import Any

from tripy_portable.diagnostics import VerificationError
from tripy_portable.dialect.inference import OpView, infers
from tripy_portable.dtypes import DATA_TYPES
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type
from tripy_portable.plugins.registry import PluginDef, find, not_registered
from tripy_portable.plugins.tensors import ShapeExpr, ShapeExprs, TensorDesc

_ELEMENTS = {data_type: element for element, data_type in DATA_TYPES.items()}


def definition_of(attrs: dict[str, Any]) -> PluginDef:
    """The plugin that an operation calls.

    Raises:
        VerificationError: where this process has not registered it.
    """
    definition = find(attrs["namespace"], attrs["name"])
    if definition is None:
        raise VerificationError(not_registered(attrs["namespace"], attrs["name"]))
    return definition


@infers("opaque_plugin")
def _opaque_plugin(view: OpView) -> list[RankedTensorType]:
    definition, values = definition_of(view.attrs), dict(view.attrs["attributes"])
    who = f"plugin '{definition.plugin_id}'"
    missing = [name for name in definition.input_attrs if name not in values]
    if missing:
        raise VerificationError(f"{who} needs a value for each of its attributes, and has none for {missing}")
    if len(view.types) != len(definition.input_tensor_names):
        raise VerificationError(
            f"{who} takes {len(definition.input_tensor_names)} inputs "
            f"({', '.join(definition.input_tensor_names)}), but got {len(view.types)}"
        )
    try:
        described = definition.register_func(
            *(_describe(view.type(index)) for index in range(len(view.types))), **values
        )
    except Exception as error:
        raise VerificationError(f"{who} refuses its inputs: {type(error).__name__}: {error}") from error
    outputs = described if isinstance(described, tuple) else (described,)
    if len(outputs) != definition.num_outputs or len(outputs) != len(view.declared):
        raise VerificationError(
            f"{who} describes {len(outputs)} outputs, was registered with {definition.num_outputs}, and is "
            f"called for {len(view.declared)}"
        )
    return [tensor_type(_extents(output.shape_expr), _ELEMENTS[output.dtype]) for output in outputs]


def _describe(type: RankedTensorType) -> TensorDesc:
    extents = [ShapeExpr(None if extent == DYNAMIC else extent) for extent in type.dims]
    return TensorDesc(ShapeExprs.from_tuple(extents), DATA_TYPES[type.element])


def _extents(shape: ShapeExprs) -> tuple[int, ...]:
    return tuple(DYNAMIC if extent.is_fake else extent.constant_value() for extent in shape)
