"""A stand-in for the `tensorrt` package: the few names that nvtripy imports. It builds no engines."""

from __future__ import annotations

from typing import NoReturn

from tripy_portable.diagnostics import missing_native
from tripy_portable.dtypes import DataType
from tripy_portable.guard import check_nvtripy_version, refuse_to_shadow_import

refuse_to_shadow_import()
check_nvtripy_version()

__portable__ = True

float32 = DataType.FLOAT
float16 = DataType.HALF
int8 = DataType.INT8
int32 = DataType.INT32
bool = DataType.BOOL  # (TensorRT's name)
fp8 = DataType.FP8
bfloat16 = DataType.BF16
int64 = DataType.INT64
int4 = DataType.INT4


def __getattr__(name: str) -> NoReturn:
    # `__version__` is among the absent: nvtripy reads it to load TensorRT's plugin library, and nothing else.
    raise missing_native(f"tensorrt.{name}")
