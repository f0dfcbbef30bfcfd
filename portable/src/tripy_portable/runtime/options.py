"""A user's options for a GPU: environment variables, read when an executable is compiled or loaded.

`TRIPY_PORTABLE_TF32=1` rounds the factors of float32 matrix products and convolutions to TF32. The default is
no rounding; PyTorch's own switches have no effect. The variable has no effect on the CPU.

`TRIPY_PORTABLE_CUDA_GRAPHS=1` captures the work of each set of input shapes as a CUDA graph at the second
call, and replays it. Inputs are copied into the graph's own memory, and results out of it. `graphs` chooses
for one executable.

`TRIPY_PORTABLE_FUSE=1` compiles the steps of each set of input shapes with PyTorch's Inductor at the first
call, which takes seconds; see `fusion`. It needs Triton and PyTorch 2.11.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tripy_portable.diagnostics import MTRTException

TF32 = "TRIPY_PORTABLE_TF32"
CUDA_GRAPHS = "TRIPY_PORTABLE_CUDA_GRAPHS"
FUSE = "TRIPY_PORTABLE_FUSE"


@dataclass(frozen=True)
class Options:
    """Options of an executable on a GPU: like builder flags, fixed when it is compiled or loaded."""

    allow_tf32: bool = False
    cuda_graphs: bool = False
    fuse: bool = False

    @classmethod
    def from_environment(cls) -> Options:
        """The options that the environment variables ask for.

        Raises:
            MTRTException: for a value other than 0 and 1, naming the variable.
        """
        return cls(is_on(TF32), is_on(CUDA_GRAPHS), is_on(FUSE))


def is_on(name: str) -> bool:
    """Whether an environment variable is 1.

    Raises:
        MTRTException: for a value other than 0 and 1, naming the variable.
    """
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise MTRTException(f"InvalidArgument: environment variable {name} must be 0 or 1, but is {value!r}")
    return value == "1"
