"""Registration of quickly deployable plugins, checked by the rules that TensorRT documents for it.

`register` describes inputs and outputs, `impl` computes the outputs, `aot_impl` returns a compiled kernel. An
engine of MLIR-TensorRT uses the kernel; the portable runtime calls `impl`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tripy_portable.diagnostics import MissingNative, MTRTException, UnsupportedOperation
from tripy_portable.plugins.tensors import KernelLaunchParams, SymExprs, Tensor, TensorDesc
from tripy_portable.program import Program

ATTRIBUTE_TYPES = (int, float, bool, str)
"""Supported types of attributes. TensorRT also takes bytes, which nvtripy cannot pass on, and arrays."""
_RESERVED_NAMESPACES = ("", "trt", "tensorrt", "std")
_RESERVED_ATTRIBUTES = ("outputs", "stream", "tactic")


@dataclass
class PluginDef:
    """A registered plugin; nvtripy reads these attribute names from TensorRT's registry."""

    plugin_id: str
    register_func: Callable[..., Any]
    input_tensor_names: list[str]
    input_attrs: dict[str, type]
    num_outputs: int
    impl_func: Callable[..., None] | None = None
    impl_attr_names: list[str] = field(default_factory=list)
    aot_impl_func: Callable[..., Any] | None = None


class _Namespace:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedOperation(
            f"plugin '{self._name}::{name}' is compiled into TensorRT engines, which the portable runtime "
            f"cannot run. {_advice()}"
        )


class _Namespaces:
    def __getattr__(self, name: str) -> _Namespace:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Namespace(name)


op = _Namespaces()
"""Registered plugins, as `op.<namespace>.<name>`."""

_REGISTERED: dict[str, PluginDef] = {}


def find(namespace: str, name: str) -> PluginDef | None:
    """A registered plugin, or None."""
    return _REGISTERED.get(f"{namespace}::{name}")


def _advice() -> str:
    names = ", ".join(sorted(_REGISTERED)) or "none"
    return f"It calls plugins that `tensorrt.plugin.register` has registered in this process ({names})"


def not_registered(namespace: str, name: str) -> str:
    """The error's text for a saved program with a plugin that this process has not registered."""
    return (
        f"the executable calls plugin '{namespace}::{name}', which is not registered in this process; import "
        f"the module that registers it before loading. {_advice()}"
    )


def check_plugins(program: Program) -> None:
    """Checks that every plugin that a saved program calls is registered.

    Raises:
        MTRTException: a plugin is not registered; the message names the first one.
    """
    for node in program.nodes:
        if node.op == "opaque_plugin":
            namespace, name = node.attrs["namespace"], node.attrs["name"]
            if find(namespace, name) is None:
                raise MTRTException(f"InvalidArgument: {not_registered(namespace, name)}")


def register(plugin_id: str, lazy_register: bool = False) -> Callable[[Callable], Callable]:
    """Registers a plugin by the function that describes its outputs.

    The function takes a `TensorDesc` for each input, then the attributes. All have type hints and no
    defaults. It returns a `TensorDesc` or a tuple of them, by its return annotation.

    Args:
        plugin_id: `<namespace>::<name>`.
        lazy_register: TensorRT's option, without effect here.

    Raises:
        ValueError: the name is taken or illegal, or the function's signature differs.
        UnsupportedOperation: nvtripy or this package lacks an attribute's type that TensorRT accepts.
    """

    def decorator(function: Callable) -> Callable:
        namespace, separator, name = plugin_id.partition("::")
        if not separator or not name or "." in plugin_id or namespace in _RESERVED_NAMESPACES:
            raise ValueError(
                f"plugin ID '{plugin_id}' must be '<namespace>::<name>', without dots, not reserved"
            )
        if plugin_id in _REGISTERED:
            raise ValueError(f"there already is a definition of '{plugin_id}'")
        tensors, attributes = _parameters(plugin_id, function)
        definition = PluginDef(plugin_id, function, tensors, attributes, _count_outputs(plugin_id, function))
        _REGISTERED[plugin_id] = definition
        vars(vars(op).setdefault(namespace, _Namespace(namespace)))[name] = definition
        _let_nvtripy_ask_for_the_library()
        return function

    return decorator


def impl(plugin_id: str) -> Callable[[Callable], Callable]:
    """Registers the implementation `(inputs..., attributes..., outputs, stream)`, which writes to `outputs`.

    Its arguments are `Tensor`s and the current CUDA stream, 0 on the CPU. It may omit attributes.

    Raises:
        ValueError: the plugin is not registered, or the signature differs.
    """

    def decorator(function: Callable) -> Callable:
        definition = _registered(plugin_id)
        names = _check_signature(definition, function, ("outputs", "stream"))
        definition.impl_func, definition.impl_attr_names = function, names
        return function

    return decorator


