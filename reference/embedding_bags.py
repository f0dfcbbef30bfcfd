"""Sum-pooled embedding tables over jagged bags: the sparse half of DLRM.

A table's input is two integer vectors. ``indices_L`` lists the rows of all bags, one bag after the other;
``offsets_B`` holds each bag's start: bag ``b`` is ``indices_L[offsets_B[b]:offsets_B[b + 1]]``. The last bag
runs to the end. Two equal offsets make an empty bag, whose sum is zero.

Legend: B batch (bags), L total number of indices, D embedding, T tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from reference.validation import require_positive

# Rows drawn at once by `fill_uniform`: a table of any height costs its own size plus this many rows of
# float64.
_ROWS_PER_DRAW = 65_536


class BagInputError(ValueError):
    """A bag's indices, offsets or weights cannot be looked up; the message names the table and the value."""


class NumpyRandom(Protocol):
    """Random draws of initialisation: ``numpy.random``, a ``RandomState`` or a ``Generator``."""

    def uniform(self, low: float, high: float, size: tuple[int, ...]) -> np.ndarray: ...

    def normal(self, loc: float, scale: float, size: tuple[int, ...] | int) -> np.ndarray: ...


def pool_bags(
    weight_ND: torch.Tensor,
    indices_L: torch.Tensor,
    offsets_B: torch.Tensor,
    per_sample_weights_L: torch.Tensor | None = None,
    sparse: bool = False,
) -> torch.Tensor:
    """Sum the rows of each bag, each row multiplied by its weight if weights are given.

    Tables are read here alone. The CPU kernel takes float64, float32, float16 and bfloat16. It crashes on
    zero bags and reads foreign memory on decreasing offsets: call `check_bags` first.

    Args:
        weight_ND: the table.
        indices_L: integer rows of all bags.
        offsets_B: integer start of each bag.
        per_sample_weights_L: one weight for each index, in the table's dtype.
        sparse: whether the table's gradient is a sparse tensor.

    Returns:
        (B, D), zero for empty bags.
    """
    return F.embedding_bag(
        indices_L, weight_ND, offsets_B, mode="sum", per_sample_weights=per_sample_weights_L, sparse=sparse
    )


def fill_uniform(weight: torch.Tensor, low: float, high: float, rng: NumpyRandom) -> None:
    """Fill ``weight`` in place with draws from U[low, high), in the order of one single draw of its shape.

    The draws are float64, rounded to ``weight``'s dtype a block of rows at a time: a large table is never
    held twice. Tensors on the meta device have nothing to fill and draw nothing.
    """
    if weight.is_meta:
        return
    with torch.no_grad():
        for rows in weight.split(_ROWS_PER_DRAW):
            rows.copy_(torch.from_numpy(rng.uniform(low, high, tuple(rows.shape))))


def check_bags(
    table: int | str,
    num_rows: int,
    indices_L: torch.Tensor,
    offsets_B: torch.Tensor,
    per_sample_weights_L: torch.Tensor | None = None,
) -> None:
    """Check that a table of ``num_rows`` rows can look up these bags. Reads values: eager mode only.

    Raises:
        BagInputError: naming the table, the problem and the value.
    """
    for name, tensor in (("indices", indices_L), ("offsets", offsets_B)):
        if tensor.dim() != 1 or tensor.dtype not in (torch.int32, torch.int64):
            raise BagInputError(
                f"table {table}: {name} have shape {tuple(tensor.shape)} and dtype {tensor.dtype}: "
                "give a vector of int32 or int64"
            )
    length, bags = indices_L.shape[0], offsets_B.shape[0]
    if bags == 0:
        raise BagInputError(f"table {table}: no bags: give at least one, with its offset")
    if int(offsets_B[0]) != 0:
        raise BagInputError(f"table {table}: offsets begin at {int(offsets_B[0])}: the first bag begins at 0")
    steps = offsets_B[1:] - offsets_B[:-1]
    if bool((steps < 0).any()):
        bag = int((steps < 0).nonzero()[0])
        raise BagInputError(
            f"table {table}: offset {int(offsets_B[bag])} of bag {bag} is followed by "
            f"{int(offsets_B[bag + 1])}: offsets must not decrease"
        )
    if int(offsets_B[-1]) > length:
        raise BagInputError(
            f"table {table}: the last bag begins at {int(offsets_B[-1])}, beyond the {length} indices given"
        )
    if length > 0:
        outside = (indices_L < 0) | (indices_L >= num_rows)
        if bool(outside.any()):
            position = int(outside.nonzero()[0])
            raise BagInputError(
                f"table {table}: index {int(indices_L[position])} at position {position} is out of range: "
                f"the table has {num_rows} rows, so indices run from 0 to {num_rows - 1}"
            )
    if per_sample_weights_L is not None and per_sample_weights_L.shape != indices_L.shape:
        raise BagInputError(
            f"table {table}: {tuple(per_sample_weights_L.shape)} per-sample weights for "
            f"{tuple(indices_L.shape)} indices: give one weight for each index"
        )


class EmbeddingBag(nn.Module):
    """A plain table. Key: ``weight`` (num_embeddings, embedding_dim), uniform in +-1/sqrt(num_embeddings).

    Args:
        num_embeddings: rows.
        embedding_dim: columns.
        sparse: whether training gives the table a sparse gradient, as the public code does.
        rng: source of initial values; ``numpy.random`` itself by default.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, sparse: bool = True, rng: NumpyRandom | None = None
    ) -> None:
        super().__init__()
        require_positive(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.sparse = sparse
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        bound = float(np.sqrt(1 / num_embeddings))
        fill_uniform(self.weight, -bound, bound, rng or np.random)

    @property
    def output_dim(self) -> int:
        """Columns of the pooled output."""
        return self.embedding_dim

    def forward(
        self,
        indices_L: torch.Tensor,
        offsets_B: torch.Tensor,
        per_sample_weights_L: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each bag's (weighted) sum of rows, (B, D). See `pool_bags`."""
        return pool_bags(self.weight, indices_L, offsets_B, per_sample_weights_L, self.sparse)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode=sum"


def bags_from_lists(bags: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn one list of rows for each bag into ``(indices_L, offsets_B)``, both int64.

    >>> bags_from_lists([[1], [], [0, 2]])
    (tensor([1, 0, 2]), tensor([0, 1, 1]))
    """
    lengths = [len(bag) for bag in bags]
    offsets = np.cumsum([0, *lengths])[:-1]
    indices = [row for bag in bags for row in bag]
    return torch.tensor(indices, dtype=torch.int64), torch.from_numpy(offsets.astype(np.int64))
