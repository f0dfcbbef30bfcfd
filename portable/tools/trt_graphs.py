"""Small recorded programs, made with the dialect's own builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlir_tensorrt.compiler.dialects import tensorrt as dialect
from tripy_portable.dtypes import I32, ElementType
from tripy_portable.ir.attributes import ArrayAttr, DenseElementsAttr, DictAttr, ShapeProfileAttr
from tripy_portable.ir.context import Location
from tripy_portable.ir.operations import FuncOp, InsertionPoint, Module, ReturnOp, Value
from tripy_portable.ir.types import DYNAMIC, FunctionType, RankedTensorType, element_type, tensor_type
from tripy_portable.program import Program, from_module

Body = Callable[..., Sequence[Value]]


def tensor(element: ElementType, *dims: int) -> RankedTensorType:
    """A tensor type; -1 stands for an extent that is not known."""
    return tensor_type(tuple(DYNAMIC if extent == -1 else extent for extent in dims), element)


def constant(values: Any, element: ElementType = I32) -> Value:
    """A constant operation."""
    data = torch.as_tensor(values).to(element.torch)
    return dialect.constant(DenseElementsAttr(data, element_type(element)))


def record(
    inputs: Sequence[RankedTensorType], body: Body, extents: tuple[int, int, int] = (2, 3, 4)
) -> Program:
    """The program of a function of tensors.

    Args:
        inputs: types of the arguments.
        body: builds the operations; returns the results.
        extents: least, typical and greatest extent of each dimension that is not known.
    """
    module = Module.create()
    with InsertionPoint(module.body):
        func = FuncOp("main", FunctionType.get(inputs, []))
        block = func.add_entry_block()
        with InsertionPoint(block), Location.name("x;;<out>;;y"):
            ReturnOp(list(body(*block.arguments)))
        profiles = [
            ShapeProfileAttr(
                *(tuple(bound if dim == DYNAMIC else dim for dim in type.dims) for bound in extents)
            )
            for type in inputs
        ]
        func.arg_attrs = ArrayAttr([DictAttr({"tensorrt.shape_profile": profile}) for profile in profiles])
    return from_module(module)


@dataclass(frozen=True)
class Case:
    """One graph: an operation, its variant (an enumeration's case, a mode, a layout), an element type."""

    operation: str
    variant: str
    element: str
    inputs: tuple[RankedTensorType, ...]
    body: Body

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.operation, self.variant, self.element) if part)

    def program(self) -> Program:
        return record(self.inputs, self.body)