def aot_impl(plugin_id: str) -> Callable[[Callable], Callable]:
    """Registers the compiler of a plugin's kernel: `(inputs..., attributes..., outputs, tactic)`.

    Its tensors are descriptors. It returns the kernel's name, its PTX, `KernelLaunchParams` and `SymExprs`.
    The portable runtime does not call it.

    Raises:
        ValueError: the plugin is not registered, or the signature differs.
    """

    def decorator(function: Callable) -> Callable:
        definition = _registered(plugin_id)
        _check_signature(definition, function, ("outputs", "tactic"))
        returned = typing.get_args(inspect.signature(function).return_annotation)
        if len(returned) != 4 or not (_is(returned[2], KernelLaunchParams) and _is(returned[3], SymExprs)):
            raise ValueError(
                f"aot_impl of '{plugin_id}' must be annotated to return tuple[str | bytes, str | bytes, "
                "KernelLaunchParams, SymIntExprs]"
            )
        definition.aot_impl_func = function
        return function

    return decorator


def _registered(plugin_id: str) -> PluginDef:
    if plugin_id not in _REGISTERED:
        raise ValueError(f"Plugin {plugin_id} is not registered: tensorrt.plugin.register comes first")
    return _REGISTERED[plugin_id]


def _is(annotation: Any, kind: type | tuple[type, ...]) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, kind)


def _parameters(plugin_id: str, function: Callable) -> tuple[list[str], dict[str, type]]:
    tensors: list[str] = []
    attributes: dict[str, type] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        argument = f"argument '{name}' of '{plugin_id}'"
        if parameter.default is not parameter.empty or parameter.kind.name.startswith("VAR"):
            raise ValueError(f"{argument} must be a plain argument without a default")
        if _is(kind, TensorDesc):
            if attributes:
                raise ValueError(f"{argument} is a tensor and must come before the attributes")
            tensors.append(name)
        elif name in _RESERVED_ATTRIBUTES:
            raise ValueError(f"{argument} has a name that is reserved")
        elif kind in ATTRIBUTE_TYPES:
            attributes[name] = kind
        elif kind is bytes or getattr(kind, "__module__", "") == "numpy" or typing.get_origin(kind):
            raise UnsupportedOperation(
                f"{argument} has type {kind}: the portable runtime takes {ATTRIBUTE_TYPES}"
            )
        else:
            raise ValueError(f"{argument} needs a type hint, TensorDesc or an attribute's, but has {kind!r}")
    if not tensors:
        raise ValueError(f"'{plugin_id}' must have at least one input tensor")
    return tensors, attributes


def _count_outputs(plugin_id: str, function: Callable) -> int:
    returned = inspect.signature(function).return_annotation
    kinds = typing.get_args(returned) if typing.get_origin(returned) is tuple else (returned,)
    if not kinds or not all(_is(kind, TensorDesc) for kind in kinds):
        raise ValueError(f"'{plugin_id}' must be annotated to return TensorDesc or a tuple of them")
    return len(kinds)


def _check_signature(definition: PluginDef, function: Callable, last: Sequence[str]) -> list[str]:
    """The attributes that the function takes."""
    names = list(inspect.signature(function).parameters)
    taken = [name for name in definition.input_attrs if name in names]
    expected = [*definition.input_tensor_names, *taken, *last]
    if names != expected:
        raise ValueError(
            f"the function for '{definition.plugin_id}' takes ({', '.join(names)}), but must take "
            f"({', '.join(expected)})"
        )
    for name, parameter in inspect.signature(function).parameters.items():
        kind = definition.input_attrs.get(name)
        if kind is not None and parameter.annotation not in (kind, parameter.empty):
            raise ValueError(
                f"attribute '{name}' of '{definition.plugin_id}' was registered as {kind.__name__}, not "
                f"{parameter.annotation}"
            )
        is_tensor = name in definition.input_tensor_names and parameter.annotation is not parameter.empty
        if is_tensor and not _is(parameter.annotation, (Tensor, TensorDesc)):
            raise ValueError(f"input '{name}' of '{definition.plugin_id}' must be annotated as a tensor")
    return taken


def _let_nvtripy_ask_for_the_library() -> None:
    """Triggers nvtripy's one attempt to load TensorRT's own plugin library.

    nvtripy loads it with the first plugin of a process. The missing library would fail that plugin.
    """
    from nvtripy.trace.ops.plugin import (  # type: ignore[import-untyped]  # nvtripy has no types
        initialize_plugin_registry,
    )

    try:
        initialize_plugin_registry()
    except MissingNative:
        return
