"""A real TensorRT build of a recorded graph: translation, engine and execution.

    executable = nvtripy.compile(model, args=[...])
    built = trt.build(trt.program_of(executable))

The library is an installed `tensorrt`, else `tensorrt_rtx`; `available()` returns the reason for a missing
library. Building needs no GPU. `Engine` runs on a GPU that the library supports.
"""

from tripy_portable.trt.builder import (
    BuildOptions,
    EngineBuild,
    at_typical_shapes,
    build,
    cache_key,
    program_of,
)
from tripy_portable.trt.engine import CannotRun, Engine
from tripy_portable.trt.library import NoTensorRT, available, describe
from tripy_portable.trt.messages import Message, Refused
from tripy_portable.trt.plugins import NoPlugins

__all__ = [
    "BuildOptions",
    "CannotRun",
    "Engine",
    "EngineBuild",
    "Message",
    "NoPlugins",
    "NoTensorRT",
    "Refused",
    "at_typical_shapes",
    "available",
    "build",
    "cache_key",
    "describe",
    "program_of",
]
