"""DLRMv3 on jagged rows in its STU layers, with fused kernels for a layer's attention, or for whole layers.

The function equals `reference.dlrm_hstu`. The stack is that of `reference.stu_fused`, and the caller names
the valid rows of the padded sequences. All parts around the stack are dense.

Legend: B batch, H history rows, T target rows, M = H + T, C contextual rows, N = C + M, L valid rows of the
padded (B, N), E columns of the embedding tables, D embedding, K tasks.
"""

from __future__ import annotations

import torch

from reference.dlrm_hstu import DlrmHSTU, RankingTransducer
from reference.stu import STUCacheState

_UP_TO_TARGETS = 6
"""Arguments of the transducer in front of the valid rows."""


class RankingTransducerFused(RankingTransducer):
    """`RankingTransducer` with fused attention; its stu_module is an `STUStackFused`."""

    def forward(
        self,
        uih_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        seq_timestamps: torch.Tensor,
        seq_embeddings: torch.Tensor,
        additional_embeddings: torch.Tensor,
        targets: torch.Tensor,
        valid_rows: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As in the dense model, with the valid rows (L,), see `STUStackFused.forward`."""
        seq_lengths, timestamps_BN, x = self._embed(
            uih_lengths,
            num_targets,
            seq_timestamps,
            seq_embeddings,
            additional_embeddings,
            targets,
            uih_actions,
            contextual_embeddings,
        )
        x, _ = self._stu_module(x, seq_lengths, num_targets, valid_rows)
        states = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(states, timestamps_BN, seq_lengths, num_targets)

    def prefill(
        self,
        uih_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        seq_timestamps: torch.Tensor,
        seq_embeddings: torch.Tensor,
        additional_embeddings: torch.Tensor,
        targets: torch.Tensor,
        valid_rows: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """As in the dense model; the cache has the valid rows, (L, H * K) and (L, H * V) for each layer."""
        seq_lengths, timestamps_BN, x = self._embed(
            uih_lengths,
            num_targets,
            seq_timestamps,
            seq_embeddings,
            additional_embeddings,
            targets,
            uih_actions,
            contextual_embeddings,
        )
        x, cache = self._stu_module(x, seq_lengths, num_targets, valid_rows, return_cache_states=True)
        states = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(states, timestamps_BN, seq_lengths, num_targets), cache


class DlrmHSTUFused(DlrmHSTU):
    """`DlrmHSTU` with fused attention; same parameters, inputs and outputs, and the valid rows.

    Args:
        hstu_transducer: a `RankingTransducerFused`. The others: see `DlrmHSTU`.
    """

    def forward(
        self,
        uih_lengths: torch.Tensor,
        num_candidates: torch.Tensor,
        uih_embeddings: torch.Tensor,
        uih_category_embeddings: torch.Tensor,
        uih_timestamps: torch.Tensor,
        candidate_embeddings: torch.Tensor,
        candidate_category_embeddings: torch.Tensor,
        query_times: torch.Tensor,
        valid_rows: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As in the dense model, with the valid rows (L,), see `STUStackFused.forward`."""
        inputs, item_states = self._inputs(
            uih_lengths,
            num_candidates,
            uih_embeddings,
            uih_category_embeddings,
            uih_timestamps,
            candidate_embeddings,
            candidate_category_embeddings,
            query_times,
            uih_actions,
            contextual_embeddings,
        )
        states = self._hstu_transducer(*_with_rows(inputs, valid_rows))
        return self._predictions(states, item_states, num_candidates)

    def prefill(
        self,
        uih_lengths: torch.Tensor,
        num_candidates: torch.Tensor,
        uih_embeddings: torch.Tensor,
        uih_category_embeddings: torch.Tensor,
        uih_timestamps: torch.Tensor,
        candidate_embeddings: torch.Tensor,
        candidate_category_embeddings: torch.Tensor,
        query_times: torch.Tensor,
        valid_rows: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """As in the dense model, with the valid rows; see `RankingTransducerFused.prefill`."""
        inputs, item_states = self._inputs(
            uih_lengths,
            num_candidates,
            uih_embeddings,
            uih_category_embeddings,
            uih_timestamps,
            candidate_embeddings,
            candidate_category_embeddings,
            query_times,
            uih_actions,
            contextual_embeddings,
        )
        states, cache = self._hstu_transducer.prefill(*_with_rows(inputs, valid_rows))
        return self._predictions(states, item_states, num_candidates), cache


def _with_rows(
    inputs: tuple[torch.Tensor | None, ...], valid_rows: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """The dense transducer's arguments with the valid rows in their place."""
    return (*inputs[:_UP_TO_TARGETS], valid_rows, *inputs[_UP_TO_TARGETS:])
