"""Relative attention biases of research HSTU.

Counterpart of reference/relative_attention_bias.py.

Both biases follow the width of their input. With ``N <= max_seq_len`` timestamps they return the upper left N
x N corner of the full bias. A batch may therefore be trimmed to its longest row.

Legend: B batch, N sequence, W max_seq_len, M the last rows of the sequence.
"""

from __future__ import annotations

import abc
import math

import nvtripy as tp

from tripy_port.parameters import parameter
from tripy_port.validation import require, require_positive


def time_bucket(delta: tp.Tensor, num_buckets: int, bucket_divisor: float) -> tp.Tensor:
    """Bucket of a time difference: floor(ln(max(|delta|, 1)) / bucket_divisor), at most num_buckets.

    Args:
        delta: int64, any shape, seconds. The sign does not matter.
        num_buckets: the last bucket; larger differences share it.
        bucket_divisor: width of a bucket in units of ln(second); 0.301 in the public experiments.

    Returns:
        int32, same shape, each element in [0, num_buckets].

    The logarithm and the division are float32 for every dtype of the model: see the reference. The cast to an
    integer truncates toward zero, as PyTorch's does; the logarithm is at least 0, and so is every bucket.
    """
    # Rounding to float32 keeps signs and order, so it may come first and spare two int64 passes.
    magnitude = tp.maximum(abs(tp.cast(delta, tp.float32)), 1.0)
    return tp.minimum(tp.cast(tp.log(magnitude) / bucket_divisor, tp.int32), num_buckets)


def _positional_bias(weight: tp.Tensor, n: tp.types.IntLike, max_seq_len: int) -> tp.Tensor:
    """(2W - 1,) weights -> (1, n, n) with [0, i, j] = weight[W - 1 + j - i]."""
    # At full width the bias depends on the weights alone and folds into a constant. A dynamic n leaves a
    # slice of it.
    row_WW, column_WW = (tp.iota((max_seq_len, max_seq_len), dim=dim, dtype=tp.int32) for dim in (0, 1))
    bias_WW = tp.gather(weight, 0, column_WW - row_WW + (max_seq_len - 1))
    return tp.unsqueeze(bias_WW[:n, :n], 0)


def _last_positional_bias(
    weight: tp.Tensor, m: tp.types.IntLike, n: tp.types.IntLike, max_seq_len: int
) -> tp.Tensor:
    """(2W - 1,) weights -> (1, m, n), the last m rows of the bias over n positions."""
    row_MN, column_MN = (tp.iota((m, n), dim=dim, dtype=tp.int32) for dim in (0, 1))
    offset_MN = column_MN - row_MN - (n - m) + (max_seq_len - 1)
    offset_MN = tp.minimum(tp.maximum(offset_MN, 0), 2 * max_seq_len - 2)
    return tp.unsqueeze(tp.gather(weight, 0, offset_MN), 0)


class RelativeAttentionBiasModule(tp.Module):
    """Interface: a bias that is added to the attention logits, shared by the heads."""

    @abc.abstractmethod
    def forward(self, all_timestamps: tp.Tensor) -> tp.Tensor:
        """(B, N) int64 seconds -> float, broadcastable to (B, N, N)."""

    @abc.abstractmethod
    def last_rows(self, all_timestamps: tp.Tensor, next_timestamps: tp.Tensor) -> tp.Tensor:
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
        dtype: of the weights.
    """

    def __init__(self, max_seq_len: int, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        require_positive(max_seq_len=max_seq_len)
        self._max_seq_len = max_seq_len
        self._w = parameter((2 * max_seq_len - 1,), dtype)

    def forward(self, all_timestamps: tp.Tensor | None) -> tp.Tensor:
        """(B, N) int64, or None for N = W -> (1, N, N). Only the width is used."""
        n = self._max_seq_len if all_timestamps is None else all_timestamps.shape[1]
        return _positional_bias(self._w, n, self._max_seq_len)

    def last_rows(self, all_timestamps: tp.Tensor, next_timestamps: tp.Tensor) -> tp.Tensor:
        """See `RelativeAttentionBiasModule.last_rows`; of the timestamps, only the widths are used."""
        m, n = next_timestamps.shape[1], all_timestamps.shape[1]
        return _last_positional_bias(self._w, m, n, self._max_seq_len)


class RelativeBucketedTimeAndPositionBasedBias(RelativeAttentionBiasModule):
    """A learned weight for each relative position plus one for each bucket of elapsed time.

    Row i, column j uses ts[i + 1] - ts[j]: the time from event j to the event that row i predicts. The row of
    the last event reads the query time, which the caller puts at index ``length``. A row without a successor
    (a full row, N == W) repeats its own timestamp.

    Args:
        max_seq_len: W, the largest N.
        num_buckets, bucket_divisor: see `time_bucket`.
        dtype: of the weights.
    """

    def __init__(
        self, max_seq_len: int, num_buckets: int, bucket_divisor: float, dtype: tp.dtype = tp.float32
    ) -> None:
        super().__init__()
        require_positive(max_seq_len=max_seq_len, num_buckets=num_buckets)
        divides = math.isfinite(bucket_divisor) and bucket_divisor > 0
        require(divides, "bucket_divisor", bucket_divisor, "must be positive and finite")
        self._max_seq_len = max_seq_len
        self._num_buckets = num_buckets
        self._bucket_divisor = bucket_divisor
        self._ts_w = parameter((num_buckets + 1,), dtype)
        self._pos_w = parameter((2 * max_seq_len - 1,), dtype)

    def weights_and_buckets(self) -> tuple[tp.Tensor, tp.Tensor, float]:
        """Inputs of a kernel that computes this bias: position weights, time weights, bucket divisor."""
        return self._pos_w, self._ts_w, self._bucket_divisor

    def forward(self, all_timestamps: tp.Tensor) -> tp.Tensor:
        """(B, N) int64 seconds -> (B, N, N)."""
        next_BN = tp.concatenate([all_timestamps[:, 1:], all_timestamps[:, -1:]], dim=1)
        delta_BNN = tp.unsqueeze(next_BN, 2) - tp.unsqueeze(all_timestamps, 1)
        n = all_timestamps.shape[1]
        return _positional_bias(self._pos_w, n, self._max_seq_len) + self._time_bias(delta_BNN)

    def last_rows(self, all_timestamps: tp.Tensor, next_timestamps: tp.Tensor) -> tp.Tensor:
        """See `RelativeAttentionBiasModule.last_rows`."""
        delta_BMN = tp.unsqueeze(next_timestamps, 2) - tp.unsqueeze(all_timestamps, 1)
        m, n = next_timestamps.shape[1], all_timestamps.shape[1]
        return _last_positional_bias(self._pos_w, m, n, self._max_seq_len) + self._time_bias(delta_BMN)

    def _time_bias(self, delta: tp.Tensor) -> tp.Tensor:
        """(B, M, N) int64 seconds -> (B, M, N)."""
        return tp.gather(self._ts_w, 0, time_bucket(delta, self._num_buckets, self._bucket_divisor))
