"""Gathers, scatters and padding of batched sequences.

Source: generative_recommenders/research/modeling/sequential/utils.py. `zero_padded_rows` and
`clear_padded_timestamps` are ours: the dense layout needs them, since it has padding.

Legend: B batch, N sequence, D embedding, X rows to choose from, L total jagged length.
"""

from __future__ import annotations

import torch

from reference.jagged_ops import complete_cumsum, dense_to_jagged, jagged_to_padded_dense


def batch_gather_embeddings(rowwise_indices: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    """Pick rows of each batch element.

    Args:
        rowwise_indices: (B, N) int, each in [0, X).
        embeddings: (B, X, D).

    Returns:
        (B, N, D) with [b, n] = embeddings[b, rowwise_indices[b, n]].
    """
    b, x, d = embeddings.size()
    row_start = torch.arange(b, dtype=rowwise_indices.dtype, device=rowwise_indices.device) * x
    flat_BN = rowwise_indices + row_start.unsqueeze(1)
    return embeddings.reshape(b * x, d)[flat_BN]


def batch_scatter_embeddings(
    dst_embeddings: torch.Tensor, rowwise_indices: torch.Tensor, src_embeddings: torch.Tensor
) -> torch.Tensor:
    """Replace one row of each batch element.

    The public function writes into ``dst_embeddings``; ours returns a new tensor. The caller's cache stays
    valid, and the function can be exported.

    Args:
        dst_embeddings: (B, N, D).
        rowwise_indices: (B,) int, each in [0, N).
        src_embeddings: (B, D).

    Returns:
        (B, N, D), a copy of dst_embeddings with [b, rowwise_indices[b]] = src_embeddings[b].
    """
    position = torch.arange(dst_embeddings.size(1), device=dst_embeddings.device)
    replaced_BN1 = (position == rowwise_indices.unsqueeze(1)).unsqueeze(2)
    return torch.where(replaced_BN1, src_embeddings.unsqueeze(1), dst_embeddings)


def get_current_embeddings(lengths: torch.Tensor, encoded_embeddings: torch.Tensor) -> torch.Tensor:
    """The row of the latest event.

    Args:
        lengths: (B,) int, each in [1, N].
        encoded_embeddings: (B, N, D).

    Returns:
        (B, D) with [b] = encoded_embeddings[b, lengths[b] - 1].
    """
    return batch_gather_embeddings((lengths - 1).unsqueeze(1), encoded_embeddings).squeeze(1)


def zero_padded_rows(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, N, D) with every row at or past its length set to zero, whatever it held (NaN included).

    Equals ``jagged_to_padded_dense(..., padding_value=0)`` of the public code.
    """
    position = torch.arange(x.size(1), device=x.device)
    padded_BN1 = (position >= lengths.unsqueeze(1)).unsqueeze(2)
    return x.masked_fill(padded_BN1, 0.0)


def clear_padded_timestamps(all_timestamps: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, N) int64 with every timestamp past the query time (index ``length``) set to zero.

    The public loader fills with zeros there. It matters to softmax_rel_bias alone, whose denominator runs
    over the padding as well.
    """
    position = torch.arange(all_timestamps.size(1), device=lengths.device)
    return all_timestamps.masked_fill(position > lengths.unsqueeze(1), 0)


class MergeSequences(torch.nn.Module):
    """Each row's left part, and its right part directly behind. No parameters.

    Equals ``concat_2D_jagged`` of the public production code.
    """

    def forward(self, left: torch.Tensor, right: torch.Tensor, left_lengths: torch.Tensor) -> torch.Tensor:
        """(B, H, *), (B, T, *) and (B,) int, each at most H -> (B, H + T, *), anything behind both parts."""
        h, m = left.size(1), left.size(1) + right.size(1)
        row_1M = torch.arange(m, device=left.device).unsqueeze(0)
        behind_BM = row_1M - left_lengths.unsqueeze(1)
        index_BM = torch.where(behind_BM < 0, row_1M, (behind_BM + h).clamp(max=m - 1))
        return batch_gather_embeddings(index_BM, torch.cat([left, right], dim=1))


def jagged_or_dense_repeat_interleave_dim0(
    x: torch.Tensor, lengths: torch.Tensor, repeats: int, backend: str = "auto"
) -> torch.Tensor:
    """Repeat each batch element ``repeats`` times: (B, N, D) dense, or (L, D) jagged with (B,) lengths."""
    if x.dim() == 3:
        return x.repeat_interleave(repeats, dim=0)
    index = torch.arange(lengths.size(0), device=lengths.device).repeat_interleave(repeats)
    return jagged_or_dense_index_select_dim0(x, lengths, index, backend)


def jagged_or_dense_index_select_dim0(
    x: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, backend: str = "auto"
) -> torch.Tensor:
    """Pick batch elements by ``indices``: (B, N, D) dense, or (L, D) jagged with (B,) lengths."""
    if x.dim() == 3:
        return x[indices]
    assert x.dim() == 2, f"dense (B, N, D) or jagged (L, D), not {tuple(x.shape)}"
    padded = jagged_to_padded_dense(x, complete_cumsum(lengths, backend), int(lengths.max()), 0.0, backend)
    return dense_to_jagged(padded[indices], complete_cumsum(lengths[indices], backend), backend)
