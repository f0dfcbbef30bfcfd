"""Result types of each operation, from operand types, attributes and known operand values.

In a recorded graph, dimensions may be unknown (`DYNAMIC`), and so are all values. In a plan, all dimensions
and the values of shape operands are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tripy_portable.diagnostics import VerificationError
from tripy_portable.dtypes import I1, I32, ElementType
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type


@dataclass(slots=True)
class OpView:
    """An operation for inference and lowering.

    `values[i]` is the tensor of operand i, or None if it is not constant. `declared` are the result types so
    far; they carry the element type and rank of operations with a given result type.
    """

    name: str
    types: Sequence[RankedTensorType | None]
    attrs: dict[str, Any]
    declared: Sequence[RankedTensorType]
    values: Sequence[torch.Tensor | None]

    def type(self, index: int) -> RankedTensorType:
        """The type of an operand that is not optional."""
        type = self.types[index]
        assert type is not None, f"{self.name} was recorded without its operand {index}"
        return type

    def ints(self, index: int) -> list[int] | None:
        """The values of a shape operand, or None while unknown."""
        value = self.values[index] if index < len(self.values) else None
        return value.tolist() if value is not None else None


InferFn = Callable[[OpView], list[RankedTensorType]]
_INFER: dict[str, InferFn] = {}


def infers(*names: str) -> Callable[[InferFn], InferFn]:
    """Registers the inference of operations."""

    def register(fn: InferFn) -> InferFn:
        for name in names:
            _INFER[name] = fn
        return fn

    return register


def infer(view: OpView) -> list[RankedTensorType]:
    """The result types, merged with the declared ones.

    Raises:
        VerificationError: shapes do not fit each other or the declared result type.
    """
    inferred = _INFER[view.name](view)
    if not view.declared:
        return inferred
    return [_merge(view.name, a, b) for a, b in zip(inferred, view.declared)]


def _merge(name: str, inferred: RankedTensorType, declared: RankedTensorType) -> RankedTensorType:
    if inferred is declared:
        return inferred
    compatible = inferred.element is declared.element and inferred.rank == declared.rank
    if compatible:
        dims = tuple(b if a == DYNAMIC else a for a, b in zip(inferred.dims, declared.dims))
        compatible = all(b in (DYNAMIC, d) for d, b in zip(dims, declared.dims))
    if not compatible:
        raise VerificationError(
            f"inferred type(s) '{inferred}' are incompatible with return type(s) of operation '{declared}'"
        )
    return tensor_type(dims, inferred.element)


@lru_cache(maxsize=4096)
def broadcast_dims(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that equal-rank shapes broadcast to: extents must be equal or 1.

    Raises:
        VerificationError: an extent differs and is not 1; the message has the dimension and the shapes.
    """
    if len({len(shape) for shape in shapes}) != 1:
        raise VerificationError(
            f"requires all operands to have the same rank, but got shapes {_show(shapes)}"
        )
    result = []
    for axis, extents in enumerate(zip(*shapes)):
        wide = {extent for extent in extents if extent not in (1, DYNAMIC)}
        if len(wide) > 1:
            raise VerificationError(
                "failed to determine expected shape: broadcast dimensions must be conformable, but "
                "dimension "
                f"{axis} of shapes {_show(shapes)} is neither equal nor 1"
            )
        result.append(wide.pop() if wide else (DYNAMIC if DYNAMIC in extents else 1))
    return tuple(result)


def _show(shapes: Sequence[tuple[int, ...]]) -> str:
    texts = ["[" + ", ".join("?" if d == DYNAMIC else str(d) for d in shape) + "]" for shape in shapes]
    return " and ".join(texts)


@infers("constant")
def _constant(view: OpView) -> list[RankedTensorType]:
    return list(view.declared)


@infers("unary", "activation", "softmax")
def _same(view: OpView) -> list[RankedTensorType]:
    if view.name == "softmax" and not 0 <= view.attrs["axis"] < view.type(0).rank:
        raise VerificationError(f"expected axis to be non-negative and less than {view.type(0).rank}")
    return [view.type(0)]


@infers("normalization")
def _normalization(view: OpView) -> list[RankedTensorType]:
    data, scale, bias = (view.type(index) for index in range(3))
    if not data.rank == scale.rank == bias.rank:
        raise VerificationError(
            f"failed to verify that all of {{input, scale, bias}} have the same rank: got '{data}', "
            f"'{scale}', '{bias}'"
        )
    axes = view.attrs["axis"]
    if not axes or axes[-1] >= data.rank:
        raise VerificationError(
            f"`axis` value {axes} is out of bounds for an input tensor of rank {data.rank}"
        )
    for what, affine in (("scale", scale), ("bias", bias)):
        for dim, (extent, other) in enumerate(zip(data.dims, affine.dims)):
            if DYNAMIC not in (extent, other) and other not in (1, extent, view.attrs["num_groups"]):
                raise VerificationError(
                    f"The normalization {what} is not broadcast-compatible with the input at dimension "
                    f"{dim}: "
                    f"got '{affine}' for '{data}'"
                )
    return [data]


