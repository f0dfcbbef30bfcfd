"""A real TensorRT build of what nvtripy records: is the graph accepted, what engine comes of it, does it run?

    executable = nvtripy.compile(model, args=[...])
    built = trt.build(trt.program_of(executable))

The library is `tensorrt` where that is installed, else `tensorrt_rtx`; `available()` says why there is none.
An engine can be built without a GPU, and run by `Engine` where there is one that it supports.
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
