"""CUDA graphs for one executable: an option of the call, like `TRIPY_PORTABLE_CUDA_GRAPHS` of a process.

from tripy_portable.graphs import capture_graphs

capture_graphs(compiled)            # compiled = tp.compile(...) or tp.Executable.load(...)
"""

from __future__ import annotations

from typing import Any


def capture_graphs(compiled: Any, enabled: bool = True) -> None:
    """Replay a CUDA graph from the third call with the same input shapes on.

    The first call runs, the second captures and waits for the GPU once. A replay copies the inputs into the
    graph's memory with one kernel, whatever their types, and the results out of it. On the CPU there is no
    effect.

    Args:
        compiled: the `tp.Executable`. Its plans are made again.
        enabled: whether to capture; False undoes an earlier call, and the environment variable.
    """
    compiled._executable.capture_graphs(enabled)
