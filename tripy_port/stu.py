"""The production STU stack in Tripy. Counterpart of reference/stu.py, from which it departs in this:

* Inference only: no dropout, no initial values. Every parameter comes from a state dict, with the keys of the
  reference; a call before that raises.
* Strongly typed in one dtype, given at construction, with PyTorch's roundings (`tripy_port.numerics`).

Legend: B batch, N sequence, M query rows (N, or the new ones in an incremental step), D embedding, H heads,
K attention dim, V hidden dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import nvtripy as tp

from tripy_port.numerics import both, layer_norm, silu
from tripy_port.parameters import parameter
from tripy_port.quantisers import NO_SCHEMES, QuantisedProduct
from tripy_port.sequence_utils import batch_gather_embeddings, zero_padded_rows
from tripy_port.stu_attention import STUAttention, STUAttentionMask
from tripy_port.validation import require_positive, require_rate

if TYPE_CHECKING:
    from configs import Scheme

NORM_EPS = 1e-6

# (k, v) of one layer: (B, N, H * K) and (B, N, H * V).
STUCacheState = tuple[tp.Tensor, tp.Tensor]


def at_least_float32(x: tp.Tensor) -> tp.Tensor:
    """``x`` in float32, which is the widest floating-point type that Tripy computes in."""
    return tp.cast(x, tp.float32)


def _affine_layer_norm(x: tp.Tensor, width: int, weight: tp.Tensor, bias: tp.Tensor) -> tp.Tensor:
    """Layer norm of a float32 tensor over the last axis, with a weight and a bias of its width."""
    norm = tp.LayerNorm(width, dtype=tp.float32, eps=NORM_EPS)
    norm.weight, norm.bias = tp.cast(weight, tp.float32), tp.cast(bias, tp.float32)
    return norm(x)


class STUInputNorm(tp.Module):
    """Layer norm over the last axis, computed in float32 and rounded to the input's type.

    Args:
        embedding_dim: D.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        self._embedding_dim = embedding_dim

    def forward(self, x: tp.Tensor, weight: tp.Tensor, bias: tp.Tensor) -> tp.Tensor:
        """x (..., D), weight and bias (D,) -> (..., D)."""
        return tp.cast(_affine_layer_norm(at_least_float32(x), self._embedding_dim, weight, bias), x.dtype)


class STUOutputNorm(tp.Module):
    """Norm of the attention's output: over all heads together, or a head at a time with a weight for each.

    Args:
        num_heads, hidden_dim: H, V.
        use_group_norm: a head at a time.
    """

    def __init__(self, num_heads: int, hidden_dim: int, use_group_norm: bool) -> None:
        super().__init__()
        require_positive(num_heads=num_heads, hidden_dim=hidden_dim)
        self._num_heads = num_heads
        self._hidden_dim = hidden_dim
        self._use_group_norm = use_group_norm

    @property
    def norm_groups(self) -> int:
        """Heads with a norm of their own; 0 for one norm of all heads."""
        return self._num_heads if self._use_group_norm else 0

    def forward(self, attn_output: tp.Tensor, weight: tp.Tensor, bias: tp.Tensor) -> tp.Tensor:
        """
        Args:
            attn_output: (..., H * V).
            weight, bias: (H * V,), or (H,) with group norm.

        Returns:
            (..., H * V) in float32: the gating goes on from there.
        """
        wide = at_least_float32(attn_output)
        if not self._use_group_norm:
            return _affine_layer_norm(wide, self._num_heads * self._hidden_dim, weight, bias)
        rows = wide.shape[:-1]
        by_head = tp.reshape(wide, (*rows, self._num_heads, self._hidden_dim))
        normed = layer_norm(by_head, self._hidden_dim, NORM_EPS)
        weight_H1, bias_H1 = (tp.unsqueeze(tp.cast(value, tp.float32), 1) for value in (weight, bias))
        return tp.reshape(normed * weight_H1 + bias_H1, (*rows, self._num_heads * self._hidden_dim))


