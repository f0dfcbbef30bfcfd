"""The dense HSTU block and its parts; `reference.hstu_dense` holds the model and the departures.

Normalization, mask and attention are parameterless modules, so that each can be observed by its name.

Source: "Actions Speak Louder than Words" (ICML'24, arXiv 2402.17152), section 3; public code:
generative_recommenders/research/modeling/sequential/hstu.py.

Legend: B batch, N sequence, M query rows (N, or 1 in the incremental forward), W width of the full mask,
D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from reference.quantisers import NO_SCHEMES, QuantisedLinear, QuantisedProduct
from reference.relative_attention_bias import RelativeAttentionBiasModule
from reference.sequence_utils import batch_gather_embeddings, batch_scatter_embeddings, zero_padded_rows
from reference.validation import require, require_choice, require_positive, require_rate

if TYPE_CHECKING:
    from configs import Scheme

# "rel_bias" and "hstu_rel_bias" name the same function in the public code.
NORMALIZATIONS = ("rel_bias", "hstu_rel_bias", "softmax_rel_bias")
LINEAR_CONFIGS = ("uvqk",)
LINEAR_ACTIVATIONS = ("silu", "none")

# (v, padded_q, padded_k, outputs) of one block, each (B, N, *).
HSTUCacheState = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class NonAffineLayerNorm(torch.nn.Module):
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., normalized_dim) -> same shape."""
        return F.layer_norm(x, normalized_shape=[self._normalized_dim], eps=self._eps)


class AttentionMask(torch.nn.Module):
    """Turns the model's boolean mask of forbidden pairs into the 0/1 factor of the attention weights."""

    def forward(self, attn_mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """
        Args:
            attn_mask: (W, W) bool, True where row i must not see column j.
            like: (B, N, D), gives N <= W and the dtype.

        Returns:
            (N, N) in like's dtype, 1 where row i sees column j.
        """
        n = like.size(1)
        return 1.0 - attn_mask[:n, :n].to(like.dtype)


class HSTUAttentionDense(torch.nn.Module):
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
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_bias: torch.Tensor | None,
        valid_attn_mask: torch.Tensor,
    ) -> torch.Tensor:
        """
        Args:
            q: (B, M, H * K). k: (B, N, H * K). v: (B, N, H * V).
            attn_bias: (1 or B, M, N) or None.
            valid_attn_mask: (M, N) or (B, M, N), each element in {0, 1}, in q's dtype.

        Returns:
            (B, M, H * V).
        """
        if self._normalization == "softmax_rel_bias":
            logits_BMN = q @ k.transpose(1, 2)
            if attn_bias is not None:
                logits_BMN = logits_BMN + attn_bias
            weights_BMN = F.softmax(logits_BMN / math.sqrt(self._attention_dim), dim=-1)
            return (weights_BMN * valid_attn_mask) @ v

        b, m, _ = q.size()
        n = k.size(1)
        q_BHMK = q.reshape(b, m, self._num_heads, self._attention_dim).transpose(1, 2)
        k_BHNK = k.reshape(b, n, self._num_heads, self._attention_dim).transpose(1, 2)
        v_BHNV = v.reshape(b, n, self._num_heads, self._linear_dim).transpose(1, 2)
        logits_BHMN = q_BHMK @ k_BHNK.transpose(2, 3)
        if attn_bias is not None:
            logits_BHMN = logits_BHMN + attn_bias.unsqueeze(1)
        weights_BHMN = F.silu(logits_BHMN) / self._divisor
        weights_BHMN = weights_BHMN * valid_attn_mask.unsqueeze(-3)
        attn_output_BHMV = weights_BHMN @ v_BHNV
        return attn_output_BHMV.transpose(1, 2).reshape(b, m, self._num_heads * self._linear_dim)


