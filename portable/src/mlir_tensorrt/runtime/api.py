"""Stand-in for `mlir_tensorrt.runtime.api`."""

from tripy_portable.diagnostics import MTRTException
from tripy_portable.runtime.client import Device, RuntimeClient, Stream
from tripy_portable.runtime.executable import Executable
from tripy_portable.runtime.memref import MemRefValue
from tripy_portable.runtime.session import RuntimeSession, RuntimeSessionOptions
from tripy_portable.runtime.types import PointerType, ScalarTypeCode

__all__ = [
    "Device",
    "Executable",
    "MTRTException",
    "MemRefValue",
    "PointerType",
    "RuntimeClient",
    "RuntimeSession",
    "RuntimeSessionOptions",
    "ScalarTypeCode",
    "Stream",
]
