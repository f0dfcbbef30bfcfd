"""Stand-in for `mlir_tensorrt.compiler.api`."""

from tripy_portable.compiler import (
    CompilationTask,
    CompilerClient,
    PluginFieldInfo,
    PluginFieldType,
    get_tensorrt_plugin_field_schema,
    translate_mlir_to_executable,
)
from tripy_portable.runtime.executable import Executable

__all__ = [
    "CompilationTask",
    "CompilerClient",
    "Executable",
    "PluginFieldInfo",
    "PluginFieldType",
    "get_tensorrt_plugin_field_schema",
    "translate_mlir_to_executable",
]