class SequentialTransductionUnitDense(torch.nn.Module):
    """One HSTU block: projection to u, v, q, k; spatial aggregation; gated pointwise transformation.

    Args:
        embedding_dim, linear_hidden_dim, attention_dim, num_heads: D, V, K, H.
        dropout_ratio: on the output projection's input, in training.
        attn_dropout_ratio: recorded, not applied: the public code has no attention dropout either.
        linear_activation: on u, v, q, k; one of `LINEAR_ACTIVATIONS`.
        divisor: W, see `HSTUAttentionDense`.
        relative_attention_bias_module: None only with softmax_rel_bias.
        concat_ua: project [u, norm(a), u * norm(a)] in place of u * norm(a).
        schemes: of the quantised ones of ``_uvqk`` and ``_o``, see `reference.quantisers`.
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
        self._uvqk = torch.nn.Parameter(torch.empty(embedding_dim, uvqk_dim).normal_(mean=0, std=0.02))
        self._uvqk_product = (
            QuantisedProduct(schemes["_uvqk"], embedding_dim, uvqk_dim) if "_uvqk" in schemes else None
        )
        o_dim = num_heads * linear_hidden_dim * (3 if concat_ua else 1)
        self._o = (
            QuantisedLinear(o_dim, embedding_dim, schemes["_o"])
            if "_o" in schemes
            else torch.nn.Linear(o_dim, embedding_dim)
        )
        torch.nn.init.xavier_uniform_(self._o.weight)

    def _times_uvqk(self, normed: torch.Tensor) -> torch.Tensor:
        if self._uvqk_product is None:
            return normed @ self._uvqk
        return self._uvqk_product(normed, self._uvqk)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(..., D) -> u, v (..., H * V) and q, k (..., H * K)."""
        projected = self._times_uvqk(self._norm_input(x))
        if self._linear_activation == "silu":
            projected = F.silu(projected)
        hv, hk = self._num_heads * self._linear_dim, self._num_heads * self._attention_dim
        return torch.split(projected, [hv, hv, hk, hk], dim=-1)

    def _transform(self, u: torch.Tensor, attn_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """u, attn_output (..., H * V) and the block's input x (..., D) -> (..., D)."""
        a = self._norm_attn_output(attn_output)
        o_input = torch.cat([u, a, u * a], dim=-1) if self._concat_ua else u * a
        return self._o(F.dropout(o_input, p=self._dropout_ratio, training=self.training)) + x

    def _attn_bias(self, all_timestamps: torch.Tensor | None) -> torch.Tensor | None:
        """(1 or B, N, N) or None. Without timestamps the public code drops the bias; a softmax keeps it."""
        if self._rel_attn_bias is None:
            return None
        if all_timestamps is None and self._normalization != "softmax_rel_bias":
            return None
        return self._rel_attn_bias(all_timestamps)

    def forward(
        self,
        x: torch.Tensor,
        all_timestamps: torch.Tensor | None,
        valid_attn_mask: torch.Tensor,
        delta_x_offsets: torch.Tensor | None = None,
        cache: HSTUCacheState | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, HSTUCacheState | None]:
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
        rows_B1 = delta_x_offsets.unsqueeze(1)
        x_B1D = batch_gather_embeddings(rows_B1, x)
        u, v, q, k = self._project(x_B1D)
        all_v = batch_scatter_embeddings(cached_v, delta_x_offsets, v.squeeze(1))
        all_k = batch_scatter_embeddings(cached_k, delta_x_offsets, k.squeeze(1))
        attn_bias = self._attn_bias(all_timestamps)
        if attn_bias is not None:
            attn_bias = batch_gather_embeddings(rows_B1, attn_bias.expand(x.size(0), -1, -1))
        attn_output = self._attn(q, all_k, all_v, attn_bias, valid_attn_mask[rows_B1])
        new_outputs = self._transform(u, attn_output, x_B1D).squeeze(1)
        outputs = batch_scatter_embeddings(cached_outputs, delta_x_offsets, new_outputs)
        if not return_cache_states:
            return outputs, None
        all_q = batch_scatter_embeddings(cached_q, delta_x_offsets, q.squeeze(1))
        return outputs, (all_v, all_q, all_k, outputs)


class HSTUDense(torch.nn.Module):
    """The stack of blocks."""

    def __init__(self, modules: list[SequentialTransductionUnitDense]) -> None:
        super().__init__()
        self._attention_layers = torch.nn.ModuleList(modules)

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        all_timestamps: torch.Tensor | None,
        valid_attn_mask: torch.Tensor,
        delta_x_offsets: torch.Tensor | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, list[HSTUCacheState]]:
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
