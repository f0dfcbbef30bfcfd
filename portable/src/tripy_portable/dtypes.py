"""The element types of the TensorRT dialect, and their types on the host."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class ElementType:
    """One element type: `code` as MLIR spells it, and the torch dtype that holds its values.

    Each is one object, which is equal to itself alone.

    4-bit integers have no torch dtype that computes: an int8 holds one value, in [-8, 7].
    """

    code: str
    torch: torch.dtype
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.code

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind == "int"

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_half(self) -> bool:
        """16-bit floating point, whose sums are accumulated in float32."""
        return self.kind == "float" and self.bits == 16


F64 = ElementType("f64", torch.float64, "float", 64)
F32 = ElementType("f32", torch.float32, "float", 32)
F16 = ElementType("f16", torch.float16, "float", 16)
BF16 = ElementType("bf16", torch.bfloat16, "float", 16)
F8 = ElementType("f8E4M3FN", torch.float8_e4m3fn, "float", 8)
I64 = ElementType("i64", torch.int64, "int", 64)
I32 = ElementType("i32", torch.int32, "int", 32)
I16 = ElementType("i16", torch.int16, "int", 16)
I8 = ElementType("i8", torch.int8, "int", 8)
I4 = ElementType("i4", torch.int8, "int", 4)
I1 = ElementType("i1", torch.bool, "bool", 1)

ALL = (F64, F32, F16, BF16, F8, I64, I32, I16, I8, I4, I1)
BY_CODE = {element.code: element for element in ALL}
# i4 shares its storage with i8, and a bare torch.int8 tensor is an i8.
BY_TORCH = {element.torch: element for element in ALL if element is not I4}


class DataType(enum.Enum):
    """TensorRT's names and numbers of the element types, for nvtripy's table and for plugins."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    FP8 = 6
    BF16 = 7
    INT64 = 8
    INT4 = 9


DATA_TYPES = {
    F32: DataType.FLOAT,
    F16: DataType.HALF,
    BF16: DataType.BF16,
    F8: DataType.FP8,
    I64: DataType.INT64,
    I32: DataType.INT32,
    I8: DataType.INT8,
    I4: DataType.INT4,
    I1: DataType.BOOL,
}