@infers("cast")
def _cast(view: OpView) -> list[RankedTensorType]:
    return [tensor_type(view.type(0).dims, view.declared[0].element)]


@infers("element_wise")
def _element_wise(view: OpView) -> list[RankedTensorType]:
    left, right = view.type(0), view.type(1)
    compares = view.attrs["operation"] in ("kEQUAL", "kGREATER", "kLESS")
    element: ElementType = I1 if compares else left.element
    return [tensor_type(broadcast_dims(left.dims, right.dims), element)]


@infers("select")
def _select(view: OpView) -> list[RankedTensorType]:
    condition, then, otherwise = (view.type(index) for index in range(3))
    return [tensor_type(broadcast_dims(condition.dims, then.dims, otherwise.dims), then.element)]


@infers("matrix_multiply")
def _matrix_multiply(view: OpView) -> list[RankedTensorType]:
    a, b = view.type(0), view.type(1)
    a_vector, b_vector = view.attrs["op0"] == "kVECTOR", view.attrs["op1"] == "kVECTOR"
    a_keep, b_keep = (1 if a_vector else 2), (1 if b_vector else 2)
    if a.rank < a_keep or b.rank < b_keep:
        raise VerificationError(f"operands have too few dimensions: got '{a}' and '{b}'")
    batch_a, batch_b = a.dims[: a.rank - a_keep], b.dims[: b.rank - b_keep]
    inner_a = a.dims[-2] if view.attrs["op0"] == "kTRANSPOSE" else a.dims[-1]
    inner_b = b.dims[-1] if b_vector or view.attrs["op1"] == "kTRANSPOSE" else b.dims[-2]
    if DYNAMIC not in (inner_a, inner_b) and inner_a != inner_b:
        side_a = "second to last" if view.attrs["op0"] == "kTRANSPOSE" else "last"
        side_b = "last" if b_vector or view.attrs["op1"] == "kTRANSPOSE" else "second to last"
        raise VerificationError(
            "operand shapes do not have consistent sizes for the contraction dimension: "
            f"{side_a} dimension of input0 = {inner_a} and {side_b} dimension of input1 = {inner_b} but "
            "must match: "
            f"got '{a}' and '{b}'"
        )
    if len(batch_a) != len(batch_b) and not (a_vector or b_vector):
        raise VerificationError(f"collection (batch) dimensions must have equal rank: got '{a}' and '{b}'")
    batch = (
        broadcast_dims(batch_a, batch_b) if len(batch_a) == len(batch_b) else max(batch_a, batch_b, key=len)
    )
    rows = () if a_vector else (a.dims[-1] if view.attrs["op0"] == "kTRANSPOSE" else a.dims[-2],)
    columns = () if b_vector else (b.dims[-2] if view.attrs["op1"] == "kTRANSPOSE" else b.dims[-1],)
    return [tensor_type((*batch, *rows, *columns), a.element)]


@infers("reduce")
def _reduce(view: OpView) -> list[RankedTensorType]:
    data, axes = view.type(0), view.attrs["axes"]
    if any(not 0 <= axis < data.rank for axis in axes):
        raise VerificationError(f"expected reduction axes {list(axes)} to be within the rank {data.rank}")
    if view.attrs["keep_dimensions"]:
        dims = tuple(1 if d in axes else extent for d, extent in enumerate(data.dims))
    else:
        dims = tuple(extent for d, extent in enumerate(data.dims) if d not in axes)
    return [tensor_type(dims, data.element)]


@infers("top_k")
def _top_k(view: OpView) -> list[RankedTensorType]:
    data, axis, k = view.type(0), view.attrs["axis"], view.attrs["k"]
    if not 0 <= axis < data.rank:
        raise VerificationError(
            f'"axis" attribute is {axis}, but this is out of bounds for input of rank {data.rank}'
        )
    if data.dims[axis] != DYNAMIC and data.dims[axis] < k:
        raise VerificationError(
            f'expected K attribute value {k} to be smaller than the dimension specified by "axis", '
            f"{data.dims[axis]}"
        )
    dims = tuple(k if d == axis else extent for d, extent in enumerate(data.dims))
    return [tensor_type(dims, data.element), tensor_type(dims, I32)]
