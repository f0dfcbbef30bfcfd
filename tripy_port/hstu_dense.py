"""Research HSTU in Tripy. Counterpart of reference/hstu_dense.py, from which it departs in this:

* Inference only: no dropout, no initial values. Every parameter and buffer comes from a state dict, with the
  keys of the reference; a call before that raises.
* Strongly typed in one dtype, given at construction, with PyTorch's roundings (`tripy_port.numerics`).
* Widths are not checked against W in the graph: a dynamic width has no value while it is traced. The profile
  of `tp.InputInfo` bounds it; `sequence_width` is the bound.

Legend: B batch, N sequence, W max_sequence_len + max_output_len (twice that for interleaved ratings),
D embedding, X candidate items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import nvtripy as tp

from tripy_port.embedding_modules import EmbeddingModule
from tripy_port.input_features_preprocessors import InputFeaturesPreprocessorModule
from tripy_port.output_postprocessors import OutputPostprocessorModule
from tripy_port.parameters import parameter
from tripy_port.quantisers import NO_SCHEMES, schemes_inside
from tripy_port.relative_attention_bias import (
    RelativeAttentionBiasModule,
    RelativeBucketedTimeAndPositionBasedBias,
    RelativePositionalBias,
)
from tripy_port.sequence_utils import clear_padded_timestamps, get_current_embeddings, pad_sequence
from tripy_port.similarity import SequentialEncoderWithLearnedSimilarityModule, SimilarityModule
from tripy_port.transduction_dense import (
    AttentionMask,
    HSTUAttentionDense,
    HSTUCacheState,
    HSTUDense,
    NonAffineLayerNorm,
    SequentialTransductionUnitDense,
)
from tripy_port.validation import require, require_choice, require_positive

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
        dtype: of the blocks; the embedding module and the preprocessor are given in the same.

    Raises:
        ValueError: naming the parameter, its value and the fix.
    """

    unit_class: type[SequentialTransductionUnitDense] = SequentialTransductionUnitDense
    encoder_class: type[tp.Module] = HSTUDense

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
        dtype: tp.dtype = tp.float32,
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
                rel_attn_bias = RelativePositionalBias(self._sequence_width, dtype=dtype)
            elif relative_attention_bias == "bucketed_time_and_position":
                rel_attn_bias = RelativeBucketedTimeAndPositionBasedBias(
                    self._sequence_width, num_buckets, bucket_divisor, dtype=dtype
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
                    dtype=dtype,
                )
            )
        self._hstu = self.encoder_class(units)
        self._output_postproc = output_postproc_module
        # True above the diagonal: the future. Its values come with the state dict, as the weights' do.
        self._attn_mask = parameter((self._sequence_width, self._sequence_width), tp.bool)

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

    def get_item_embeddings(self, item_ids: tp.Tensor) -> tp.Tensor:
        """(...,) int -> (..., item_embedding_dim)."""
        return self._embedding_module.get_item_embeddings(item_ids)

    def generate_user_embeddings(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        delta_x_offsets: tp.Tensor | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, list[HSTUCacheState]]:
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
        """
        x_lengths, x, _ = self._input_features_preproc(
            past_lengths=past_lengths,
            past_ids=past_ids,
            past_embeddings=past_embeddings,
            past_payloads=past_payloads,
        )
        n = x.shape[1]
        all_timestamps = past_payloads.get(TIMESTAMPS_KEY)
        if all_timestamps is not None:
            all_timestamps = clear_padded_timestamps(all_timestamps, x_lengths)
        if self._needs_full_width():
            x = pad_sequence(x, self._sequence_width)
            if all_timestamps is not None:
                all_timestamps = pad_sequence(all_timestamps, self._sequence_width)
        encoded, cache_states = self._hstu(
            x=x,
            x_lengths=x_lengths,
            all_timestamps=all_timestamps,
            valid_attn_mask=self._valid_attn_mask(self._attn_mask, x),
            delta_x_offsets=delta_x_offsets,
            cache=cache,
            return_cache_states=return_cache_states,
        )
        if self._needs_full_width():
            encoded = encoded[:, :n]
        return self._output_postproc(encoded), cache_states

    def _needs_full_width(self) -> bool:
        return self._normalization == "softmax_rel_bias"

    def forward(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
    ) -> tp.Tensor:
        """`generate_user_embeddings` without a cache."""
        return self.generate_user_embeddings(past_lengths, past_ids, past_embeddings, past_payloads)[0]

    def encode(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        delta_x_offsets: tp.Tensor | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
    ) -> tp.Tensor | tuple[tp.Tensor, list[HSTUCacheState]]:
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
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        item_ids: tp.Tensor,
    ) -> tuple[tp.Tensor, tp.Tensor, tp.Tensor]:
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
