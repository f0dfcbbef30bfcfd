"""Stand-in for `mlir_tensorrt.compiler.dialects._ods_common`."""

from tripy_portable.ir.operations import Operation, Value


def get_op_result_or_value(value: "Operation | Value") -> Value:
    """The value itself, or the only result of an operation."""
    return value.results[0] if isinstance(value, Operation) else value


__all__ = ["get_op_result_or_value"]
