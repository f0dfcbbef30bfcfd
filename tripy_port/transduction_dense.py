"""The dense HSTU block and its parts. Counterpart of reference/transduction_dense.py.

Normalization, mask and attention are parameterless modules, so that each can be observed by its name.

Legend: B batch, N sequence, M query rows (N, or 1 in the incremental forward), W width of the full mask,
D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import nvtripy as tp

from tripy_port.numerics import divide, layer_norm, silu
from tripy_port.parameters import parameter
from tripy_port.quantisers import NO_SCHEMES, QuantisedLinear, QuantisedProduct
from tripy_port.relative_attention_bias import RelativeAttentionBiasModule
from tripy_port.sequence_utils import batch_gather_embeddings, batch_scatter_embeddings, zero_padded_rows
from tripy_port.validation import require, require_choice, require_positive, require_rate

if TYPE_CHECKING:
    from configs import Scheme

# "rel_bias" and "hstu_rel_bias" name the same function in the public code.
NORMALIZATIONS = ("rel_bias", "hstu_rel_bias", "softmax_rel_bias")
LINEAR_CONFIGS = ("uvqk",)
LINEAR_ACTIVATIONS = ("silu", "none")

# (v, padded_q, padded_k, outputs) of one block, each (B, N, *).
HSTUCacheState = tuple[tp.Tensor, tp.Tensor, tp.Tensor, tp.Tensor]


class NonAffineLayerNorm(tp.Module):
    """Layer norm over the last axis, without weight and bias.

    Args:
        normalized_dim: size of the last axis.
        epsilon: added to the variance.
    """

    def __init__(self, normalized_dim: int, epsilon: float) -> None:
        super().__init__()
        require_positive(normalized_dim=normalized_dim)
        require(epsilon > 0, "epsilon", epsilon, "must be positive")
        self._normalized_dim = normalized_dim
        self._eps = epsilon

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(..., normalized_dim) -> same shape."""
        return layer_norm(x, self._normalized_dim, self._eps)


class AttentionMask(tp.Module):
    """Turns the model's boolean mask of forbidden pairs into the 0/1 factor of the attention weights."""

    def forward(self, attn_mask: tp.Tensor, like: tp.Tensor) -> tp.Tensor:
        """
        Args:
            attn_mask: (W, W) bool, True where row i must not see column j.
            like: (B, N, D), gives N <= W and the dtype.

        Returns:
            (N, N) in like's dtype, 1 where row i sees column j.
        """
        n = like.shape[1]
        # The slice comes last: operations in front of it are constant.
        return (1.0 - tp.cast(attn_mask, like.dtype))[:n, :n]


class HSTUAttentionDense(tp.Module):
    """Pointwise aggregated attention, or its softmax variant.

    rel_bias, hstu_rel_bias: SiLU(q k^T + bias) / divisor, a head at a time, then the mask (paper, eq. 2).
    softmax_rel_bias: softmax((q k^T + bias) / sqrt(K)) over all columns, then the mask. As in the public
    code, one dot product runs over all heads. The denominator includes the columns that the mask removes.

    Args:
        num_heads, attention_dim, linear_dim: H, K, V.
        normalization: one of `NORMALIZATIONS`.
        divisor: W; not the width or the length of the input.
    """

    def __init__(
        self, num_heads: int, attention_dim: int, linear_dim: int, normalization: str, divisor: int
    ) -> None:
        super().__init__()
        require_positive(
            num_heads=num_heads, attention_dim=attention_dim, linear_dim=linear_dim, divisor=divisor
        )
        require_choice("normalization", normalization, NORMALIZATIONS)
        self._num_heads = num_heads
        self._attention_dim = attention_dim
        self._linear_dim = linear_dim
        self._normalization = normalization
        self._divisor = divisor

    def forward(
        self,
        q: tp.Tensor,
        k: tp.Tensor,
        v: tp.Tensor,
        attn_bias: tp.Tensor | None,
        valid_attn_mask: tp.Tensor,
    ) -> tp.Tensor:
        """
        Args:
            q: (B, M, H * K). k: (B, N, H * K). v: (B, N, H * V).
            attn_bias: (1 or B, M, N) or None.
            valid_attn_mask: (M, N) or (B, M, N), each element in {0, 1}, in q's dtype.

        Returns:
            (B, M, H * V).
        """
        if self._normalization == "softmax_rel_bias":
            logits_BMN = q @ tp.transpose(k, 1, 2)
            if attn_bias is not None:
                logits_BMN = logits_BMN + attn_bias
            weights_BMN = tp.softmax(divide(logits_BMN, math.sqrt(self._attention_dim)), dim=-1)
            return (weights_BMN * valid_attn_mask) @ v

        b, m, _ = q.shape
        n = k.shape[1]
        q_BMHK = tp.reshape(q, (b, m, self._num_heads, self._attention_dim))
        k_BNHK = tp.reshape(k, (b, n, self._num_heads, self._attention_dim))
        v_BNHV = tp.reshape(v, (b, n, self._num_heads, self._linear_dim))
        logits_BHMN = tp.permute(q_BMHK, (0, 2, 1, 3)) @ tp.permute(k_BNHK, (0, 2, 3, 1))
        if attn_bias is not None:
            logits_BHMN = logits_BHMN + tp.unsqueeze(attn_bias, 1)
        weights_BHMN = divide(silu(logits_BHMN), self._divisor)
        weights_BHMN = weights_BHMN * tp.unsqueeze(valid_attn_mask, -3)
        attn_output_BHMV = weights_BHMN @ tp.permute(v_BNHV, (0, 2, 1, 3))
        attn_output_BMHV = tp.permute(attn_output_BHMV, (0, 2, 1, 3))
        return tp.reshape(attn_output_BMHV, (b, m, self._num_heads * self._linear_dim))


