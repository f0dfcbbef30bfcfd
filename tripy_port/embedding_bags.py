"""Sum-pooled embedding tables over jagged bags: the sparse half of DLRM. Counterpart of
reference/embedding_bags.py.

Tripy has no ragged tensors, no scatter and no segment sum, and a tensor's shape cannot follow from values. A
graph for bags of any length sums them in one of two ways:

* **membership** (``max_bag_size=None``): all L rows are looked up once, and a (B, L) matrix multiplies them.
  The matrix is 1, or the index's weight, where an index belongs to a bag. Lengths, L and B are free. The cost
  is B x L elements and B x L x D multiplications. It suits many short batches, not B = 16,384 with one index
  each (a matrix of 1 GB in float32). A lookup must be exact, and TF32 would round float32 rows to 11 bits:
  the rows enter as three parts that TF32 holds exactly.
* **padding** (``max_bag_size=P``): each bag's first P places are looked up; places behind its end add zero.
  The cost is B x P x D elements, the minimum where all bags have P indices. P = 1, the case of the Criteo
  data sets, is a plain lookup, exact in every precision. `check_bags` rejects longer bags: the graph would
  leave out their indices behind P.

Both ways leave the host and neighbouring rows alone: an empty bag has an empty row in the matrix, or no valid
place. Other ways cost more or lose bits. Differences of prefix sums cancel, and Tripy's cumsum is an L x L
matrix product. Pairwise sums over powers of two take some 30 operations a table. B x L x D broadcasts take
gigabytes.

Legend: B batch (bags), L total number of indices, P places of a bag, D embedding, T tables.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.numerics import bfloat16_parts
from tripy_port.parameters import parameter
from tripy_port.validation import require_positive

INDEX_DTYPES = (tp.int32, tp.int64)


class BagInputError(ValueError):
    """A bag's indices, offsets or weights cannot be looked up; the message names the table and the value."""


def pool_bags(
    weight_ND: tp.Tensor,
    indices_L: tp.Tensor,
    offsets_B: tp.Tensor,
    per_sample_weights_L: tp.Tensor | None = None,
    max_bag_size: int | None = None,
) -> tp.Tensor:
    """Sum the rows of each bag, each row multiplied by its weight if weights are given.

    Tables are read here alone. Values are not checked: see `check_bags`.

    Args:
        weight_ND: the table.
        indices_L: integer rows of all bags.
        offsets_B: integer start of each bag.
        per_sample_weights_L: one weight for each index, in the table's dtype.
        max_bag_size: P; None for bags of any size.

    Returns:
        (B, D), zero for empty bags.
    """
    # Few operations: nvtripy takes about a millisecond to record one, and raising a dynamic rank is seven.
    length = indices_L.shape[0]
    starts_B = tp.cast(offsets_B, tp.int32)
    ends_B = tp.concatenate([starts_B[1:], tp.Tensor([0]) + length], dim=0)
    if max_bag_size is None:
        place_1L = tp.iota((1, length), dim=1, dtype=tp.int32)
        has_begun_BL = place_1L >= tp.unsqueeze(starts_B, 1)
        has_ended_BL = place_1L >= tp.unsqueeze(ends_B, 1)
        # 1 - 0 inside the bag, 0 - 0 before it, 1 - 1 behind it.
        member_BL = tp.cast(has_begun_BL, weight_ND.dtype) - tp.cast(has_ended_BL, weight_ND.dtype)
        rows_LD = tp.gather(weight_ND, 0, indices_L)
        if weight_ND.dtype == tp.float32:
            if per_sample_weights_L is not None:
                rows_LD = rows_LD * tp.unsqueeze(per_sample_weights_L, 1)
            # The small parts first: a single row adds up to itself, to the bit.
            high_LD, middle_LD, low_LD = bfloat16_parts(rows_LD)
            return member_BL @ low_LD + member_BL @ middle_LD + member_BL @ high_LD
        if per_sample_weights_L is not None:
            member_BL = member_BL * per_sample_weights_L
        return member_BL @ rows_LD
    # P = 1 does without the axis P.
    place_PB = starts_B if max_bag_size == 1 else starts_B + tp.Tensor([[p] for p in range(max_bag_size)])
    is_valid_PB = place_PB < ends_B
    indices_PB = tp.gather(_with_spares(indices_L, max_bag_size), 0, place_PB)
    # PyTorch accumulates half tensors in float32 and rounds once.
    rows_PBD = tp.cast(tp.gather(weight_ND, 0, indices_PB), tp.float32)
    if per_sample_weights_L is not None:
        weights_PB = tp.gather(_with_spares(per_sample_weights_L, max_bag_size), 0, place_PB)
        rows_PBD = rows_PBD * tp.unsqueeze(tp.cast(weights_PB, tp.float32), -1)
    rows_PBD = tp.where(tp.unsqueeze(is_valid_PB, -1), rows_PBD, 0.0)
    return tp.cast(rows_PBD if max_bag_size == 1 else tp.sum(rows_PBD, dim=0), weight_ND.dtype)


