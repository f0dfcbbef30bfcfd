"""A norm that gates its own input, as the production model's MLPs have it. Counterpart of
reference/layer_norm.py.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.parameters import parameter
from tripy_port.stu import at_least_float32
from tripy_port.validation import require, require_positive


class SwishLayerNorm(tp.Module):
    """x * sigmoid(layer norm of x) over the last axis, computed in float32 and rounded to x's type.

    Args:
        dim: size of the last axis.
        eps: added to the variance.
        dtype: of the weights.
    """

    def __init__(self, dim: int, eps: float = 1e-5, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        require_positive(dim=dim)
        require(eps > 0, "eps", eps, "must be positive")
        self._dim = dim
        self._eps = eps
        self.weight = parameter((dim,), dtype)
        self.bias = parameter((dim,), dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(..., dim) -> (..., dim)."""
        wide = at_least_float32(x)
        norm = tp.LayerNorm(self._dim, dtype=tp.float32, eps=self._eps)
        norm.weight, norm.bias = tp.cast(self.weight, tp.float32), tp.cast(self.bias, tp.float32)
        return tp.cast(wide * tp.sigmoid(norm(wide)), x.dtype)
