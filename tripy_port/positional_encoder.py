"""Positions and times of the production ranking model, added to the input embeddings.

Counterpart of reference/positional_encoder.py. Indices are int32 here, as in `tripy_port.sequence_utils`.

Legend: B batch, N sequence, D embedding.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.numerics import scale
from tripy_port.parameters import parameter
from tripy_port.sequence_utils import batch_gather_embeddings
from tripy_port.validation import require, require_positive

_SECONDS_PER_UNIT = 60.0
_LEAST_SECONDS = 1e-6


def position_index(
    seq_lengths: tp.Tensor,
    num_targets: tp.Tensor,
    like: tp.Tensor,
    contextual_seq_len: int,
    num_position_buckets: int,
) -> tp.Tensor:
    """Rows of the position table: contextual rows have their own, the others count back from the history's
    end.

    Args:
        seq_lengths, num_targets: (B,) int, see `tripy_port.stu_attention.STUAttentionMask.forward`.
        like: (B, N, D), gives N.

    Returns:
        (B, N) int: the place in front of the history's end, plus contextual_seq_len, at most
        num_position_buckets - 1. Contextual rows have 0 to contextual_seq_len - 1. All targets have
        contextual_seq_len, the latest history row one more, and so on.
    """
    row_1N = tp.iota((1, like.shape[1]), dim=1, dtype=tp.int32)
    history_end_B1 = tp.unsqueeze(tp.cast(seq_lengths - num_targets, tp.int32), 1)
    from_end_BN = tp.maximum(history_end_B1 - row_1N, 0)
    index_BN = tp.minimum(from_end_BN + contextual_seq_len, num_position_buckets - 1)
    return tp.where(row_1N < contextual_seq_len, row_1N, index_BN)


def time_index(elapsed: tp.Tensor, num_time_buckets: int) -> tp.Tensor:
    """Bucket of the time between an event and the query: floor(sqrt(minutes)), at most num_time_buckets.

    Args:
        elapsed: int64, any shape, seconds; negative values count as 0.

    Returns:
        int32, same shape, each element in [0, num_time_buckets].

    In float32 for every type of the model: see the reference. The cast to an integer truncates toward zero.
    """
    minutes = tp.maximum(tp.cast(elapsed, tp.float32), _LEAST_SECONDS) / _SECONDS_PER_UNIT
    return tp.minimum(tp.cast(tp.sqrt(minutes), tp.int32), num_time_buckets)


class HSTUPositionalEncoder(tp.Module):
    """Embedding * sqrt(D) + (position + time before the query).

    Args:
        num_position_buckets: rows of the position table; more than contextual_seq_len.
        num_time_buckets: the last time bucket; longer times share it.
        dtype: of the tables.
    """

    def __init__(
        self,
        num_position_buckets: int,
        num_time_buckets: int,
        embedding_dim: int,
        contextual_seq_len: int,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(
            num_position_buckets=num_position_buckets,
            num_time_buckets=num_time_buckets,
            embedding_dim=embedding_dim,
        )
        require(
            0 <= contextual_seq_len < num_position_buckets,
            "contextual_seq_len",
            contextual_seq_len,
            f"must be at least 0 and less than num_position_buckets, {num_position_buckets}",
        )
        self._num_position_buckets = num_position_buckets
        self._num_time_buckets = num_time_buckets
        self._embedding_dim = embedding_dim
        self._contextual_seq_len = contextual_seq_len
        self._position_embeddings_weight = parameter((num_position_buckets, embedding_dim), dtype)
        self._timestamp_embeddings_weight = parameter((num_time_buckets + 1, embedding_dim), dtype)

    def forward(
        self,
        seq_lengths: tp.Tensor,
        seq_timestamps: tp.Tensor,
        seq_embeddings: tp.Tensor,
        num_targets: tp.Tensor,
    ) -> tp.Tensor:
        """
        Args:
            seq_lengths, num_targets: (B,) int.
            seq_timestamps: (B, N) int64 seconds; the last row's is the time of the query.
            seq_embeddings: (B, N, D).

        Returns:
            (B, N, D), anything in the padded rows.
        """
        position_BN = position_index(
            seq_lengths,
            num_targets,
            seq_embeddings,
            self._contextual_seq_len,
            self._num_position_buckets,
        )
        last_row_B1 = tp.unsqueeze(seq_lengths - 1, 1)
        query_time_B1 = tp.squeeze(batch_gather_embeddings(last_row_B1, tp.unsqueeze(seq_timestamps, 2)), 2)
        time_BN = time_index(query_time_B1 - seq_timestamps, self._num_time_buckets)
        times = tp.gather(self._timestamp_embeddings_weight, 0, time_BN)
        positions = tp.gather(self._position_embeddings_weight, 0, position_BN)
        return scale(seq_embeddings, self._embedding_dim**0.5) + (times + positions)
