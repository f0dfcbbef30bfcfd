"""DLRMv3, the generative recommender of MLPerf's inference benchmark: embeddings in, predictions out.

Source: mlcommons/inference, recommendation/dlrm_v3, and meta-recsys/generative-recommenders,
generative_recommenders/modules/dlrm_hstu.py and hstu_transducer.py. Departures:

* The forward takes rows of the embedding tables. Tables are outside: one of the benchmark's has 10^9 rows.
* Dense only. A row holds, from the left, contextual rows, history, targets and padding. The width N divides
  the attention weights, as the longest sequence of a batch does in the public code.
* Inference only: no labels, losses and dropout.

Legend: B batch, H history rows, T target rows, M = H + T, C contextual rows, N = C + M, E columns of the
embedding tables, D embedding, K tasks.
"""

from __future__ import annotations

import torch

from reference.hstu_transducer import TargetSplit
from reference.multitask_module import MultitaskModule
from reference.positional_encoder import HSTUPositionalEncoder
from reference.postprocessors import OutputPostprocessor
from reference.preprocessors import ContextualPreprocessor, embedding_mlp
from reference.sequence_utils import MergeSequences, zero_padded_rows
from reference.stu import STUCacheState, STUStack


class RankingTransducer(torch.nn.Module):
    """Embeddings of history, targets and context -> a state for each target.

    Args:
        positional_encoder: for the preprocessor's number of contextual rows.
        max_num_targets: T.
    """

    def __init__(
        self,
        stu_module: STUStack,
        input_preprocessor: ContextualPreprocessor,
        output_postprocessor: OutputPostprocessor,
        positional_encoder: HSTUPositionalEncoder,
        max_num_targets: int,
    ) -> None:
        super().__init__()
        self._stu_module = stu_module
        self._input_preprocessor = input_preprocessor
        self._output_postprocessor = output_postprocessor
        self._positional_encoder = positional_encoder
        self._split_targets = TargetSplit(max_num_targets)

    @property
    def contextual_seq_len(self) -> int:
        """C."""
        return self._input_preprocessor.contextual_seq_len

    def forward(
        self,
        uih_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        seq_timestamps: torch.Tensor,
        seq_embeddings: torch.Tensor,
        additional_embeddings: torch.Tensor,
        targets: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, T, D), anything behind a user's targets; arguments as for `ContextualPreprocessor`."""
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
        x, _ = self._stu_module(x, seq_lengths, num_targets)
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
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """The result of `forward`, and the cache of all rows, of which `extend` reads those in front of the
        targets."""
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
        x, cache = self._stu_module(x, seq_lengths, num_targets, return_cache_states=True)
        states = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(states, timestamps_BN, seq_lengths, num_targets), cache

    def extend(
        self,
        cache: list[STUCacheState],
        cached_lengths: torch.Tensor,
        uih_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        seq_timestamps: torch.Tensor,
        seq_embeddings: torch.Tensor,
        additional_embeddings: torch.Tensor,
        targets: torch.Tensor,
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The result of `forward` for targets behind the rows of a cache, which is not modified.

        Args:
            cache: of `prefill`, (B, N, H * K) and (B, N, H * V) for each layer.
            cached_lengths: (B,) int, contextual and history rows of each sequence.

        The others are those of the same targets without history, as for `forward`: neither history nor
        context enters the embedding of a target.
        """
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
        delta_x = self._split_targets(x, seq_lengths, num_targets)
        states, _ = self._stu_module.cached_forward(
            delta_x, cached_lengths + num_targets, cached_lengths, num_targets, cache
        )
        return self._postprocess(states, timestamps_BN, seq_lengths, num_targets)

    def _embed(
        self,
        uih_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        *inputs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B,) rows of each sequence, (B, N) timestamps and (B, N, D) input embeddings, as for `forward`."""
        seq_lengths, timestamps_BN, x = self._input_preprocessor(uih_lengths, num_targets, *inputs)
        return (
            seq_lengths,
            timestamps_BN,
            self._positional_encoder(seq_lengths, timestamps_BN, x, num_targets),
        )

    def _postprocess(
        self,
        states: torch.Tensor,
        timestamps_BN: torch.Tensor,
        seq_lengths: torch.Tensor,
        num_targets: torch.Tensor,
    ) -> torch.Tensor:
        """The targets' rows of the last layer, (B, T, D) -> (B, T, D)."""
        timestamps_BT1 = self._split_targets(timestamps_BN.unsqueeze(2), seq_lengths, num_targets)
        return self._output_postprocessor(states, timestamps_BT1.squeeze(2))


class DlrmHSTU(torch.nn.Module):
    """A prediction for each task and candidate.

    Args:
        embedding_table_dim, item_hidden_dim, transducer_embedding_dim: E, the inner width of the candidates'
            MLP, D.
    """

    def __init__(
        self,
        hstu_transducer: RankingTransducer,
        multitask_module: MultitaskModule,
        embedding_table_dim: int,
        item_hidden_dim: int,
        transducer_embedding_dim: int,
    ) -> None:
        super().__init__()
        self._multitask_module = multitask_module
        self._hstu_transducer = hstu_transducer
        # An item and its category.
        self._item_embedding_mlp = embedding_mlp(
            2 * embedding_table_dim, item_hidden_dim, transducer_embedding_dim
        )
        self._merge = MergeSequences()

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
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            uih_lengths, num_candidates: (B,) int, in [0, H] and [0, T]; with C, at least 1 together.
            uih_embeddings, uih_category_embeddings: (B, H, E).
            uih_timestamps: (B, H) int64 seconds.
            candidate_embeddings, candidate_category_embeddings: (B, T, E).
            query_times: (B, T) int64 seconds.
            uih_actions: (B, H) int64, see `reference.action_encoder.ActionEncoder`.
            contextual_embeddings: (B, C, E).

        Returns:
            (B, T, K), rows behind a user's candidates zero.
        """
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
        return self._predictions(self._hstu_transducer(*inputs), item_states, num_candidates)

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
        uih_actions: torch.Tensor | None = None,
        contextual_embeddings: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """The result of `forward`, and the cache that `extend` takes; arguments as for `forward`."""
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
        states, cache = self._hstu_transducer.prefill(*inputs)
        return self._predictions(states, item_states, num_candidates), cache

    def extend(
        self,
        cache: list[STUCacheState],
        uih_lengths: torch.Tensor,
        num_candidates: torch.Tensor,
        candidate_embeddings: torch.Tensor,
        candidate_category_embeddings: torch.Tensor,
        query_times: torch.Tensor,
    ) -> torch.Tensor:
        """The result of `forward` for other candidates of the request whose rows a cache has.

        History, context, the last candidate's query time and N must be those of the cached request, and each
        contextual feature must have enough rows in both or in neither.

        Args:
            cache: a (k, v) for each layer, (B, N, H * K) and (B, N, H * V); anything finite behind the rows
                of context and history. It is not modified.

        The others: see `forward`. Returns as `forward`.
        """
        b, _, e = candidate_embeddings.shape
        c = self._hstu_transducer.contextual_seq_len
        # A request of the same candidates, with one row of history that is padding.
        no_rows_B1E = candidate_embeddings.new_zeros((b, 1, e))
        no_times_B1 = query_times.new_zeros((b, 1))
        inputs, item_states = self._inputs(
            torch.zeros_like(uih_lengths),
            num_candidates,
            no_rows_B1E,
            no_rows_B1E,
            no_times_B1,
            candidate_embeddings,
            candidate_category_embeddings,
            query_times,
            no_times_B1,
            candidate_embeddings.new_zeros((b, c, e)) if c else None,
        )
        states = self._hstu_transducer.extend(cache, uih_lengths + c, *inputs)
        return self._predictions(states, item_states, num_candidates)

    def _inputs(
        self,
        uih_lengths: torch.Tensor,
        num_candidates: torch.Tensor,
        uih_embeddings: torch.Tensor,
        uih_category_embeddings: torch.Tensor,
        uih_timestamps: torch.Tensor,
        candidate_embeddings: torch.Tensor,
        candidate_category_embeddings: torch.Tensor,
        query_times: torch.Tensor,
        uih_actions: torch.Tensor | None,
        contextual_embeddings: torch.Tensor | None,
    ) -> tuple[tuple[torch.Tensor | None, ...], torch.Tensor]:
        """The transducer's arguments and the candidates' states, (B, T, D); arguments as for `forward`."""
        seq_embeddings = self._merge(uih_embeddings, candidate_embeddings, uih_lengths)
        categories = self._merge(uih_category_embeddings, candidate_category_embeddings, uih_lengths)
        times_BM1 = self._merge(uih_timestamps.unsqueeze(2), query_times.unsqueeze(2), uih_lengths)
        items_BTF = torch.cat([candidate_embeddings, candidate_category_embeddings], dim=-1)
        item_states = self._item_embedding_mlp(items_BTF)
        inputs = (
            uih_lengths,
            num_candidates,
            times_BM1.squeeze(2),
            seq_embeddings,
            categories,
            candidate_embeddings,
            uih_actions,
            contextual_embeddings,
        )
        return inputs, item_states

    def _predictions(
        self, user_states: torch.Tensor, item_states: torch.Tensor, num_candidates: torch.Tensor
    ) -> torch.Tensor:
        """(B, T, K), rows behind a user's candidates zero."""
        return zero_padded_rows(self._multitask_module(user_states, item_states), num_candidates)
