"""Builds of CUDA C++ by PyTorch's extension builder. The first call builds; PyTorch caches the build.

`TORCH_EXTENSIONS_DIR` is the folder of the build. `TORCH_CUDA_ARCH_LIST` lists its GPUs, by default this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def module(name: str, sources: Sequence[Path]) -> ModuleType:
    """The Python module that the sources define.

    Raises:
        RuntimeError: the CUDA compiler is missing, or the sources do not build; with the compiler's message.
    """
    return _built(name, sources, (), is_python_module=True)


def library(name: str, sources: Sequence[Path], cuda_flags: Sequence[str]) -> Path:
    """The shared library of sources with C functions; otherwise like `module`."""
    return Path(_built(name, sources, cuda_flags, is_python_module=False))


def _built(name: str, sources: Sequence[Path], cuda_flags: Sequence[str], *, is_python_module: bool) -> Any:
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        raise RuntimeError("CUDA C++ needs nvcc: install the CUDA toolkit and set CUDA_HOME")
    try:
        return cpp_extension.load(
            name=name,
            sources=[str(source) for source in sources],
            extra_cuda_cflags=["-O3", *cuda_flags],
            is_python_module=is_python_module,
        )
    except RuntimeError as error:
        raise RuntimeError(f"the extension {name} does not build: {error}") from error
