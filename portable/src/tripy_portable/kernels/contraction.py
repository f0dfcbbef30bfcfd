"""Matrix products."""

from __future__ import annotations

import math

import torch

from tripy_portable.dialect.inference import OpView
from tripy_portable.kernels.registry import Lowered, lowers

Tensor = torch.Tensor


@lowers("matrix_multiply")
def _matrix_multiply(view: OpView) -> Lowered:
    """Sums of 16-bit floats are accumulated in float32; torch's CPU kernels do so."""
    a, b = view.type(0), view.type(1)
    transpose_a, transpose_b = view.attrs["op0"] == "kTRANSPOSE", view.attrs["op1"] == "kTRANSPOSE"
    plain = not (transpose_a or transpose_b)
    dims = view.declared[0].dims
    if plain and a.rank == b.rank and a.rank > 2 and all(extent == 1 for extent in b.dims[:-2]):
        # One matrix for the whole batch: a single product instead of one for each batch entry.
        rows, (inner, columns) = math.prod(a.dims[:-1]), b.dims[-2:]
        return Lowered(lambda x, y: torch.mm(x.reshape(rows, inner), y.reshape(inner, columns)).reshape(dims))

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        x = x.transpose(-1, -2) if transpose_a else x
        y = y.transpose(-1, -2) if transpose_b else y
        return torch.matmul(x, y)

    return Lowered(torch.matmul if plain else multiply)
