"""One lowering an operation: the definition of its semantics."""

from tripy_portable.kernels import (  # noqa: F401  (importing registers the lowerings)
    contraction,
    layout,
    normalization,
    plugin,
    pointwise,
    quantization,
    reduction,
    window,
)
from tripy_portable.kernels.registry import Lowered, lower

__all__ = ["Lowered", "lower"]
