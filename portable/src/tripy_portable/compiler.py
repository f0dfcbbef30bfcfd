"""The part of `mlir_tensorrt.compiler.api` that nvtripy uses: from a module to an executable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tripy_portable.constant_folding import compact, fold
from tripy_portable.diagnostics import (
    GraphError,
    MTRTException,
    UnsupportedOperation,
    emit_error,
    unsupported_plugin,
)
from tripy_portable.ir.context import Context
from tripy_portable.plugins.registry import find
from tripy_portable.program import Program, from_module
from tripy_portable.runtime.executable import Executable
from tripy_portable.runtime.folding import folding
from tripy_portable.runtime.options import Options
from tripy_portable.runtime.streams import device_of
from tripy_portable.verification import verify


class CompilerClient:
    """Makes compilation tasks."""

    def __init__(self, context: Context):
        self.context = context

    def get_compilation_task(self, pipeline: str, options: Sequence[str]) -> CompilationTask:
        """The task of a named pipeline.

        Raises:
            UnsupportedOperation: the pipeline is not `tensorrt-to-executable`.
        """
        if pipeline != "tensorrt-to-executable":
            raise UnsupportedOperation(f"pipeline {pipeline} is not supported by the portable runtime")
        return CompilationTask(options)


class CompilationTask:
    """Verifies and folds a module. TensorRT's builder options have no meaning here and are kept unread."""

    def __init__(self, options: Sequence[str]):
        self.options = tuple(options)

    def run(self, module_operation: Any) -> None:
        """Compiles a module, and attaches the result to it for `translate_mlir_to_executable`.

        Raises:
            MTRTException: the module is illegal; the located error is on file descriptor 2.
        """
        program = from_module(module_operation)
        module_operation.compiled = compile_program(program)
        module_operation.compiled.recorded = program


def compile_program(program: Program) -> Executable:
    """Verifies a recorded program, folds it, and plans it for its typical shapes.

    Raises:
        MTRTException: the program is illegal, or does not fit its typical shapes; the located error is on
            file descriptor 2, where nvtripy reads it.
    """
    try:
        verify(program)
        options = Options.from_environment()
        folded = fold(program, compute=folding(device_of(0), options.allow_tf32))
        verify(folded)
        executable = Executable.from_program(folded)
        executable.plan_for_typical_shapes()
    except GraphError as error:
        if error.location is None:
            raise
        emit_error(error.location, error.text)
        raise MTRTException("InternalError: failed to run pass pipeline") from error
    executable.program = compact(folded)
    return executable


def translate_mlir_to_executable(module_operation: Any) -> Executable:
    """The executable of a module that a compilation task has run on."""
    return module_operation.compiled


class PluginFieldType:
    """Kinds of plugin fields, for nvtripy's tables."""

    CHAR, DIMS, UNKNOWN = "CHAR", "DIMS", "UNKNOWN"
    FLOAT64, FLOAT32, FLOAT16, BF16, FP8 = "FLOAT64", "FLOAT32", "FLOAT16", "BF16", "FP8"
    INT64, INT32, INT16, INT8, INT4 = "INT64", "INT32", "INT16", "INT8", "INT4"


@dataclass(frozen=True)
class PluginFieldInfo:
    """Description of a plugin field: its kind and its number of values; 0 stands for any number."""

    type: str
    length: int = 0


_FIELD_TYPES = {
    int: PluginFieldType.INT64,
    float: PluginFieldType.FLOAT64,
    bool: PluginFieldType.INT8,
    str: PluginFieldType.CHAR,
}


def get_tensorrt_plugin_field_schema(
    name: str, version: str, namespace: str, dso_path: str
) -> dict[str, Any]:
    """The attributes of a plugin that `tensorrt.plugin` has registered.

    Raises:
        UnsupportedOperation: the plugin is not registered: it is native TensorRT code.
    """
    definition = find(namespace, name)
    if definition is None or version != "1":
        raise unsupported_plugin(namespace, name, version)
    return {key: PluginFieldInfo(_FIELD_TYPES[kind]) for key, kind in definition.input_attrs.items()}
