"""Relative attention biases of research HSTU.

Source: "Actions Speak Louder than Words" (ICML'24, arXiv 2402.17152), section 3.2, rab^{p,t}; public code:
generative_recommenders/research/modeling/sequential/hstu.py.

Both biases follow the width of their input. With ``N <= max_seq_len`` timestamps they return the upper left N
x N corner of the full bias. A batch may therefore be trimmed to its longest row.

Legend: B batch, N sequence, W max_seq_len, M the last rows of the sequence.
"""

from __future__ import annotations

import abc
import math

import torch

from reference.validation import require, require_positive


def time_bucket(delta: torch.Tensor, num_buckets: int, bucket_divisor: float) -> torch.Tensor:
    """Bucket of a time difference: floor(ln(max(|delta|, 1)) / bucket_divisor), at most num_buckets.

    Args:
        delta: int64, any shape, seconds. The sign does not matter.
        num_buckets: the last bucket; larger differences share it.
        bucket_divisor: width of a bucket in units of ln(second); 0.301 in the public experiments.

    Returns:
        int64, same shape, each element in [0, num_buckets].

    The logarithm and the division are float32 for every dtype of the model: ``torch.log`` of an int64 tensor,
    as in the public code, is float32. The bucket is part of the function: a float64 logarithm gives other
    buckets where ln(delta) / bucket_divisor is close to an integer.
    """
    magnitude = delta.abs().clamp(min=1).to(torch.float32)
    return (torch.log(magnitude) / bucket_divisor).to(torch.int64).clamp(min=0, max=num_buckets)


def _positional_bias(weight: torch.Tensor, n: int, max_seq_len: int) -> torch.Tensor:
    """(2W - 1,) weights -> (1, n, n) with [0, i, j] = weight[W - 1 + j - i]."""
    position = torch.arange(n, device=weight.device)
    offset_NN = position.unsqueeze(0) - position.unsqueeze(1) + (max_seq_len - 1)
    return torch.index_select(weight, 0, offset_NN.reshape(-1)).view(1, n, n)


def _last_positional_bias(weight: torch.Tensor, m: int, n: int, max_seq_len: int) -> torch.Tensor:
    """(2W - 1,) weights -> (1, m, n), the last m rows of the bias over n positions."""
    row, column = (torch.arange(size, device=weight.device) for size in (m, n))
    offset_MN = column - (row + (n - m)).unsqueeze(1) + (max_seq_len - 1)
    offset_MN = offset_MN.clamp(min=0, max=2 * max_seq_len - 2)
    return torch.index_select(weight, 0, offset_MN.reshape(-1)).view(1, m, n)


class RelativeAttentionBiasModule(torch.nn.Module):
    """Interface: a bias that is added to the attention logits, shared by the heads."""

    @abc.abstractmethod
    def forward(self, all_timestamps: torch.Tensor) -> torch.Tensor:
        """(B, N) int64 seconds -> float, broadcastable to (B, N, N)."""

    @abc.abstractmethod
    def last_rows(self, all_timestamps: torch.Tensor, next_timestamps: torch.Tensor) -> torch.Tensor:
        """The bias of the last M of N positions, where N may exceed W.

        Args:
            all_timestamps: (B, N) int64 seconds.
            next_timestamps: (B, M) int64 seconds, of the successor of each of these positions.

        Returns:
            float, broadcastable to (B, M, N); any value for columns W or more positions away.
        """


class RelativePositionalBias(RelativeAttentionBiasModule):
    """A learned weight for each relative position j - i.

    Args:
        max_seq_len: W, the largest N.
    """

    def __init__(self, max_seq_len: int) -> None:
        super().__init__()
        require_positive(max_seq_len=max_seq_len)
        self._max_seq_len = max_seq_len
        self._w = torch.nn.Parameter(torch.empty(2 * max_seq_len - 1).normal_(mean=0, std=0.02))

    def forward(self, all_timestamps: torch.Tensor | None) -> torch.Tensor:
        """(B, N) int64, or None for N = W -> (1, N, N). Only the width is used."""
        n = self._max_seq_len if all_timestamps is None else all_timestamps.size(1)
        return _positional_bias(self._w, n, self._max_seq_len)

    def last_rows(self, all_timestamps: torch.Tensor, next_timestamps: torch.Tensor) -> torch.Tensor:
        """See `RelativeAttentionBiasModule.last_rows`; of the timestamps, only the widths are used."""
        m, n = next_timestamps.size(1), all_timestamps.size(1)
        return _last_positional_bias(self._w, m, n, self._max_seq_len)


class RelativeBucketedTimeAndPositionBasedBias(RelativeAttentionBiasModule):
    """A learned weight for each relative position plus one for each bucket of elapsed time.

    Row i, column j uses ts[i + 1] - ts[j]: the time from event j to the event that row i predicts. The row of
    the last event reads the query time, which the caller puts at index ``length``. A row without a successor
    (a full row, N == W) repeats its own timestamp.

    Args:
        max_seq_len: W, the largest N.
        num_buckets, bucket_divisor: see `time_bucket`. The public code passes a function in place of the
            divisor; its experiments all use ln(...) / 0.301 with 128 buckets.
    """

    def __init__(self, max_seq_len: int, num_buckets: int, bucket_divisor: float) -> None:
        super().__init__()
        require_positive(max_seq_len=max_seq_len, num_buckets=num_buckets)
        divides = math.isfinite(bucket_divisor) and bucket_divisor > 0
        require(divides, "bucket_divisor", bucket_divisor, "must be positive and finite")
        self._max_seq_len = max_seq_len
        self._num_buckets = num_buckets
        self._bucket_divisor = bucket_divisor
        self._ts_w = torch.nn.Parameter(torch.empty(num_buckets + 1).normal_(mean=0, std=0.02))
        self._pos_w = torch.nn.Parameter(torch.empty(2 * max_seq_len - 1).normal_(mean=0, std=0.02))

    def weights_and_buckets(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Inputs of a kernel that computes this bias: position weights, time weights, bucket divisor."""
        return self._pos_w, self._ts_w, self._bucket_divisor

    def forward(self, all_timestamps: torch.Tensor) -> torch.Tensor:
        """(B, N) int64 seconds -> (B, N, N)."""
        next_BN = torch.cat([all_timestamps[:, 1:], all_timestamps[:, -1:]], dim=1)
        delta_BNN = next_BN.unsqueeze(2) - all_timestamps.unsqueeze(1)
        n = all_timestamps.size(1)
        return _positional_bias(self._pos_w, n, self._max_seq_len) + self._time_bias(delta_BNN)

    def last_rows(self, all_timestamps: torch.Tensor, next_timestamps: torch.Tensor) -> torch.Tensor:
        """See `RelativeAttentionBiasModule.last_rows`."""
        delta_BMN = next_timestamps.unsqueeze(2) - all_timestamps.unsqueeze(1)
        m, n = next_timestamps.size(1), all_timestamps.size(1)
        return _last_positional_bias(self._pos_w, m, n, self._max_seq_len) + self._time_bias(delta_BMN)

    def _time_bias(self, delta: torch.Tensor) -> torch.Tensor:
        """(B, M, N) int64 seconds -> (B, M, N)."""
        bucket_BMN = time_bucket(delta, self._num_buckets, self._bucket_divisor)
        return torch.index_select(self._ts_w, 0, bucket_BMN.view(-1)).view(bucket_BMN.size())
