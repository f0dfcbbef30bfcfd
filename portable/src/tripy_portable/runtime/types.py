"""Enumerations of the runtime interface."""

from __future__ import annotations

import enum

from tripy_portable import dtypes
from tripy_portable.dtypes import ElementType


class PointerType(enum.Enum):
    """Where memory lives."""

    host = 0
    pinned_host = 1
    device = 2
    unified = 3
    unknown = 4


class ScalarTypeCode(enum.Enum):
    """Element types, under the runtime's names."""

    f8e4m3fn = 1
    f16 = 2
    f32 = 3
    f64 = 4
    i1 = 5
    i8 = 6
    i16 = 8
    i32 = 9
    i64 = 10
    bf16 = 11
    i4 = 12

    # Members are equal to themselves alone. `Enum` hashes their names, in Python, at every look-up of a call.
    __hash__ = object.__hash__

    @property
    def element(self) -> ElementType:
        """The element type of the code."""
        return _ELEMENTS[self]

    @staticmethod
    def of(element: ElementType) -> ScalarTypeCode:
        """The code of an element type."""
        return _CODES[element]


_ELEMENTS = {
    ScalarTypeCode.f8e4m3fn: dtypes.F8,
    ScalarTypeCode.f16: dtypes.F16,
    ScalarTypeCode.f32: dtypes.F32,
    ScalarTypeCode.f64: dtypes.F64,
    ScalarTypeCode.i1: dtypes.I1,
    ScalarTypeCode.i8: dtypes.I8,
    ScalarTypeCode.i16: dtypes.I16,
    ScalarTypeCode.i32: dtypes.I32,
    ScalarTypeCode.i64: dtypes.I64,
    ScalarTypeCode.bf16: dtypes.BF16,
    ScalarTypeCode.i4: dtypes.I4,
}
_CODES = {element: code for code, element in _ELEMENTS.items()}
