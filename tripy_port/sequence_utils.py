"""Gathers, scatters and padding of batched sequences.

Counterpart of reference/sequence_utils.py. Indices are int32, as dimensions of tensors are: Tripy mixes no
integer types. No index exceeds the number of rows of the batch, B * N.

Legend: B batch, N sequence, D embedding, X rows to choose from.
"""

from __future__ import annotations

import nvtripy as tp


def batch_gather_embeddings(rowwise_indices: tp.Tensor, embeddings: tp.Tensor) -> tp.Tensor:
    """Pick rows of each batch element.

    Args:
        rowwise_indices: (B, N) int, each in [0, X).
        embeddings: (B, X, D).

    Returns:
        (B, N, D) with [b, n] = embeddings[b, rowwise_indices[b, n]].
    """
    b, x, d = embeddings.shape
    row_start_B1 = tp.iota((b, 1), dim=0, dtype=tp.int32) * x
    flat_BN = tp.cast(rowwise_indices, tp.int32) + row_start_B1
    return tp.gather(tp.reshape(embeddings, (b * x, d)), 0, flat_BN)


def batch_scatter_embeddings(
    dst_embeddings: tp.Tensor, rowwise_indices: tp.Tensor, src_embeddings: tp.Tensor
) -> tp.Tensor:
    """Replace one row of each batch element.

    Tripy has no scatter: the rows are selected by comparing their positions.

    Args:
        dst_embeddings: (B, N, D).
        rowwise_indices: (B,) int, each in [0, N).
        src_embeddings: (B, D).

    Returns:
        (B, N, D), a copy of dst_embeddings with [b, rowwise_indices[b]] = src_embeddings[b].
    """
    position_1N = _positions(dst_embeddings)
    replaced_BN1 = tp.unsqueeze(position_1N == _column(rowwise_indices), 2)
    return tp.where(replaced_BN1, tp.unsqueeze(src_embeddings, 1), dst_embeddings)


def get_current_embeddings(lengths: tp.Tensor, encoded_embeddings: tp.Tensor) -> tp.Tensor:
    """The row of the latest event.

    Args:
        lengths: (B,) int, each in [1, N].
        encoded_embeddings: (B, N, D).

    Returns:
        (B, D) with [b] = encoded_embeddings[b, lengths[b] - 1].
    """
    return tp.squeeze(batch_gather_embeddings(tp.unsqueeze(lengths - 1, 1), encoded_embeddings), 1)


def zero_padded_rows(x: tp.Tensor, lengths: tp.Tensor) -> tp.Tensor:
    """(B, N, D) with every row at or past its length set to zero, whatever it held (NaN included)."""
    valid_BN1 = tp.unsqueeze(_positions(x) < _column(lengths), 2)
    return tp.where(valid_BN1, x, 0.0)


def clear_padded_timestamps(all_timestamps: tp.Tensor, lengths: tp.Tensor) -> tp.Tensor:
    """(B, N) int64 with every timestamp past the query time (index ``length``) set to zero.

    The public loader fills with zeros there. It matters to softmax_rel_bias alone, whose denominator runs
    over the padding as well.
    """
    return tp.where(_positions(all_timestamps) <= _column(lengths), all_timestamps, 0)


def pad_sequence(x: tp.Tensor, width: int) -> tp.Tensor:
    """(B, N, ...) -> (B, width, ...) with zeros from row N on.

    `tp.pad` lacks bfloat16 and, in TensorRT, int64. The last row is repeated instead, and zeros replace the
    repetitions.
    """
    n = x.shape[1]
    position = tp.iota((width,), dtype=tp.int32)
    repeated = tp.gather(x, 1, tp.minimum(position, n - 1))
    is_row = tp.reshape(position < n, (1, width) + (1,) * (x.rank - 2))
    return tp.where(is_row, repeated, 0)


class MergeSequences(tp.Module):
    """Each row's left part, and its right part directly behind. No parameters."""

    def forward(self, left: tp.Tensor, right: tp.Tensor, left_lengths: tp.Tensor) -> tp.Tensor:
        """(B, H, *), (B, T, *) and (B,) int, each at most H -> (B, H + T, *), anything behind both parts."""
        h, both = left.shape[1], tp.concatenate([left, right], dim=1)
        row_1M = _positions(both)
        behind_BM = row_1M - _column(left_lengths)
        index_BM = tp.where(behind_BM < 0, row_1M, tp.minimum(behind_BM + h, both.shape[1] - 1))
        return batch_gather_embeddings(index_BM, both)


def _positions(x: tp.Tensor) -> tp.Tensor:
    """(B, N, ...) -> (1, N) int32, 0 to N - 1."""
    return tp.iota((1, x.shape[1]), dim=1, dtype=tp.int32)


def _column(indices: tp.Tensor) -> tp.Tensor:
    """(B,) int -> (B, 1) int32."""
    return tp.unsqueeze(tp.cast(indices, tp.int32), 1)
