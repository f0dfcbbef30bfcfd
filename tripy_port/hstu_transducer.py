"""The production HSTU around its STU stack. Counterpart of reference/hstu_transducer.py.

Legend: B batch, N sequence, T max_num_targets, D embedding.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.embedding_modules import EmbeddingModule
from tripy_port.positional_encoder import HSTUPositionalEncoder
from tripy_port.postprocessors import OutputPostprocessor
from tripy_port.sequence_utils import batch_gather_embeddings, zero_padded_rows
from tripy_port.stu import STUCacheState, STUStack
from tripy_port.validation import require_positive


class TargetSplit(tp.Module):
    """The targets' rows of a sequence, left-aligned.

    Args:
        max_num_targets: T.
    """

    def __init__(self, max_num_targets: int) -> None:
        super().__init__()
        require_positive(max_num_targets=max_num_targets)
        self._max_num_targets = max_num_targets

    def forward(self, seq_values: tp.Tensor, seq_lengths: tp.Tensor, num_targets: tp.Tensor) -> tp.Tensor:
        """(B, N, *), (B,) and (B,) int -> (B, T, *), the last row repeated behind a sequence's targets."""
        target_1T = tp.iota((1, self._max_num_targets), dim=1, dtype=tp.int32)
        first_B1, length_B1 = (
            tp.unsqueeze(tp.cast(row, tp.int32), 1) for row in (seq_lengths - num_targets, seq_lengths)
        )
        return batch_gather_embeddings(tp.minimum(first_B1 + target_1T, length_B1 - 1), seq_values)


class HSTUTransducer(tp.Module):
    """Ids and timestamps of contextual features, history and targets -> a state for each target.

    A sequence holds, from the left, contextual rows, history in order of time, and targets. A target's
    timestamp is the query's.

    Args:
        positional_encoder, stu_module: for the same contextual_seq_len.
        max_num_targets: T.
    """

    def __init__(
        self,
        embedding_module: EmbeddingModule,
        positional_encoder: HSTUPositionalEncoder,
        stu_module: STUStack,
        output_postprocessor: OutputPostprocessor,
        max_num_targets: int,
    ) -> None:
        super().__init__()
        self._embedding_module = embedding_module
        self._positional_encoder = positional_encoder
        self._stu_module = stu_module
        self._split_targets = TargetSplit(max_num_targets)
        self._output_postprocessor = output_postprocessor

    def forward(
        self,
        seq_lengths: tp.Tensor,
        seq_ids: tp.Tensor,
        seq_timestamps: tp.Tensor,
        num_targets: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """
        Args:
            seq_lengths: (B,) int, each in [1, N]; anything may follow in the padding.
            seq_ids: (B, N) int.
            seq_timestamps: (B, N) int64 seconds.
            num_targets: (B,) int, each in [0, T].
            attn_scale: (B, N), see `tripy_port.stu_attention.STUAttention`.

        Returns:
            (B, T, D), rows behind a sequence's targets zero.
        """
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        x, _ = self._stu_module(x, seq_lengths, num_targets, attn_scale)
        targets = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(targets, seq_lengths, seq_timestamps, num_targets)

    def prefill(
        self,
        seq_lengths: tp.Tensor,
        seq_ids: tp.Tensor,
        seq_timestamps: tp.Tensor,
        num_targets: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
    ) -> list[STUCacheState]:
        """The cache of all rows but the targets'; arguments as for `forward`.

        Of the targets, only their number and the last one's time matter: the input embeddings depend on both.
        """
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        no_targets = tp.zeros_like(num_targets)
        _, cache = self._stu_module(
            x, seq_lengths - num_targets, no_targets, attn_scale, return_cache_states=True
        )
        return cache

    def extend(
        self,
        cache: list[STUCacheState],
        seq_lengths: tp.Tensor,
        seq_ids: tp.Tensor,
        seq_timestamps: tp.Tensor,
        num_targets: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """The result of `forward`, from the targets and the cache of `prefill`. The cache is not modified.

        Further calls may rank other target ids with the same cache.
        """
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        delta_x = self._split_targets(x, seq_lengths, num_targets)
        targets, _ = self._stu_module.cached_forward(
            delta_x, seq_lengths, seq_lengths - num_targets, num_targets, cache, attn_scale
        )
        return self._postprocess(targets, seq_lengths, seq_timestamps, num_targets)

    def _embed(
        self,
        seq_lengths: tp.Tensor,
        seq_ids: tp.Tensor,
        seq_timestamps: tp.Tensor,
        num_targets: tp.Tensor,
    ) -> tp.Tensor:
        """(B, N, D)."""
        seq_embeddings = self._embedding_module(seq_ids)
        return self._positional_encoder(seq_lengths, seq_timestamps, seq_embeddings, num_targets)

    def _postprocess(
        self,
        targets: tp.Tensor,
        seq_lengths: tp.Tensor,
        seq_timestamps: tp.Tensor,
        num_targets: tp.Tensor,
    ) -> tp.Tensor:
        """(B, T, D), anything behind a sequence's targets -> (B, T, D), zero there."""
        timestamps_BT1 = self._split_targets(tp.unsqueeze(seq_timestamps, 2), seq_lengths, num_targets)
        return zero_padded_rows(
            self._output_postprocessor(targets, tp.squeeze(timestamps_BT1, 2)), num_targets
        )
