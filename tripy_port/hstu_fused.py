"""Research HSTU on jagged rows with one fused kernel for the attention of a block.

Counterpart of reference/hstu_fused.py. The kernel is a TensorRT quickly deployable plugin. Importing
`kernels.plugins.hstu_attention` registers it, before compilation. All other operations are Tripy's own.

The number of valid rows is a dimension of an input, "valid_rows": shapes of a graph cannot follow from
values.

Legend: B batch, N sequence, L valid rows, D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

from typing import Any

import nvtripy as tp

from kernels.plugins.schema import HSTU_ATTENTION, HSTUAttentionSettings
from tripy_port.fused_attention import padded_rows, require_heads, row_offsets, valid_rows_of
from tripy_port.hstu_dense import TIMESTAMPS_KEY, HSTUDenseModel
from tripy_port.relative_attention_bias import RelativeBucketedTimeAndPositionBasedBias
from tripy_port.transduction_dense import HSTUAttentionDense, SequentialTransductionUnitDense
from tripy_port.validation import require

VALID_ROWS_KEY = "valid_rows"


class HSTUAttentionFused(HSTUAttentionDense):
    """`HSTUAttentionDense` on jagged rows, with the bias computed inside; constructor as there."""

    def forward(
        self,
        q: tp.Tensor,
        k: tp.Tensor,
        v: tp.Tensor,
        x_offsets: tp.Tensor,
        all_timestamps: tp.Tensor,
        rel_attn_bias: RelativeBucketedTimeAndPositionBasedBias,
    ) -> tp.Tensor:
        """
        Args:
            q, k: (L, H * K). v: (L, H * V).
            x_offsets: (B + 1,) int, where each sequence begins, and L.
            all_timestamps: (B, N) int64 seconds, N at least the longest sequence.
            rel_attn_bias: owner of the weights and buckets.

        Returns:
            (L, H * V).
        """
        heads = self._num_heads
        position_weights, time_weights, bucket_divisor = rel_attn_bias.weights_and_buckets()
        attn_output_LHV = tp.plugin(
            HSTU_ATTENTION,
            [
                tp.reshape(q, (-1, heads, self._attention_dim)),
                tp.reshape(k, (-1, heads, self._attention_dim)),
                tp.reshape(v, (-1, heads, self._linear_dim)),
                x_offsets,
                all_timestamps,
                position_weights,
                time_weights,
            ],
            settings=HSTUAttentionSettings(self._divisor, bucket_divisor).to_string(),
        )
        return tp.reshape(attn_output_LHV, (-1, heads * self._linear_dim))


class SequentialTransductionUnitFused(SequentialTransductionUnitDense):
    """One HSTU block on jagged rows; constructor as for the dense block."""

    attention_class = HSTUAttentionFused

    def forward(
        self, x: tp.Tensor, x_offsets: tp.Tensor, all_timestamps: tp.Tensor
    ) -> tuple[tp.Tensor, None]:
        """
        Args:
            x: (L, D).
            x_offsets: (B + 1,) int.
            all_timestamps: (B, N) int64 seconds.

        Returns:
            (L, D), and None in the place of a cache state.
        """
        u, v, q, k = self._project(x)
        attn_output = self._attn(q, k, v, x_offsets, all_timestamps, self._rel_attn_bias)
        return self._transform(u, attn_output, x), None


class HSTUFused(tp.Module):
    """The stack of blocks, from padded rows to padded rows."""

    def __init__(self, modules: list[SequentialTransductionUnitFused]) -> None:
        super().__init__()
        self._attention_layers = list(modules)

    def forward(
        self,
        x: tp.Tensor,
        x_lengths: tp.Tensor,
        all_timestamps: tp.Tensor,
        valid_rows: tp.Tensor,
    ) -> tuple[tp.Tensor, list[None]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths: (B,) int, valid rows of each sequence.
            all_timestamps: (B, N) int64 seconds.
            valid_rows: (L,) int, see `tripy_port.fused_attention.valid_rows_of`.

        Returns:
            (B, N, D) with padded rows zero, and no cache states.
        """
        x_offsets = row_offsets(x_lengths)
        values = valid_rows_of(x, valid_rows)
        for layer in self._attention_layers:
            values, _ = layer(values, x_offsets, all_timestamps)
        return padded_rows(values, x_lengths, x_offsets, x), []


class HSTUFusedModel(HSTUDenseModel):
    """`HSTUDenseModel` with fused attention; same parameters, inputs and outputs, and the valid rows.

    Raises:
        ValueError: also for a normalization, a bias or a size of heads that the kernel does not compute.
    """

    unit_class = SequentialTransductionUnitFused
    encoder_class = HSTUFused

    def __init__(self, **arguments: Any) -> None:
        require_fused(arguments["normalization"], arguments["relative_attention_bias"])
        require_heads(attention_dim=arguments["attention_dim"], linear_dim=arguments["linear_dim"])
        super().__init__(**arguments)

    def generate_user_embeddings(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
    ) -> tuple[tp.Tensor, list[None]]:
        """As in the dense model, with "valid_rows" in past_payloads, see `HSTUFused.forward`."""
        x_lengths, x, _ = self._input_features_preproc(
            past_lengths=past_lengths,
            past_ids=past_ids,
            past_embeddings=past_embeddings,
            past_payloads=past_payloads,
        )
        encoded, cache_states = self._hstu(
            x=x,
            x_lengths=x_lengths,
            all_timestamps=past_payloads[TIMESTAMPS_KEY],
            valid_rows=past_payloads[VALID_ROWS_KEY],
        )
        return self._output_postproc(encoded), cache_states


def require_fused(normalization: str, relative_attention_bias: str) -> None:
    """Checks that the kernel computes a model's attention.

    Raises:
        ValueError: naming the field, its value and the kernel's choices.
    """
    computed = ("rel_bias", "hstu_rel_bias")
    require(
        normalization in computed,
        "normalization",
        normalization,
        f"fused attention computes {' and '.join(computed)}",
    )
    require(
        relative_attention_bias == "bucketed_time_and_position",
        "relative_attention_bias",
        relative_attention_bias,
        "fused attention computes 'bucketed_time_and_position'",
    )
