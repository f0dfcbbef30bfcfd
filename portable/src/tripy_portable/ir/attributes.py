"""MLIR attributes: constant data attached to operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tripy_portable.ir.types import IntegerType, ScalarElementType, Type


class Attribute:
    """Base of all attributes; `value` is the plain Python value."""

    def __init__(self, value: Any):
        self.value = value

    @staticmethod
    def parse(text: str, context: object | None = None) -> Attribute:
        """Parses the two attribute spellings that nvtripy writes: shape profiles and memory spaces."""
        profile = _PROFILE.fullmatch(text)
        if profile:
            bounds = (tuple(int(v) for v in group.split(",") if v.strip()) for group in profile.groups())
            return ShapeProfileAttr(*bounds)
        space = re.fullmatch(r"#plan\.memory_space<(\w+)>", text)
        if space:
            return MemorySpaceAttr(space.group(1))
        raise ValueError(f"Unable to parse attribute: {text}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self.value)))

    def __str__(self) -> str:
        return str(self.value)


_PROFILE = re.compile(r"#tensorrt\.shape_profile<min=\[([^]]*)\], opt=\[([^]]*)\], max=\[([^]]*)\]>")


class ShapeProfileAttr(Attribute):
    """The least, typical and greatest extents (or values) of an argument."""

    def __init__(self, min: tuple[int, ...], opt: tuple[int, ...], max: tuple[int, ...]):
        super().__init__((min, opt, max))
        self.min, self.opt, self.max = min, opt, max


class MemorySpaceAttr(Attribute):
    """Where an argument lives: `host` or `device`."""


class StringAttr(Attribute):
    """A string."""

    @staticmethod
    def get(value: str, context: object | None = None) -> StringAttr:
        return StringAttr(value)


class BoolAttr(Attribute):
    """A truth value."""

    @staticmethod
    def get(value: bool, context: object | None = None) -> BoolAttr:
        return BoolAttr(bool(value))


class TypeAttr(Attribute):
    """A type."""

    @staticmethod
    def get(value: Type, context: object | None = None) -> TypeAttr:
        return TypeAttr(value)


class _TypedNumberAttr(Attribute):
    def __init__(self, type: ScalarElementType, value: Any):
        super().__init__(value)
        self.type = type


class IntegerAttr(_TypedNumberAttr):
    """An integer with its type."""

    @staticmethod
    def get(type: IntegerType, value: int) -> IntegerAttr:
        return IntegerAttr(type, int(value))


class FloatAttr(_TypedNumberAttr):
    """A floating-point number with its type."""

    @staticmethod
    def get(type: ScalarElementType, value: float) -> FloatAttr:
        return FloatAttr(type, float(value))


class _SequenceAttr(Attribute):
    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __getitem__(self, index: int) -> Any:
        return self.value[index]


class ArrayAttr(_SequenceAttr):
    """A list of attributes."""

    @staticmethod
    def get(value: Sequence[Attribute], context: object | None = None) -> ArrayAttr:
        return ArrayAttr(list(value))


class DictAttr(Attribute):
    """A mapping of names to attributes."""

    @staticmethod
    def get(value: Mapping[str, Attribute] | None = None, context: object | None = None) -> DictAttr:
        return DictAttr(dict(value or {}))


class DenseI64ArrayAttr(_SequenceAttr):
    """A list of 64-bit integers."""

    @staticmethod
    def get(value: Sequence[int], context: object | None = None) -> DenseI64ArrayAttr:
        return DenseI64ArrayAttr(tuple(int(v) for v in value))


class DenseI32ArrayAttr(_SequenceAttr):
    """A list of 32-bit integers."""

    @staticmethod
    def get(value: Sequence[int], context: object | None = None) -> DenseI32ArrayAttr:
        return DenseI32ArrayAttr(tuple(int(v) for v in value))


class DenseF32ArrayAttr(_SequenceAttr):
    """A list of 32-bit floating-point numbers."""

    @staticmethod
    def get(value: Sequence[float], context: object | None = None) -> DenseF32ArrayAttr:
        return DenseF32ArrayAttr(tuple(float(v) for v in value))


class DenseElementsAttr(Attribute):
    """The data of a constant tensor."""

    def __init__(self, tensor: torch.Tensor, type: ScalarElementType):
        super().__init__(tensor)
        self.type = type

    @staticmethod
    def get(
        array: Any,
        signless: bool = True,
        type: ScalarElementType | None = None,
        shape: Sequence[int] | None = None,
        context: object | None = None,
    ) -> DenseElementsAttr:
        """From a host memref, or from a list of typed number attributes.

        Args:
            array: a host `MemRefValue` to freeze, or `IntegerAttr`s or `FloatAttr`s of one type.
            type: the element type; for attributes, their own.
            shape: the tensor's shape; for attributes, their count.
        """
        if isinstance(array, (list, tuple)):
            own_type = array[0].type
            data = torch.tensor([attr.value for attr in array], dtype=own_type.element.torch)
            return DenseElementsAttr(data.reshape(tuple(shape)) if shape is not None else data, own_type)
        if type is None:
            raise ValueError("DenseElementsAttr.get needs the element type of the data: pass type=.")
        data = array.frozen_tensor()
        return DenseElementsAttr(data.reshape(tuple(shape)) if shape is not None else data, type)

    def __len__(self) -> int:
        return self.value.numel()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value.reshape(-1).tolist())

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)
