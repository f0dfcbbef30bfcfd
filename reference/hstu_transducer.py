"""The production HSTU around its STU stack: embeddings and positions in, a state for each target out.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/hstu_transducer.py. Departures,
besides `reference.stu`'s: contextual features, history and targets are ids of one embedding table. The public
input preprocessor has a multilayer perceptron over the features of an event. The incremental forward is two
methods here; the public transducer leaves it to its stack.

Legend: B batch, N sequence, T max_num_targets, D embedding.
"""

from __future__ import annotations

import torch

from reference.embedding_modules import EmbeddingModule
from reference.positional_encoder import HSTUPositionalEncoder
from reference.postprocessors import OutputPostprocessor
from reference.sequence_utils import batch_gather_embeddings, zero_padded_rows
from reference.stu import STUCacheState, STUStack
from reference.validation import require_positive


class TargetSplit(torch.nn.Module):
    """The targets' rows of a sequence, left-aligned.

    Args:
        max_num_targets: T.
    """

    def __init__(self, max_num_targets: int) -> None:
        super().__init__()
        require_positive(max_num_targets=max_num_targets)
        self._max_num_targets = max_num_targets

    def forward(
        self, seq_values: torch.Tensor, seq_lengths: torch.Tensor, num_targets: torch.Tensor
    ) -> torch.Tensor:
        """(B, N, *), (B,) and (B,) int -> (B, T, *), the last row repeated behind a sequence's targets."""
        target = torch.arange(self._max_num_targets, device=seq_lengths.device)
        row_BT = (seq_lengths - num_targets).unsqueeze(1) + target
        last_row_B1 = (seq_lengths - 1).unsqueeze(1)
        return batch_gather_embeddings(row_BT.minimum(last_row_B1), seq_values)


class HSTUTransducer(torch.nn.Module):
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
        seq_lengths: torch.Tensor,
        seq_ids: torch.Tensor,
        seq_timestamps: torch.Tensor,
        num_targets: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            seq_lengths: (B,) int, each in [1, N]; anything may follow in the padding.
            seq_ids: (B, N) int.
            seq_timestamps: (B, N) int64 seconds.
            num_targets: (B,) int, each in [0, T].
            attn_scale: (B, N), see `reference.stu_attention.STUAttention`.

        Returns:
            (B, T, D), rows behind a sequence's targets zero.
        """
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        x, _ = self._stu_module(x, seq_lengths, num_targets, attn_scale)
        targets = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(targets, seq_lengths, seq_timestamps, num_targets)

    def prefill(
        self,
        seq_lengths: torch.Tensor,
        seq_ids: torch.Tensor,
        seq_timestamps: torch.Tensor,
        num_targets: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
    ) -> list[STUCacheState]:
        """The cache of all rows but the targets'; arguments as for `forward`.

        Of the targets, only their number and the last one's time matter: the input embeddings depend on both.
        """
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        no_targets = torch.zeros_like(num_targets)
        _, cache = self._stu_module(
            x, seq_lengths - num_targets, no_targets, attn_scale, return_cache_states=True
        )
        return cache

    def extend(
        self,
        cache: list[STUCacheState],
        seq_lengths: torch.Tensor,
        seq_ids: torch.Tensor,
        seq_timestamps: torch.Tensor,
        num_targets: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
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
        seq_lengths: torch.Tensor,
        seq_ids: torch.Tensor,
        seq_timestamps: torch.Tensor,
        num_targets: torch.Tensor,
    ) -> torch.Tensor:
        """(B, N, D)."""
        seq_embeddings = self._embedding_module(seq_ids)
        return self._positional_encoder(seq_lengths, seq_timestamps, seq_embeddings, num_targets)

    def _postprocess(
        self,
        targets: torch.Tensor,
        seq_lengths: torch.Tensor,
        seq_timestamps: torch.Tensor,
        num_targets: torch.Tensor,
    ) -> torch.Tensor:
        """(B, T, D), anything behind a sequence's targets -> (B, T, D), zero there."""
        timestamps_BT1 = self._split_targets(seq_timestamps.unsqueeze(2), seq_lengths, num_targets)
        return zero_padded_rows(self._output_postprocessor(targets, timestamps_BT1.squeeze(2)), num_targets)
