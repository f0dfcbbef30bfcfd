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
    STU_ATTENTION_CACHED,
    STU_GATE,
    STU_NORM,
    STUAttentionSettings,
    STUGateSettings,
    STUNormSettings,
)
from tripy_port.fused_attention import padded_rows, require_heads, row_offsets, valid_rows_of
from tripy_port.hstu_transducer import HSTUTransducer
from tripy_port.sequence_utils import zero_padded_rows
from tripy_port.stu import NORM_EPS, STUCacheState, STUInputNorm, STULayer, with_new_rows
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

    def cached_forward(
        self,
        q: tp.Tensor,
        k: tp.Tensor,
        v: tp.Tensor,
        x_offsets: tp.Tensor,
        cached_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        valid_attn_mask: STUAttentionMask,
    ) -> tp.Tensor:
        """The rows of `forward` behind cached ones.

        Args:
            q: (L, H * K), the new rows.
            k, v: (B, N, H * K) and (B, N, H * V), the rows of each sequence with its new ones.
            x_offsets: (B + 1,) int, where each sequence's new rows begin, and L.
            cached_lengths: (B,) int of x_offsets' type, the position of each sequence's first new row.
            num_targets, valid_attn_mask: see `forward`.

        Returns:
            (L, H * V).
        """
        heads, (b, n, _) = self._num_heads, k.shape
        settings = STUAttentionSettings(
            self._alpha, valid_attn_mask.max_attn_len, valid_attn_mask.contextual_seq_len
        )
        attn_output_LHV = tp.plugin(
            STU_ATTENTION_CACHED,
            [
                tp.reshape(q, (-1, heads, self._attention_dim)),
                tp.reshape(k, (b, n, heads, self._attention_dim)),
                tp.reshape(v, (b, n, heads, self._hidden_dim)),
                x_offsets,
                cached_lengths,
                num_targets,
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
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, STUCacheState | None]:
        """
        Args:
            x: (L, D).
            x_offsets, num_targets, padded, valid_attn_mask, attn_scale: see `STUAttentionFused.forward`.

        Returns:
            (L, D) and the cache state, k and v of these rows, or None in its place.
        """
        u, v, q, k = self._project(x)
        attn_output = self._attn(q, k, v, x_offsets, num_targets, padded, valid_attn_mask, attn_scale)
        return self._transform(u, attn_output, x), ((k, v) if return_cache_states else None)

    def cached_forward(
        self,
        delta_x: tp.Tensor,
        x_offsets: tp.Tensor,
        cached_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        valid_attn_mask: STUAttentionMask,
        cache: STUCacheState,
    ) -> tuple[tp.Tensor, STUCacheState]:
        """New rows behind the cached ones, as many for each sequence.

        Args:
            delta_x: (L, D), the new rows of all sequences in order.
            x_offsets, cached_lengths, num_targets, valid_attn_mask: see `STUAttentionFused.cached_forward`.
            cache: (B, N, H * K) and (B, N, H * V), of the rows in front; it is not modified.

        Returns:
            (L, D), and the cache with the new rows.
        """
        u, v, q, k = self._project(delta_x)
        b = cached_lengths.shape[0]
        m = delta_x.shape[0] // b
        k, v = (
            with_new_rows(old, cached_lengths, tp.reshape(rows, (b, m, -1)))
            for old, rows in zip(cache, (k, v), strict=True)
        )
        attn_output = self._attn.cached_forward(
            q, k, v, x_offsets, cached_lengths, num_targets, valid_attn_mask
        )
        return self._transform(u, attn_output, delta_x), (k, v)


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
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, list[STUCacheState]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths, num_targets: (B,) int, see `STUAttentionMask.forward`.
            valid_rows: (L,) int, see `tripy_port.fused_attention.valid_rows_of`.
            attn_scale: (B, N) or None, see `STUAttention.forward`.

        Returns:
            (B, N, D) with padded rows zero, and a cache state for each layer (none unless asked for):
            (L, H * K) and (L, H * V), the valid rows.
        """
        x_offsets = row_offsets(x_lengths)
        num_targets = tp.cast(num_targets, x_offsets.dtype)
        padded = tp.zeros((x.shape[1],), dtype=tp.int32)
        if attn_scale is not None:
            attn_scale = valid_rows_of(attn_scale, valid_rows)
        values = valid_rows_of(x, valid_rows)
        cache_states: list[STUCacheState] = []
        for layer in self._stu_layers:
            values, cache_state = layer(
                values, x_offsets, num_targets, padded, self._valid_attn_mask, attn_scale, return_cache_states
            )
            if cache_state is not None:
                cache_states.append(cache_state)
        return padded_rows(values, x_lengths, x_offsets, x), cache_states

    def cached_forward(
        self,
        delta_x: tp.Tensor,
        x_lengths: tp.Tensor,
        cached_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        cache: list[STUCacheState],
    ) -> tuple[tp.Tensor, list[STUCacheState]]:
        """As `tripy_port.stu.STUStack.cached_forward`, without attn_scale; at most N - M rows are cached."""
        b, m, d = delta_x.shape
        new_lengths = x_lengths - cached_lengths
        values = tp.reshape(zero_padded_rows(delta_x, new_lengths), (b * m, d))
        x_offsets = tp.iota((b + 1,), dtype=tp.int32) * m
        first_rows = tp.cast(cached_lengths, tp.int32)
        # Rows behind a sequence's last one count as targets, which no other row sees.
        targets = tp.cast(num_targets - new_lengths, tp.int32) + m
        cache_states = []
        for layer, state in zip(self._stu_layers, cache, strict=True):
            values, state = layer.cached_forward(
                values, x_offsets, first_rows, targets, self._valid_attn_mask, state
            )
            cache_states.append(state)
        return tp.reshape(values, (b, m, d)), cache_states


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