class SequentialTransductionUnitDense(tp.Module):
    """One HSTU block: projection to u, v, q, k; spatial aggregation; gated pointwise transformation.

    Args:
        embedding_dim, linear_hidden_dim, attention_dim, num_heads: D, V, K, H.
        dropout_ratio, attn_dropout_ratio: recorded, not applied: Tripy does not train.
        linear_activation: on u, v, q, k; one of `LINEAR_ACTIVATIONS`.
        divisor: W, see `HSTUAttentionDense`.
        relative_attention_bias_module: None only with softmax_rel_bias.
        concat_ua: project [u, norm(a), u * norm(a)] in place of u * norm(a).
        schemes: of the quantised ones of ``_uvqk`` and ``_o``, see `reference.quantisers`.
        dtype: of the weights and of the computation.
    """

    attention_class: type[HSTUAttentionDense] = HSTUAttentionDense

    def __init__(
        self,
        embedding_dim: int,
        linear_hidden_dim: int,
        attention_dim: int,
        dropout_ratio: float,
        attn_dropout_ratio: float,
        num_heads: int,
        linear_activation: str,
        divisor: int,
        relative_attention_bias_module: RelativeAttentionBiasModule | None = None,
        normalization: str = "rel_bias",
        linear_config: str = "uvqk",
        concat_ua: bool = False,
        epsilon: float = 1e-6,
        schemes: Mapping[str, Scheme] = NO_SCHEMES,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        require_rate(dropout_ratio=dropout_ratio, attn_dropout_ratio=attn_dropout_ratio)
        require_choice("linear_activation", linear_activation, LINEAR_ACTIVATIONS)
        require_choice("linear_config", linear_config, LINEAR_CONFIGS)
        require(
            relative_attention_bias_module is not None or normalization == "softmax_rel_bias",
            "relative_attention_bias_module",
            relative_attention_bias_module,
            f"normalization {normalization!r} needs a bias; give one or use 'softmax_rel_bias'",
        )
        self._embedding_dim = embedding_dim
        self._linear_dim = linear_hidden_dim
        self._attention_dim = attention_dim
        self._dropout_ratio = dropout_ratio
        self._attn_dropout_ratio = attn_dropout_ratio
        self._num_heads = num_heads
        self._normalization = normalization
        self._linear_activation = linear_activation
        self._concat_ua = concat_ua
        self._rel_attn_bias = relative_attention_bias_module
        self._norm_input = NonAffineLayerNorm(embedding_dim, epsilon)
        self._attn = self.attention_class(num_heads, attention_dim, linear_hidden_dim, normalization, divisor)
        self._norm_attn_output = NonAffineLayerNorm(num_heads * linear_hidden_dim, epsilon)
        uvqk_dim = 2 * num_heads * linear_hidden_dim + 2 * num_heads * attention_dim
        self._uvqk = parameter((embedding_dim, uvqk_dim), dtype)
        self._uvqk_product = (
            QuantisedProduct(schemes["_uvqk"], embedding_dim, uvqk_dim, dtype) if "_uvqk" in schemes else None
        )
        o_dim = num_heads * linear_hidden_dim * (3 if concat_ua else 1)
        self._o = (
            QuantisedLinear(o_dim, embedding_dim, schemes["_o"], dtype)
            if "_o" in schemes
            else tp.Linear(o_dim, embedding_dim, dtype=dtype)
        )

    def _times_uvqk(self, normed: tp.Tensor) -> tp.Tensor:
        if self._uvqk_product is None:
            return normed @ self._uvqk
        return self._uvqk_product(normed, self._uvqk)

    def _project(self, x: tp.Tensor) -> tuple[tp.Tensor, ...]:
        """(..., D) -> u, v (..., H * V) and q, k (..., H * K)."""
        projected = self._times_uvqk(self._norm_input(x))
        if self._linear_activation == "silu":
            projected = silu(projected)
        hv, hk = self._num_heads * self._linear_dim, self._num_heads * self._attention_dim
        return tp.split(projected, [hv, hv, hk, hk], dim=-1)

    def _transform(self, u: tp.Tensor, attn_output: tp.Tensor, x: tp.Tensor) -> tp.Tensor:
        """u, attn_output (..., H * V) and the block's input x (..., D) -> (..., D)."""
        a = self._norm_attn_output(attn_output)
        o_input = tp.concatenate([u, a, u * a], dim=-1) if self._concat_ua else u * a
        return self._o(o_input) + x

    def _attn_bias(self, all_timestamps: tp.Tensor | None) -> tp.Tensor | None:
        """(1 or B, N, N) or None. Without timestamps the public code drops the bias; a softmax keeps it."""
        if self._rel_attn_bias is None:
            return None
        if all_timestamps is None and self._normalization != "softmax_rel_bias":
            return None
        return self._rel_attn_bias(all_timestamps)

    def forward(
        self,
        x: tp.Tensor,
        all_timestamps: tp.Tensor | None,
        valid_attn_mask: tp.Tensor,
        delta_x_offsets: tp.Tensor | None = None,
        cache: HSTUCacheState | None = None,
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, HSTUCacheState | None]:
        """
        Args:
            x: (B, N, D), padded rows zero.
            all_timestamps: (B, N) int64 seconds, or None.
            valid_attn_mask: (N, N), each element in {0, 1}, in x's dtype.
            delta_x_offsets: (B,) int, the position in [0, N) of each row's new token. Needs ``cache``.
            cache: this block's state of the previous forward over the same N; it is not modified.

        Returns:
            (B, N, D) and the new cache state, or None in its place. With delta_x_offsets, the rows at these
            positions are new; all others come from the cache.
        """
        if delta_x_offsets is None:
            u, v, q, k = self._project(x)
            attn_output = self._attn(q, k, v, self._attn_bias(all_timestamps), valid_attn_mask)
            outputs = self._transform(u, attn_output, x)
            return outputs, ((v, q, k, outputs) if return_cache_states else None)

        assert cache is not None, "delta_x_offsets needs the cache of the previous forward"
        cached_v, cached_q, cached_k, cached_outputs = cache
        rows_B1 = tp.unsqueeze(delta_x_offsets, 1)
        x_B1D = batch_gather_embeddings(rows_B1, x)
        u, v, q, k = self._project(x_B1D)
        all_v = batch_scatter_embeddings(cached_v, delta_x_offsets, tp.squeeze(v, 1))
        all_k = batch_scatter_embeddings(cached_k, delta_x_offsets, tp.squeeze(k, 1))
        attn_bias = self._attn_bias(all_timestamps)
        if attn_bias is not None:
            attn_bias = batch_gather_embeddings(rows_B1, tp.expand(attn_bias, (x.shape[0], -1, -1)))
        attn_output = self._attn(q, all_k, all_v, attn_bias, tp.gather(valid_attn_mask, 0, rows_B1))
        new_outputs = tp.squeeze(self._transform(u, attn_output, x_B1D), 1)
        outputs = batch_scatter_embeddings(cached_outputs, delta_x_offsets, new_outputs)
        if not return_cache_states:
            return outputs, None
        all_q = batch_scatter_embeddings(cached_q, delta_x_offsets, tp.squeeze(q, 1))
        return outputs, (all_v, all_q, all_k, outputs)


class HSTUDense(tp.Module):
    """The stack of blocks."""

    def __init__(self, modules: list[SequentialTransductionUnitDense]) -> None:
        super().__init__()
        self._attention_layers = list(modules)

    def forward(
        self,
        x: tp.Tensor,
        x_lengths: tp.Tensor,
        all_timestamps: tp.Tensor | None,
        valid_attn_mask: tp.Tensor,
        delta_x_offsets: tp.Tensor | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, list[HSTUCacheState]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths: (B,) int, valid rows of each batch element, a new token included.
            all_timestamps, valid_attn_mask, delta_x_offsets: see `SequentialTransductionUnitDense.forward`.
            cache: a state for each block.

        Returns:
            (B, N, D) with padded rows zero, and the new states (empty unless return_cache_states).
        """
        cache_states: list[HSTUCacheState] = []
        x = zero_padded_rows(x, x_lengths)
        for i, layer in enumerate(self._attention_layers):
            x, cache_state = layer(
                x=x,
                all_timestamps=all_timestamps,
                valid_attn_mask=valid_attn_mask,
                delta_x_offsets=delta_x_offsets,
                cache=cache[i] if cache is not None else None,
                return_cache_states=return_cache_states,
            )
            # The output projection's bias has filled the padded rows.
            x = zero_padded_rows(x, x_lengths)
            if cache_state is not None:
                cache_states.append(cache_state)
        return x, cache_states
