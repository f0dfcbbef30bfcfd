"""Stand-in for `mlir_tensorrt.compiler.dialects.func`."""

from tripy_portable.ir.operations import FuncOp, ReturnOp

__all__ = ["FuncOp", "ReturnOp"]
