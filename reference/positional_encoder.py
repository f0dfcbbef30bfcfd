"""Positions and times of the production ranking model, added to the input embeddings.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/positional_encoder.py, and
ops/pytorch/pt_position.py and ops/triton/triton_position.py for its operator. The last time bucket is the
time table's last row, as in Triton's operator. PyTorch's operator takes the table's width for its height and
ends at bucket D - 1.

Legend: B batch, N sequence, D embedding.
"""

from __future__ import annotations

import math

import torch

from reference.sequence_utils import batch_gather_embeddings
from reference.validation import require, require_positive

_SECONDS_PER_UNIT = 60.0
_LEAST_SECONDS = 1e-6


def position_index(
    seq_lengths: torch.Tensor,
    num_targets: torch.Tensor,
    like: torch.Tensor,
    contextual_seq_len: int,
    num_position_buckets: int,
) -> torch.Tensor:
    """Rows of the position table: contextual rows have their own, the others count back from the history's
    end.

    Args:
        seq_lengths, num_targets: (B,) int, see `reference.stu_attention.STUAttentionMask.forward`.
        like: (B, N, D), gives N.

    Returns:
        (B, N) int: the place in front of the history's end, plus contextual_seq_len, at most
        num_position_buckets - 1. Contextual rows have 0 to contextual_seq_len - 1. All targets have
        contextual_seq_len, the latest history row one more, and so on.
    """
    row = torch.arange(like.size(1), device=seq_lengths.device).unsqueeze(0)
    from_end_BN = ((seq_lengths - num_targets).unsqueeze(1) - row).clamp(min=0)
    index_BN = (from_end_BN + contextual_seq_len).clamp(max=num_position_buckets - 1)
    return torch.where(row < contextual_seq_len, row, index_BN)


def time_index(elapsed: torch.Tensor, num_time_buckets: int) -> torch.Tensor:
    """Bucket of the time between an event and the query: floor(sqrt(minutes)), at most num_time_buckets.

    Args:
        elapsed: int64, any shape, seconds; negative values count as 0.

    Returns:
        int64, same shape, each element in [0, num_time_buckets].

    The computation is float32 for every dtype of the model. In the public code, too, clamping integers with a
    float makes them float32. The bucket is part of the function.
    """
    minutes = elapsed.to(torch.float32).clamp(min=_LEAST_SECONDS) / _SECONDS_PER_UNIT
    return torch.sqrt(minutes).to(torch.int64).clamp(max=num_time_buckets)


class HSTUPositionalEncoder(torch.nn.Module):
    """Embedding * sqrt(D) + (position + time before the query).

    Args:
        num_position_buckets: rows of the position table; more than contextual_seq_len.
        num_time_buckets: the last time bucket; longer times share it.
    """

    def __init__(
        self, num_position_buckets: int, num_time_buckets: int, embedding_dim: int, contextual_seq_len: int
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
        positions = torch.empty(num_position_buckets, embedding_dim)
        times = torch.empty(num_time_buckets + 1, embedding_dim)
        bounds = (math.sqrt(1.0 / num_position_buckets), math.sqrt(1.0 / num_time_buckets))
        self._position_embeddings_weight = torch.nn.Parameter(positions.uniform_(-bounds[0], bounds[0]))
        self._timestamp_embeddings_weight = torch.nn.Parameter(times.uniform_(-bounds[1], bounds[1]))

    def forward(
        self,
        seq_lengths: torch.Tensor,
        seq_timestamps: torch.Tensor,
        seq_embeddings: torch.Tensor,
        num_targets: torch.Tensor,
    ) -> torch.Tensor:
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
        last_row_B1 = (seq_lengths - 1).unsqueeze(1)
        query_time_B1 = batch_gather_embeddings(last_row_B1, seq_timestamps.unsqueeze(2)).squeeze(2)
        time_BN = time_index(query_time_B1 - seq_timestamps, self._num_time_buckets)
        added = self._timestamp_embeddings_weight[time_BN] + self._position_embeddings_weight[position_BN]
        return seq_embeddings * self._embedding_dim**0.5 + added
