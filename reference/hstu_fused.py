"""Research HSTU on jagged rows with one fused kernel for the attention of a block.

The function equals `reference.hstu_dense`; the layout of the computation differs. A block's tensors hold the
valid rows of all sequences, one after the other, without padding. The kernel (`kernels.hstu_attention`)
computes biases, mask, SiLU and both products of a head without an (N, N) tensor. `_rel_attn_bias` only owns
the weights that the kernel reads, and no mask is made.

Departures from the jagged model of `reference.hstu`: the caller names the valid rows of the padded batch
(``past_payloads["valid_rows"]``). A compiled graph, whose shapes cannot follow from values, has the same
signature. There is no incremental forward.

Legend: B batch, N sequence, L valid rows, D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.hstu_attention import ResearchMask, dot_precision_of_torch, hstu_attention
from reference.fused_attention import padded_rows, require_heads, row_offsets, valid_rows_of
from reference.hstu_dense import TIMESTAMPS_KEY, HSTUDenseModel
from reference.relative_attention_bias import RelativeBucketedTimeAndPositionBasedBias
from reference.transduction_dense import HSTUAttentionDense, SequentialTransductionUnitDense
from reference.validation import require

VALID_ROWS_KEY = "valid_rows"


class HSTUAttentionFused(HSTUAttentionDense):
    """`HSTUAttentionDense` on jagged rows, with the bias computed inside; constructor as there.

    On CUDA tensors the Triton kernel runs, on others the plain PyTorch form of the same operation.
    """

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x_offsets: torch.Tensor,
        all_timestamps: torch.Tensor,
        rel_attn_bias: RelativeBucketedTimeAndPositionBasedBias,
    ) -> torch.Tensor:
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
        attn_output_LHV = hstu_attention(
            q.reshape(-1, heads, self._attention_dim),
            k.reshape(-1, heads, self._attention_dim),
            v.reshape(-1, heads, self._linear_dim),
            x_offsets,
            all_timestamps.size(1),
            ResearchMask(position_weights, self._divisor, all_timestamps, time_weights, bucket_divisor),
            backend="triton" if q.is_cuda else "eager",
            dot_precision=dot_precision_of_torch(q),
        )
        return attn_output_LHV.reshape(-1, heads * self._linear_dim)


class SequentialTransductionUnitFused(SequentialTransductionUnitDense):
    """One HSTU block on jagged rows; constructor as for the dense block."""

    attention_class = HSTUAttentionFused

    def forward(
        self, x: torch.Tensor, x_offsets: torch.Tensor, all_timestamps: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
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


class HSTUFused(torch.nn.Module):
    """The stack of blocks, from padded rows to padded rows."""

    def __init__(self, modules: list[SequentialTransductionUnitFused]) -> None:
        super().__init__()
        self._attention_layers = torch.nn.ModuleList(modules)

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        all_timestamps: torch.Tensor,
        valid_rows: torch.Tensor,
    ) -> tuple[torch.Tensor, list[None]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths: (B,) int, valid rows of each sequence.
            all_timestamps: (B, N) int64 seconds.
            valid_rows: (L,) int, see `reference.fused_attention.valid_rows_of`.

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
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, list[None]]:
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
