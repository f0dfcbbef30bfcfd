"""A stand-in for `tensorrt.plugin`: quickly deployable plugins that are registered here run on PyTorch."""

from __future__ import annotations

from tripy_portable.plugins.registry import aot_impl, impl, op, register
from tripy_portable.plugins.tensors import (
    KernelLaunchParams,
    ShapeExpr,
    ShapeExprs,
    SymExprs,
    SymInt32,
    SymIntExprs,
    Tensor,
    TensorDesc,
    cdiv,
    from_shape_expr,
)

__all__ = [
    "KernelLaunchParams",
    "ShapeExpr",
    "ShapeExprs",
    "SymExprs",
    "SymInt32",
    "SymIntExprs",
    "Tensor",
    "TensorDesc",
    "aot_impl",
    "cdiv",
    "from_shape_expr",
    "impl",
    "op",
    "register",
]
