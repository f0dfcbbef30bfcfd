"""Research HSTU with dense (B, N, D) tensors: masks in place of ragged rows, no data-dependent Python.

Source: "Actions Speak Louder than Words" (ICML'24, arXiv 2402.17152), sections 3 and 4.1.1; public code:
generative_recommenders/research/modeling/sequential/hstu.py. Departures from the public code:

* Dense only, for export and for runtimes without ragged tensors; `reference.hstu` is the jagged layout.
  Padded rows enter every block and leave the last one as zeros, as from jagged_to_padded_dense.
* The input may be trimmed to N <= W. The divisor stays W, the width of the public mask. softmax_rel_bias sums
  over all W columns, so a trimmed input is padded back to W for it.
* Timestamps past the query time are read as zero, as the public loader writes them.
* Normalization, mask and attention are parameterless submodules, so that each can be observed by its name.
* The cache is replaced, never written in place; an incremental step computes one row of attention.
* The settings of the time buckets, eps and the kind of relative bias are constructor parameters.

Legend: B batch, N sequence, W max_sequence_len + max_output_len (twice that for interleaved ratings),
D embedding, X candidate items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from reference.embedding_modules import EmbeddingModule
from reference.input_features_preprocessors import InputFeaturesPreprocessorModule
from reference.output_postprocessors import OutputPostprocessorModule
from reference.quantisers import NO_SCHEMES, schemes_inside
from reference.relative_attention_bias import (
    RelativeAttentionBiasModule,
    RelativeBucketedTimeAndPositionBasedBias,
    RelativePositionalBias,
)
from reference.sequence_utils import clear_padded_timestamps, get_current_embeddings
from reference.similarity import SequentialEncoderWithLearnedSimilarityModule, SimilarityModule
from reference.transduction_dense import (
    AttentionMask,
    HSTUAttentionDense,
    HSTUCacheState,
    HSTUDense,
    NonAffineLayerNorm,
    SequentialTransductionUnitDense,
)
from reference.validation import require, require_choice, require_positive

if TYPE_CHECKING:
    from configs import Scheme

__all__ = [
    "AttentionMask",
    "HSTUAttentionDense",
    "HSTUCacheState",
    "HSTUDense",
    "HSTUDenseModel",
    "NonAffineLayerNorm",
    "SequentialTransductionUnitDense",
]

TIMESTAMPS_KEY = "timestamps"
RELATIVE_ATTENTION_BIASES = ("bucketed_time_and_position", "positional", "none")


class HSTUDenseModel(SequentialEncoderWithLearnedSimilarityModule):
    """Item ids, ratings and timestamps -> a state for each position; similarities of items to the last state.

    Args:
        max_sequence_len, max_output_len: longest history and room for the query time and generated items.
            W = (max_sequence_len + max_output_len) * positions_per_item of the preprocessor.
        embedding_dim: D; the preprocessor's output width.
        relative_attention_bias: one of `RELATIVE_ATTENTION_BIASES`; each block has its own.
        num_buckets, bucket_divisor: of the bucketed bias.
        schemes: of the quantised products of the blocks by path, see `reference.quantisers`.

    Raises:
        ValueError: naming the parameter, its value and the fix.
    """

    unit_class: type[SequentialTransductionUnitDense] = SequentialTransductionUnitDense
    encoder_class: type[torch.nn.Module] = HSTUDense

    def __init__(
        self,
        max_sequence_len: int,
        max_output_len: int,
        embedding_dim: int,
        num_blocks: int,
        num_heads: int,
        linear_dim: int,
        attention_dim: int,
        normalization: str,
        linear_config: str,
        linear_activation: str,
        linear_dropout_rate: float,
        attn_dropout_rate: float,
        embedding_module: EmbeddingModule,
        similarity_module: SimilarityModule,
        input_features_preproc_module: InputFeaturesPreprocessorModule,
        output_postproc_module: OutputPostprocessorModule,
        relative_attention_bias: str = "bucketed_time_and_position",
        num_buckets: int = 128,
        bucket_divisor: float = 0.301,
        concat_ua: bool = False,
        epsilon: float = 1e-6,
        schemes: Mapping[str, Scheme] = NO_SCHEMES,
    ) -> None:
        super().__init__(ndp_module=similarity_module)
        require_positive(
            max_sequence_len=max_sequence_len, max_output_len=max_output_len, num_blocks=num_blocks
        )
        require_choice("relative_attention_bias", relative_attention_bias, RELATIVE_ATTENTION_BIASES)
        preproc_dim = input_features_preproc_module.embedding_dim
        require(
            preproc_dim == embedding_dim,
            "embedding_dim",
            embedding_dim,
            f"must equal the input preprocessor's output width, {preproc_dim}",
        )
        self._sequence_width = (
            max_sequence_len + max_output_len
        ) * input_features_preproc_module.positions_per_item
        self._num_blocks = num_blocks
        self._num_heads = num_heads
        self._dqk = attention_dim
        self._dv = linear_dim
        self._normalization = normalization
        self._linear_activation = linear_activation
        self._linear_dropout_rate = linear_dropout_rate
        self._attn_dropout_rate = attn_dropout_rate
        self._relative_attention_bias = relative_attention_bias
        self._embedding_module = embedding_module
        self._input_features_preproc = input_features_preproc_module
        self._valid_attn_mask = AttentionMask()
        units = []
        for block in range(num_blocks):
            rel_attn_bias: RelativeAttentionBiasModule | None = None
            if relative_attention_bias == "positional":
                rel_attn_bias = RelativePositionalBias(self._sequence_width)
            elif relative_attention_bias == "bucketed_time_and_position":
                rel_attn_bias = RelativeBucketedTimeAndPositionBasedBias(
                    self._sequence_width, num_buckets, bucket_divisor
                )
            units.append(
                self.unit_class(
                    embedding_dim=embedding_dim,
                    linear_hidden_dim=linear_dim,
                    attention_dim=attention_dim,
                    dropout_ratio=linear_dropout_rate,
                    attn_dropout_ratio=attn_dropout_rate,
                    num_heads=num_heads,
                    linear_activation=linear_activation,
                    divisor=self._sequence_width,
                    relative_attention_bias_module=rel_attn_bias,
                    normalization=normalization,
                    linear_config=linear_config,
                    concat_ua=concat_ua,
                    epsilon=epsilon,
                    schemes=schemes_inside(f"_hstu._attention_layers.{block}", schemes),
                )
            )
        self._hstu = self.encoder_class(units)
        self._output_postproc = output_postproc_module
        # True above the diagonal: the future.
        everything = torch.ones(self._sequence_width, self._sequence_width, dtype=torch.bool)
        self.register_buffer("_attn_mask", torch.triu(everything, diagonal=1))
        self.reset_params()

    def reset_params(self) -> None:
        """Xavier-normal matrices outside the blocks and item embeddings, which keep their own values."""
        for name, params in self.named_parameters():
            if "_hstu" not in name and "_embedding_module" not in name and params.dim() >= 2:
                torch.nn.init.xavier_normal_(params.data)

    @property
    def sequence_width(self) -> int:
        """W, the largest width of a sequence inside the blocks."""
        return self._sequence_width

    def debug_str(self) -> str:
        """The public code's name of the model."""
        suffix = "-norab" if self._relative_attention_bias == "none" else ""
        return (
            f"HSTU-b{self._num_blocks}-h{self._num_heads}-dqk{self._dqk}-dv{self._dv}"
            f"-l{self._linear_activation}d{self._linear_dropout_rate}-ad{self._attn_dropout_rate}{suffix}"
        )

    def get_item_embeddings(self, item_ids: torch.Tensor) -> torch.Tensor:
        """(...,) int -> (..., item_embedding_dim)."""
        return self._embedding_module.get_item_embeddings(item_ids)

    def generate_user_embeddings(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        delta_x_offsets: torch.Tensor | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, list[HSTUCacheState]]:
        """States of all positions. With interleaved ratings the inner width is 2 * N, below written N.

        Args:
            past_lengths: (B,) int, each in [1, N]; anything may follow in the padding.
            past_ids: (B, N) int, 0 for no item. N <= W, and N > every length unless N == W.
            past_embeddings: (B, N, item_embedding_dim).
            past_payloads: "timestamps" (B, N) int64 seconds with the query time at index ``length``;
                "ratings" (B, N) int where the preprocessor uses them, N not doubled.
            delta_x_offsets, cache, return_cache_states: see `SequentialTransductionUnitDense.forward`; one
                step adds one position. The new row equals the full forward's under rel_bias and
                hstu_rel_bias. Under softmax_rel_bias, whose denominators see later positions, it does so
                with one block only, as in the public code.

        Returns:
            (B, N, output dim) with padded rows zero, and the cache states (empty unless return_cache_states).

        Raises:
            ValueError: naming the input whose width does not fit.
        """
        x_lengths, x, _ = self._input_features_preproc(
            past_lengths=past_lengths,
            past_ids=past_ids,
            past_embeddings=past_embeddings,
            past_payloads=past_payloads,
        )
        n = x.size(1)
        require(n <= self._sequence_width, "sequence width", n, f"must be at most {self._sequence_width}")
        all_timestamps = past_payloads.get(TIMESTAMPS_KEY)
        if all_timestamps is not None:
            width = all_timestamps.size(1)
            require(width == n, "width of past_payloads['timestamps']", width, f"must be {n}")
            all_timestamps = clear_padded_timestamps(all_timestamps, x_lengths)
        if self._needs_full_width():
            x = F.pad(x, (0, 0, 0, self._sequence_width - n))
            if all_timestamps is not None:
                all_timestamps = F.pad(all_timestamps, (0, self._sequence_width - n))
        encoded, cache_states = self._run_blocks(
            x, x_lengths, all_timestamps, delta_x_offsets, cache, return_cache_states
        )
        return self._output_postproc(encoded[:, :n]), cache_states

    def _needs_full_width(self) -> bool:
        return self._normalization == "softmax_rel_bias"

    def _run_blocks(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        all_timestamps: torch.Tensor | None,
        delta_x_offsets: torch.Tensor | None,
        cache: list[HSTUCacheState] | None,
        return_cache_states: bool,
    ) -> tuple[torch.Tensor, list[HSTUCacheState]]:
        return self._hstu(
            x=x,
            x_lengths=x_lengths,
            all_timestamps=all_timestamps,
            valid_attn_mask=self._valid_attn_mask(self._attn_mask, x),
            delta_x_offsets=delta_x_offsets,
            cache=cache,
            return_cache_states=return_cache_states,
        )

    def forward(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """`generate_user_embeddings` without a cache."""
        return self.generate_user_embeddings(past_lengths, past_ids, past_embeddings, past_payloads)[0]

    def encode(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        delta_x_offsets: torch.Tensor | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, list[HSTUCacheState]]:
        """Row past_lengths - 1 of `generate_user_embeddings`: (B, output dim).

        As in the public code, that row counts items, also with interleaved ratings.
        """
        encoded, cache_states = self.generate_user_embeddings(
            past_lengths,
            past_ids,
            past_embeddings,
            past_payloads,
            delta_x_offsets,
            cache,
            return_cache_states,
        )
        current = get_current_embeddings(past_lengths, encoded)
        return (current, cache_states) if return_cache_states else current

    def score(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        item_ids: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids in, similarities out.

        Args:
            item_ids: (1 or B, X) int, the candidates.

        Returns:
            encoded (B, N, output dim), current (B, output dim), similarity (B, X).
        """
        past_embeddings = self.get_item_embeddings(past_ids)
        encoded = self(past_lengths, past_ids, past_embeddings, past_payloads)
        current = get_current_embeddings(past_lengths, encoded)
        return encoded, current, self.similarity_fn(current, item_ids)