class STULayer(tp.Module):
    """Projection to u, v, q, k; attention; u gates the normed result; projection onto the residual.

    Args:
        embedding_dim, num_heads, hidden_dim, attention_dim: D, H, V, K.
        output_dropout_ratio: recorded, not applied: Tripy does not train.
        attn_alpha: see `STUAttention`.
        use_group_norm: see `STUOutputNorm`.
        schemes: of the quantised ones of ``_uvqk_weight`` and ``_output_weight``, see `reference.quantisers`.
        dtype: of the weights and of the computation.
    """

    attention_class: type[STUAttention] = STUAttention
    input_norm_class: type[STUInputNorm] = STUInputNorm

    def __init__(
        self,
        embedding_dim: int,
        num_heads: int,
        hidden_dim: int,
        attention_dim: int,
        output_dropout_ratio: float = 0.3,
        attn_alpha: float | None = None,
        use_group_norm: bool = False,
        schemes: Mapping[str, Scheme] = NO_SCHEMES,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_rate(output_dropout_ratio=output_dropout_ratio)
        self._split_sizes = [num_heads * width for width in (hidden_dim, hidden_dim)]
        self._split_sizes += [num_heads * width for width in (attention_dim, attention_dim)]
        self._output_dropout_ratio = output_dropout_ratio
        self._input_norm = self.input_norm_class(embedding_dim)
        self._attn = self.attention_class(num_heads, attention_dim, hidden_dim, attn_alpha)
        self._output_norm = STUOutputNorm(num_heads, hidden_dim, use_group_norm)
        uvqk_dim = sum(self._split_sizes)
        self._uvqk_weight = parameter((embedding_dim, uvqk_dim), dtype)
        self._uvqk_beta = parameter((uvqk_dim,), dtype)
        self._input_norm_weight = parameter((embedding_dim,), dtype)
        self._input_norm_bias = parameter((embedding_dim,), dtype)
        self._output_weight = parameter((3 * num_heads * hidden_dim, embedding_dim), dtype)
        normed_dim = num_heads if use_group_norm else num_heads * hidden_dim
        self._output_norm_weight = parameter((normed_dim,), dtype)
        self._output_norm_bias = parameter((normed_dim,), dtype)
        self._uvqk_product = (
            QuantisedProduct(schemes["_uvqk_weight"], embedding_dim, uvqk_dim, dtype)
            if "_uvqk_weight" in schemes
            else None
        )
        self._output_product = (
            QuantisedProduct(schemes["_output_weight"], 3 * num_heads * hidden_dim, embedding_dim, dtype)
            if "_output_weight" in schemes
            else None
        )

    def _project(self, x: tp.Tensor) -> tuple[tp.Tensor, ...]:
        """(..., D) -> u, v (..., H * V) and q, k (..., H * K)."""
        normed = self._input_norm(x, self._input_norm_weight, self._input_norm_bias)
        if self._uvqk_product is None:
            projected = normed @ self._uvqk_weight + self._uvqk_beta
        else:
            projected = self._uvqk_product(normed, self._uvqk_weight) + self._uvqk_beta
        u, v, q, k = tp.split(projected, self._split_sizes, dim=-1)
        return silu(u), v, q, k

    def _transform(self, u: tp.Tensor, attn_output: tp.Tensor, x: tp.Tensor) -> tp.Tensor:
        """u, attn_output (..., H * V) and the layer's input x (..., D) -> (..., D)."""
        normed = self._output_norm(attn_output, self._output_norm_weight, self._output_norm_bias)
        gated = tp.cast(tp.cast(u, normed.dtype) * normed, x.dtype)
        if self._output_product is not None:
            y = tp.concatenate([u, attn_output, gated], -1)
            return self._output_product(y, self._output_weight) + x
        return tp.concatenate([u, attn_output, gated], dim=-1) @ self._output_weight + x

    def forward(
        self,
        x: tp.Tensor,
        valid_attn_mask: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, STUCacheState | None]:
        """
        Args:
            x: (B, N, D).
            valid_attn_mask, attn_scale: see `STUAttention.forward`, M = N.

        Returns:
            (B, N, D) and the cache state, or None in its place.
        """
        u, v, q, k = self._project(x)
        attn_output = self._attn(q, k, v, valid_attn_mask, attn_scale)
        return self._transform(u, attn_output, x), ((k, v) if return_cache_states else None)

    def cached_forward(
        self,
        delta_x: tp.Tensor,
        cached_lengths: tp.Tensor,
        valid_attn_mask: tp.Tensor,
        cache: STUCacheState,
        attn_scale: tp.Tensor | None = None,
    ) -> tuple[tp.Tensor, STUCacheState]:
        """New rows behind the cached ones.

        Args:
            delta_x: (B, M, D).
            cached_lengths: (B,) int, the position of each sequence's first new row.
            valid_attn_mask: (B, M, N), of the new rows. attn_scale: (B, M) or None.
            cache: of the rows in front; it is not modified.

        Returns:
            (B, M, D), and the cache with the new rows.
        """
        u, v, q, k = self._project(delta_x)
        k, v = (with_new_rows(old, cached_lengths, new) for old, new in zip(cache, (k, v), strict=True))
        attn_output = self._attn(q, k, v, valid_attn_mask, attn_scale)
        return self._transform(u, attn_output, delta_x), (k, v)


def with_new_rows(cached: tp.Tensor, first_row: tp.Tensor, new: tp.Tensor) -> tp.Tensor:
    """(B, N, *) with the rows from first_row[b] on replaced by new (B, M, *)."""
    position_1N = tp.iota((1, cached.shape[1]), dim=1, dtype=tp.int32)
    row_BN = position_1N - tp.unsqueeze(tp.cast(first_row, tp.int32), 1)
    m = new.shape[1]
    is_new_BN1 = tp.unsqueeze(both(row_BN >= 0, row_BN < m), 2)
    return tp.where(
        is_new_BN1, batch_gather_embeddings(tp.minimum(tp.maximum(row_BN, 0), m - 1), new), cached
    )


class STUStack(tp.Module):
    """The layers, one after the other.

    Args:
        stu_list: the layers.
        contextual_seq_len, max_attn_len: see `STUAttentionMask`.
    """

    def __init__(self, stu_list: list[STULayer], contextual_seq_len: int = 0, max_attn_len: int = 0) -> None:
        super().__init__()
        self._valid_attn_mask = STUAttentionMask(contextual_seq_len, max_attn_len)
        self._stu_layers = list(stu_list)

    def forward(
        self,
        x: tp.Tensor,
        x_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[tp.Tensor, list[STUCacheState]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths, num_targets: (B,) int, see `STUAttentionMask.forward`.
            attn_scale: (B, N) or None, see `STUAttention.forward`.

        Returns:
            (B, N, D) with padded rows zero, and a cache state for each layer (none unless asked for).
        """
        valid_attn_mask = self._valid_attn_mask(x_lengths, num_targets, x)
        x = zero_padded_rows(x, x_lengths)
        cache_states: list[STUCacheState] = []
        for layer in self._stu_layers:
            x, cache_state = layer(x, valid_attn_mask, attn_scale, return_cache_states)
            if cache_state is not None:
                cache_states.append(cache_state)
        return zero_padded_rows(x, x_lengths), cache_states

    def cached_forward(
        self,
        delta_x: tp.Tensor,
        x_lengths: tp.Tensor,
        cached_lengths: tp.Tensor,
        num_targets: tp.Tensor,
        cache: list[STUCacheState],
        attn_scale: tp.Tensor | None = None,
    ) -> tuple[tp.Tensor, list[STUCacheState]]:
        """The results of `forward` for new rows behind the cached ones.

        New targets may follow any history. New history may follow only without contextual rows: their results
        would change.

        Args:
            delta_x: (B, M, D), the new rows of each sequence, anything behind the last.
            x_lengths: (B,) int, rows of each sequence with the new ones; at most N.
            cached_lengths: (B,) int, rows that the cache holds. At most M less than x_lengths.
            num_targets: (B,) int, of all rows with the new ones.
            cache: a state for each layer; it is not modified.
            attn_scale: (B, N) or None.

        Returns:
            (B, M, D), anything behind a sequence's last row, and the cache with the new rows.
        """
        n, m = cache[0][0].shape[1], delta_x.shape[1]
        # The mask of the whole sequence takes its width and type from the cache, its rows from the new ones.
        valid_attn_mask = self._valid_attn_mask(x_lengths, num_targets, cache[0][0])
        new_row_1M = tp.iota((1, m), dim=1, dtype=tp.int32)
        row_BM = tp.minimum(tp.unsqueeze(tp.cast(cached_lengths, tp.int32), 1) + new_row_1M, n - 1)
        valid_attn_mask = batch_gather_embeddings(row_BM, valid_attn_mask)
        if attn_scale is not None:
            attn_scale = tp.squeeze(batch_gather_embeddings(row_BM, tp.unsqueeze(attn_scale, 2)), 2)
        delta_x = zero_padded_rows(delta_x, x_lengths - cached_lengths)
        cache_states = []
        for layer, state in zip(self._stu_layers, cache, strict=True):
            delta_x, state = layer.cached_forward(delta_x, cached_lengths, valid_attn_mask, state, attn_scale)
            cache_states.append(state)
        return delta_x, cache_states
