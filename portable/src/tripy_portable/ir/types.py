"""MLIR types: element types, ranked tensors, functions. Types are interned, so equality is cheap."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tripy_portable import dtypes
from tripy_portable.dtypes import ElementType

DYNAMIC = -(2**63)


class Type:
    """Base of all types."""

    def __repr__(self) -> str:
        return f"Type({self})"


class ScalarElementType(Type):
    """A type that wraps an `ElementType`; one instance each."""

    def __init__(self, element: ElementType):
        self.element = element

    def __str__(self) -> str:
        return self.element.code


def _singleton(name: str, element: ElementType) -> type:
    cls = type(name, (ScalarElementType,), {"__doc__": f"The MLIR type `{element.code}`."})
    instance = cls(element)
    setattr(cls, "get", staticmethod(lambda: instance))  # noqa: B010, mypy knows no such attribute of `type`
    _BY_ELEMENT[element] = instance
    return cls


_BY_ELEMENT: dict[ElementType, ScalarElementType] = {}

F16Type = _singleton("F16Type", dtypes.F16)
BF16Type = _singleton("BF16Type", dtypes.BF16)
F32Type = _singleton("F32Type", dtypes.F32)
F64Type = _singleton("F64Type", dtypes.F64)
Float8E4M3FNType = _singleton("Float8E4M3FNType", dtypes.F8)


class IntegerType(ScalarElementType):
    """A signless integer type."""

    _by_width: dict[int, IntegerType] = {}

    @property
    def width(self) -> int:
        return self.element.bits

    @staticmethod
    def get_signless(width: int) -> IntegerType:
        try:
            return IntegerType._by_width[width]
        except KeyError:
            raise ValueError(
                f"No {width}-bit integer type; choose from {sorted(IntegerType._by_width)}."
            ) from None


for _element in (dtypes.I1, dtypes.I4, dtypes.I8, dtypes.I16, dtypes.I32, dtypes.I64):
    _BY_ELEMENT[_element] = IntegerType._by_width[_element.bits] = IntegerType(_element)


def element_type(element: ElementType) -> ScalarElementType:
    """The MLIR type of an element type."""
    return _BY_ELEMENT[element]


class ShapedType:
    """Helpers for shapes with unknown dimensions."""

    @staticmethod
    def get_dynamic_size() -> int:
        return DYNAMIC


class RankedTensorType(Type):
    """A tensor type: a shape, whose unknown dimensions are `DYNAMIC`, and an element type."""

    __slots__ = ("_hash", "dims", "element", "rank")

    def __init__(self, dims: tuple[int, ...], element: ElementType):
        self.dims = dims
        self.element = element
        self.rank = len(dims)
        self._hash = hash((dims, element.code))

    @staticmethod
    def get(shape: Sequence[int], element_type: ScalarElementType) -> RankedTensorType:
        return tensor_type(tuple(shape), element_type.element)

    @property
    def shape(self) -> list[int]:
        return list(self.dims)

    @property
    def element_type(self) -> ScalarElementType:
        return _BY_ELEMENT[self.element]

    @property
    def has_static_shape(self) -> bool:
        return DYNAMIC not in self.dims

    def is_dynamic_dim(self, index: int) -> bool:
        return self.dims[index] == DYNAMIC

    def get_dim_size(self, index: int) -> int:
        return self.dims[index]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RankedTensorType) and self.dims == other.dims and self.element == other.element
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        dims = "".join("?x" if dim == DYNAMIC else f"{dim}x" for dim in self.dims)
        return f"tensor<{dims}{self.element.code}>"


@lru_cache(maxsize=4096)
def tensor_type(dims: tuple[int, ...], element: ElementType) -> RankedTensorType:
    """The interned tensor type of a shape and an element type."""
    return RankedTensorType(dims, element)


class FunctionType(Type):
    """The type of a function: its inputs' and results' types."""

    def __init__(self, inputs: Sequence[RankedTensorType], results: Sequence[RankedTensorType]):
        self.inputs = list(inputs)
        self.results = list(results)

    @staticmethod
    def get(inputs: Sequence[RankedTensorType], results: Sequence[RankedTensorType]) -> FunctionType:
        return FunctionType(inputs, results)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.results))})"
