"""Builds of CUDA C++ by PyTorch's extension builder. The first call builds; PyTorch caches the build.

`TORCH_EXTENSIONS_DIR` is the folder of the build. `TORCH_CUDA_ARCH_LIST` lists its GPUs, by default this one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# The target of a GPU of compute capability 9.0. Warpgroup products and setmaxnreg exist for it alone.
HOPPER_FLAGS = ("-gencode=arch=compute_90a,code=sm_90a",)


def module(name: str, sources: Sequence[Path]) -> ModuleType:
    """The Python module that the sources define.

    Raises:
        RuntimeError: the CUDA compiler is missing, or the sources do not build; with the compiler's message.
    """
    return _built(name, sources, (), is_python_module=True)


def library(name: str, sources: Sequence[Path], cuda_flags: Sequence[str]) -> Path:
    """The shared library of sources with C functions; otherwise like `module`."""
    return Path(_built(name, sources, cuda_flags, is_python_module=False))


def launcher(name: str, source: Path, cuda_flags: Sequence[str], function: str) -> Callable[..., int]:
    """A C function of a `library`: it takes a structure's address and a stream, and returns an error or 0."""
    found = ctypes.CDLL(str(library(name, [source], cuda_flags)))[function]
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    return found


def launch(
    function: Callable[..., int], arguments: ctypes.Structure, device: torch.device, errors: Mapping[int, str]
) -> None:
    """Call the function of a `launcher` on a device's current stream.

    Args:
        errors: texts of the function's own errors; its others are CUDA's.

    Raises:
        RuntimeError: the launch fails.
    """
    with torch.cuda.device(device):
        error = function(ctypes.byref(arguments), torch.cuda.current_stream(device).cuda_stream)
    if error:
        reason = errors.get(error, f"cudaError_t {error}")
        raise RuntimeError(f"backend='hopper': the launch fails: {reason}")


def missing_compiler() -> str:
    """Why nothing can be compiled here, or an empty text."""
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        return "CUDA C++ needs nvcc: install the CUDA toolkit and set CUDA_HOME"
    return ""


def not_hopper(device: torch.device) -> str:
    """Why a device cannot run what `HOPPER_FLAGS` compile, or an empty text."""
    name = device.type
    if name == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability == (9, 0):
            return ""
        name = "{}.{}".format(*capability)
    return f"it needs a GPU of compute capability 9.0, not {name}"


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Number of a GPU's multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def _built(name: str, sources: Sequence[Path], cuda_flags: Sequence[str], *, is_python_module: bool) -> Any:
    from torch.utils import cpp_extension

    if reason := missing_compiler():
        raise RuntimeError(reason)
    try:
        return cpp_extension.load(
            name=name,
            sources=[str(source) for source in sources],
            extra_cuda_cflags=["-O3", *cuda_flags],
            is_python_module=is_python_module,
        )
    except RuntimeError as error:
        raise RuntimeError(f"the extension {name} does not build: {error}") from error