def _with_spares(values_L: tp.Tensor, max_bag_size: int) -> tp.Tensor:
    """(L,) -> (L + P,): zeros behind the values, for places behind the end of the last bag."""
    return tp.concatenate([values_L, tp.cast(tp.Tensor([0] * max_bag_size), values_L.dtype)], dim=0)


def check_bags(
    table: int | str,
    num_rows: int,
    indices_L: tp.Tensor,
    offsets_B: tp.Tensor,
    per_sample_weights_L: tp.Tensor | None = None,
    max_bag_size: int | None = None,
) -> None:
    """Check that a table of ``num_rows`` rows can look up these bags. Reads values: not for use in a graph.

    In a graph, an index out of range would not fail: TensorRT reads zero, or another row.

    Raises:
        BagInputError: naming the table, the problem and the value.
    """
    for name, tensor in (("indices", indices_L), ("offsets", offsets_B)):
        if tensor.rank != 1 or tensor.dtype not in INDEX_DTYPES:
            raise BagInputError(
                f"table {table}: {name} have shape {_shape(tensor)} and dtype {tensor.dtype}: "
                "give a vector of int32 or int64"
            )
    indices, offsets = indices_L.tolist(), offsets_B.tolist()
    if not offsets:
        raise BagInputError(f"table {table}: no bags: give at least one, with its offset")
    if offsets[0] != 0:
        raise BagInputError(f"table {table}: offsets begin at {offsets[0]}: the first bag begins at 0")
    for bag, (start, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        if end < start:
            raise BagInputError(
                f"table {table}: offset {start} of bag {bag} is followed by {end}: offsets must not decrease"
            )
    if offsets[-1] > len(indices):
        raise BagInputError(
            f"table {table}: the last bag begins at {offsets[-1]}, beyond the {len(indices)} indices given"
        )
    for position, index in enumerate(indices):
        if not 0 <= index < num_rows:
            raise BagInputError(
                f"table {table}: index {index} at position {position} is out of range: "
                f"the table has {num_rows} rows, so indices run from 0 to {num_rows - 1}"
            )
    if max_bag_size is not None:
        for bag, (start, end) in enumerate(zip(offsets, [*offsets[1:], len(indices)], strict=True)):
            if end - start > max_bag_size:
                raise BagInputError(
                    f"table {table}: bag {bag} has {end - start} indices: "
                    f"the graph takes at most max_bag_size={max_bag_size}"
                )
    if per_sample_weights_L is not None and _shape(per_sample_weights_L) != _shape(indices_L):
        raise BagInputError(
            f"table {table}: {_shape(per_sample_weights_L)} per-sample weights for "
            f"{_shape(indices_L)} indices: give one weight for each index"
        )


def _shape(tensor: tp.Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape)


class EmbeddingBag(tp.Module):
    """A plain table. Key: ``weight`` (num_embeddings, embedding_dim).

    Args:
        num_embeddings: rows.
        embedding_dim: columns.
        max_bag_size: the longest bag that a graph of this module takes; None for any. See above.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_bag_size: int | None = None,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_bag_size = max_bag_size
        self.weight = parameter((num_embeddings, embedding_dim), dtype)

    @property
    def output_dim(self) -> int:
        """Columns of the pooled output."""
        return self.embedding_dim

    def forward(
        self,
        indices_L: tp.Tensor,
        offsets_B: tp.Tensor,
        per_sample_weights_L: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """Return each bag's (weighted) sum of rows, (B, D). See `pool_bags`."""
        return pool_bags(self.weight, indices_L, offsets_B, per_sample_weights_L, self.max_bag_size)
