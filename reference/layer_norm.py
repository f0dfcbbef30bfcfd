"""A norm that gates its own input, as the production model's MLPs have it.

Source: meta-recsys/generative-recommenders, generative_recommenders/ops/layer_norm.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from reference.stu import at_least_float32
from reference.validation import require, require_positive


class SwishLayerNorm(torch.nn.Module):
    """x * sigmoid(layer norm of x) over the last axis, computed in float32 and rounded to x's type.

    Args:
        dim: size of the last axis.
        eps: added to the variance.
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_positive(dim=dim)
        require(eps > 0, "eps", eps, "must be positive")
        self._dim = dim
        self._eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim))
        self.bias = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., dim) -> (..., dim)."""
        wide = at_least_float32(x)
        weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        normed = F.layer_norm(wide, (self._dim,), weight, bias, self._eps)
        return (wide * torch.sigmoid(normed)).to(x.dtype)
