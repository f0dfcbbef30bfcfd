"""Stand-in for `mlir_tensorrt.compiler.dialects.affine`."""

from tripy_portable.dialect.affine import AffineMap

__all__ = ["AffineMap"]
