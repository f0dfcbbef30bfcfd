"""DLRMv3 on jagged rows in its STU layers, with fused kernels for a layer's attention, or for whole layers.

The function equals `reference.dlrm_hstu`. The stack is that of `reference.stu_fused`, and the caller names
the valid rows of the padded sequences. All parts around the stack are dense.

Legend: B batch, H history rows, T target rows, M = H + T, C contextual rows, N = C + M, L valid rows of the
padded (B, N), E columns of the embedding tables, D embedding, K tasks.
"""

from __future__ import annotations

import torch

from reference.dlrm_hstu import DlrmHSTU, RankingTransducer
from reference.sequence_utils import zero_padded_rows


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
        seq_lengths, timestamps_BN, x = self._input_preprocessor(
            uih_lengths,
            num_targets,
            seq_timestamps,
            seq_embeddings,
            additional_embeddings,
            targets,
            uih_actions,
            contextual_embeddings,
        )
        x = self._positional_encoder(seq_lengths, timestamps_BN, x, num_targets)
        x, _ = self._stu_module(x, seq_lengths, num_targets, valid_rows)
        states = self._split_targets(x, seq_lengths, num_targets)
        timestamps_BT1 = self._split_targets(timestamps_BN.unsqueeze(2), seq_lengths, num_targets)
        return self._output_postprocessor(states, timestamps_BT1.squeeze(2))


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
        seq_embeddings = self._merge(uih_embeddings, candidate_embeddings, uih_lengths)
        categories = self._merge(uih_category_embeddings, candidate_category_embeddings, uih_lengths)
        times_BM1 = self._merge(uih_timestamps.unsqueeze(2), query_times.unsqueeze(2), uih_lengths)
        items_BTF = torch.cat([candidate_embeddings, candidate_category_embeddings], dim=-1)
        item_states = self._item_embedding_mlp(items_BTF)
        user_states = self._hstu_transducer(
            uih_lengths,
            num_candidates,
            times_BM1.squeeze(2),
            seq_embeddings,
            categories,
            candidate_embeddings,
            valid_rows,
            uih_actions,
            contextual_embeddings,
        )
        return zero_padded_rows(self._multitask_module(user_states, item_states), num_candidates)
