"""The production STU on jagged rows, with fused kernels for a layer's attention, or for whole layers.

Counterpart of reference/stu_fused.py. The kernels are TensorRT quickly deployable plugins. Importing
`kernels.plugins.stu_attention` and `kernels.plugins.stu_layer` registers them, before compilation. All other
operations are Tripy's own.

Legend: B batch, N sequence, L valid rows, D embedding, H heads, K attention dim, V hidden dim.
"""

from __future__ import annotations

from typing import Any

import nvtripy as tp

from kernels.plugins.schema import (
    STU_ATTENTION,
    STU_GATE,
    STU_NORM,
    STUAttentionSettings,
    STUGateSettings,
    STUNormSettings,
)
from tripy_port.fused_attention import padded_rows, require_heads, row_offsets, valid_rows_of
from tripy_port.hstu_transducer import HSTUTransducer
from tripy_port.stu import NORM_EPS, STUCacheState, STUInputNorm, STULayer
from tripy_port.stu_attention import STUAttention, STUAttentionMask

NO_CACHE = "the production STU with fused attention has no k/v cache; use the dense model, `build_stu`"


class STUAttentionFused(STUAttention):
    """`STUAttention` on jagged rows, with the mask computed inside; constructor as there.

    Raises:
        ValueError: also for a size of heads that the kernel does not take.
    """

    def __init__(
        self, num_heads: int, attention_dim: int, hidden_dim: int, attn_alpha: float | None = None
    ) -> None:
        super().__init__(num_heads, attention_dim, hidden_dim, attn_alpha)
        require_heads(attention_dim=attention_dim, hidden_dim=hidden_dim)

    def forward(
        self,
        q: tp.Tensor,
        k: tp.Tensor,
        v: tp.Tensor,
        x_offsets: tp.Tensor,
        num_targets: tp.Tensor,
        padded: tp.Tensor,
        valid_attn_mask: STUAttentionMask,
        attn_scale: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """
        Args:
            q, k: (L, H * K). v: (L, H * V).
            x_offsets: (B + 1,) int, where each sequence begins, and L.
            num_targets: (B,) int of x_offsets' type, number of a sequence's last rows that are targets.
            padded: (N,) int32, whose extent alone counts: N, the divisor of the weights.
            valid_attn_mask: owner of the window and of contextual_seq_len.
            attn_scale: (L,), factor of each row's weights in place of 1 / N.

        Returns:
            (L, H * V).
        """
        heads = self._num_heads
        settings = STUAttentionSettings(
            self._alpha,
            valid_attn_mask.max_attn_len,
            valid_attn_mask.contextual_seq_len,
            has_attn_scale=attn_scale is not None,
        )
        attn_output_LHV = tp.plugin(
            STU_ATTENTION,
            [
                tp.reshape(q, (-1, heads, self._attention_dim)),
                tp.reshape(k, (-1, heads, self._attention_dim)),
                tp.reshape(v, (-1, heads, self._hidden_dim)),
                x_offsets,
                num_targets,
                # A plugin's inputs are a fixed list; one element, which is not read, stands for none.
                tp.zeros((1,), dtype=q.dtype) if attn_scale is None else attn_scale,
                padded,
            ],
            settings=settings.to_string(),
        )
        return tp.reshape(attn_output_LHV, (-1, heads * self._hidden_dim))


class STULayerFused(STULayer):
    """One layer on jagged rows; constructor as for the dense layer."""

    attention_class = STUAttentionFused

    def forward(
        self,
        x: tp.Tensor,
        x_offsets: tp.Tensor,
        num_targets: tp.Tensor,
        padded: tp.Tensor,
        valid_attn_mask: STUAttentionMask,
        attn_scale: tp.Tensor | None = None,
    ) -> tuple[tp.Tensor, None]:
        """
        Args:
            x: (L, D).
            x_offsets, num_targets, padded, valid_attn_mask, attn_scale: see `STUAttentionFused.forward`.

        Returns:
            (L, D), and None in the place of a cache state.
        """
        u, v, q, k = self._project(x)
        attn_output = self._attn(q, k, v, x_offsets, num_targets, padded, valid_attn_mask, attn_scale)
        return self._transform(u, attn_output, x), None


class STUInputNormFused(STUInputNorm):
    """`STUInputNorm` as one kernel; constructor as there."""

    def forward(self, x: tp.Tensor, weight: tp.Tensor, bias: tp.Tensor) -> tp.Tensor:
        """x (..., D), weight and bias (D,) -> (..., D)."""
        rows = tp.reshape(x, (-1, self._embedding_dim))
        normed = tp.plugin(STU_NORM, [rows, weight, bias], settings=STUNormSettings(NORM_EPS).to_string())
        return tp.reshape(normed, x.shape)


class STULayerWhole(STULayerFused):
    """`STULayerFused` with kernels for all of a layer but its two products.

    One kernel computes SiLU of u, the output's norm and the gate, and writes the output product's factor.
    """

    input_norm_class = STUInputNormFused

    def _project(self, x: tp.Tensor) -> tuple[tp.Tensor, ...]:
        """(L, D) -> u before its activation and v (L, H * V), q and k (L, H * K)."""
        normed = self._input_norm(x, self._input_norm_weight, self._input_norm_bias)
        return tuple(tp.split(normed @ self._uvqk_weight + self._uvqk_beta, self._split_sizes, dim=-1))

    def _transform(self, u: tp.Tensor, attn_output: tp.Tensor, x: tp.Tensor) -> tp.Tensor:
        """u before its activation, attn_output (L, H * V) and the layer's input x (L, D) -> (L, D)."""
        settings = STUGateSettings(NORM_EPS, self._output_norm.norm_groups)
        y = tp.plugin(
            STU_GATE,
            [u, attn_output, self._output_norm_weight, self._output_norm_bias],
            settings=settings.to_string(),
        )
        return y @ self._output_weight + x


class STUStackFused(tp.Module):
    """The layers, from padded rows to padded rows.

    Args:
        stu_list: the layers.
        contextual_seq_len, max_attn_len: see `STUAttentionMask`.
    """

    def __init__(
        self, stu_list: list[STULayerFused], contextual_seq_len: int = 0, max_attn_len: int = 0
    ) -> None:
        super().__init__()
        self._valid_attn_mask = STUAttentionMask(contextual_seq_len, max_attn_len)
        self._stu_layers = list(stu_list)

    def forward(
        self,
        x: tp.Tensor,
        x_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        valid_rows: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
    ) -> tuple[tp.Tensor, list[None]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths, num_targets: (B,) int, see `STUAttentionMask.forward`.
            valid_rows: (L,) int, see `tripy_port.fused_attention.valid_rows_of`.
            attn_scale: (B, N) or None, see `STUAttention.forward`.

        Returns:
            (B, N, D) with padded rows zero, and no cache states.
        """
        x_offsets = row_offsets(x_lengths)
        num_targets = tp.cast(num_targets, x_offsets.dtype)
        padded = tp.zeros((x.shape[1],), dtype=tp.int32)
        if attn_scale is not None:
            attn_scale = valid_rows_of(attn_scale, valid_rows)
        values = valid_rows_of(x, valid_rows)
        for layer in self._stu_layers:
            values, _ = layer(values, x_offsets, num_targets, padded, self._valid_attn_mask, attn_scale)
        return padded_rows(values, x_lengths, x_offsets, x), []


class HSTUTransducerFused(HSTUTransducer):
    """`HSTUTransducer` with fused attention; same parameters, inputs and outputs, and the valid rows.

    Args:
        stu_module: an `STUStackFused`. The others: see `HSTUTransducer`.
    """

    def forward(
        self,
        seq_lengths: tp.Tensor,
        seq_ids: tp.Tensor,
        seq_timestamps: tp.Tensor,
        num_targets: tp.Tensor,
        valid_rows: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """As in the dense model, with the valid rows, see `STUStackFused.forward`."""
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        x, _ = self._stu_module(x, seq_lengths, num_targets, valid_rows, attn_scale)
        targets = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(targets, seq_lengths, seq_timestamps, num_targets)

    def prefill(self, *args: Any, **kwargs: Any) -> list[STUCacheState]:
        """Raises NotImplementedError: fused attention has no cache."""
        raise NotImplementedError(NO_CACHE)

    def extend(self, *args: Any, **kwargs: Any) -> tp.Tensor:
        """Raises NotImplementedError: fused attention has no cache."""
        raise NotImplementedError(NO_CACHE)
