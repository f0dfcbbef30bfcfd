"""DLRMv3 on jagged rows in its STU layers, with fused kernels for a layer's attention, or for whole layers.

Counterpart of reference/dlrm_hstu_fused.py. The stack is that of `tripy_port.stu_fused`, and the caller names
the valid rows of the padded sequences. All parts around the stack are dense.

Legend: B batch, H history rows, T target rows, M = H + T, C contextual rows, N = C + M, L valid rows of the
padded (B, N), E columns of the embedding tables, D embedding, K tasks.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.dlrm_hstu import DlrmHSTU, RankingTransducer
from tripy_port.sequence_utils import zero_padded_rows


class RankingTransducerFused(RankingTransducer):
    """`RankingTransducer` with fused attention; its stu_module is an `STUStackFused`."""

    def forward(
        self,
        uih_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        seq_timestamps: tp.Tensor,
        seq_embeddings: tp.Tensor,
        additional_embeddings: tp.Tensor,
        targets: tp.Tensor,
        valid_rows: tp.Tensor,
        uih_actions: tp.Tensor | None = None,
        contextual_embeddings: tp.Tensor | None = None,
    ) -> tp.Tensor:
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
        timestamps_BT1 = self._split_targets(tp.unsqueeze(timestamps_BN, 2), seq_lengths, num_targets)
        return self._output_postprocessor(states, tp.squeeze(timestamps_BT1, 2))


class DlrmHSTUFused(DlrmHSTU):
    """`DlrmHSTU` with fused attention; same parameters, inputs and outputs, and the valid rows.

    Args:
        hstu_transducer: a `RankingTransducerFused`. The others: see `DlrmHSTU`.
    """

    def forward(
        self,
        uih_lengths: tp.Tensor,
        num_candidates: tp.Tensor,
        uih_embeddings: tp.Tensor,
        uih_category_embeddings: tp.Tensor,
        uih_timestamps: tp.Tensor,
        candidate_embeddings: tp.Tensor,
        candidate_category_embeddings: tp.Tensor,
        query_times: tp.Tensor,
        valid_rows: tp.Tensor,
        uih_actions: tp.Tensor | None = None,
        contextual_embeddings: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """As in the dense model, with the valid rows (L,), see `STUStackFused.forward`."""
        seq_embeddings = self._merge(uih_embeddings, candidate_embeddings, uih_lengths)
        categories = self._merge(uih_category_embeddings, candidate_category_embeddings, uih_lengths)
        times_BM1 = self._merge(tp.unsqueeze(uih_timestamps, 2), tp.unsqueeze(query_times, 2), uih_lengths)
        items_BTF = tp.concatenate([candidate_embeddings, candidate_category_embeddings], dim=-1)
        item_states = self._item_embedding_mlp(items_BTF)
        user_states = self._hstu_transducer(
            uih_lengths,
            num_candidates,
            tp.squeeze(times_BM1, 2),
            seq_embeddings,
            categories,
            candidate_embeddings,
            valid_rows,
            uih_actions,
            contextual_embeddings,
        )
        return zero_padded_rows(self._multitask_module(user_states, item_states), num_candidates)
