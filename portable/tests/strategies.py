"""Generated shapes and values."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
FEW = settings(max_examples=15, deadline=None)


def shapes(min_dims: int = 0, max_dims: int = 6, min_side: int = 0, max_side: int = 3) -> st.SearchStrategy:
    """Shapes of ranks 0 to 6, zero-size dimensions included."""
    return hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side)


def floats(shape, dtype=torch.float32, low: float = -4.0, high: float = 4.0) -> st.SearchStrategy:
    """Tensors of values that the type represents exactly."""
    elements = st.floats(low, high, width=32)
    return hnp.arrays(np.float32, shape, elements=elements).map(lambda a: torch.from_numpy(a).to(dtype))


def integers(shape, dtype=np.int32, low: int | None = None, high: int | None = None) -> st.SearchStrategy:
    """Arrays of integers, over the type's range by default."""
    limits = np.iinfo(dtype)
    elements = st.integers(limits.min if low is None else low, limits.max if high is None else high)
    return hnp.arrays(dtype, shape, elements=elements)
