"""The production STU stack with dense (B, N, D) tensors: masks in place of ragged rows.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/stu.py, and the PyTorch form of
its operators in ops/pytorch/ and ops/hstu_compute.py; "Actions Speak Louder than Words" (ICML'24, arXiv
2402.17152), sections 3 and 3.4. Departures from the public code:

* Dense only; `reference.stu_jagged` is the jagged layout. A row holds, from the left, contextual rows,
  history, targets and padding. The call's max_seq_len is the width N, which divides the attention weights:
  another width gives other results, as in the public code.
* Normalization, mask and attention are parameterless submodules, so that each can be observed by its name.
  The parameters stay on the layer, under the public names. The mask is made once for the stack, not in each
  layer.
* The cache is replaced, never written in place, and keeps the width N. N also divides the weights of an
  incremental step; the public step divides by the longest cached row plus the new rows.
* Causal and target-aware only, as the ranking model is.
* Operations that are float32 in the public code for every dtype are at least float32 here: the float64 model
  is float64 throughout.

Legend: B batch, N sequence, M query rows (N, or the new ones in an incremental step), D embedding, H heads,
K attention dim, V hidden dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from reference.quantisers import NO_SCHEMES, QuantisedProduct
from reference.sequence_utils import batch_gather_embeddings, zero_padded_rows
from reference.stu_attention import STUAttention, STUAttentionMask
from reference.validation import require_positive, require_rate

if TYPE_CHECKING:
    from configs import Scheme

NORM_EPS = 1e-6

# (k, v) of one layer: (B, N, H * K) and (B, N, H * V).
STUCacheState = tuple[torch.Tensor, torch.Tensor]


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or as it is if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class STUInputNorm(torch.nn.Module):
    """Layer norm over the last axis, computed in float32 and rounded to the input's type.

    Args:
        embedding_dim: D.
    """

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        require_positive(embedding_dim=embedding_dim)
        self._embedding_dim = embedding_dim

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """x (..., D), weight and bias (D,) -> (..., D)."""
        wide = at_least_float32(x)
        weight, bias = weight.to(wide.dtype), bias.to(wide.dtype)
        normed = F.layer_norm(wide, (self._embedding_dim,), weight, bias, NORM_EPS)
        return normed.to(x.dtype)


class STUOutputNorm(torch.nn.Module):
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

    def forward(self, attn_output: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """
        Args:
            attn_output: (..., H * V).
            weight, bias: (H * V,), or (H,) with group norm.

        Returns:
            (..., H * V) in float32, or wider if attn_output is: the gating goes on from there.
        """
        wide = at_least_float32(attn_output)
        weight, bias = weight.to(wide.dtype), bias.to(wide.dtype)
        if not self._use_group_norm:
            return F.layer_norm(wide, wide.shape[-1:], weight, bias, NORM_EPS)
        by_head = wide.unflatten(-1, (self._num_heads, self._hidden_dim))
        normed = F.layer_norm(by_head, by_head.shape[-1:], eps=NORM_EPS)
        return (normed * weight.unsqueeze(1) + bias.unsqueeze(1)).flatten(-2)


class STULayer(torch.nn.Module):
    """Projection to u, v, q, k; attention; u gates the normed result; projection onto the residual.

    Args:
        embedding_dim, num_heads, hidden_dim, attention_dim: D, H, V, K.
        output_dropout_ratio: on the output projection's input, in training.
        attn_alpha: see `STUAttention`.
        use_group_norm: see `STUOutputNorm`.
        schemes: of the quantised ones of ``_uvqk_weight`` and ``_output_weight``, see `reference.quantisers`.
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
        self._uvqk_weight = torch.nn.Parameter(torch.empty(embedding_dim, uvqk_dim))
        self._uvqk_beta = torch.nn.Parameter(torch.zeros(uvqk_dim))
        self._input_norm_weight = torch.nn.Parameter(torch.ones(embedding_dim))
        self._input_norm_bias = torch.nn.Parameter(torch.zeros(embedding_dim))
        self._output_weight = torch.nn.Parameter(torch.empty(3 * num_heads * hidden_dim, embedding_dim))
        normed_dim = num_heads if use_group_norm else num_heads * hidden_dim
        self._output_norm_weight = torch.nn.Parameter(torch.ones(normed_dim))
        self._output_norm_bias = torch.nn.Parameter(torch.zeros(normed_dim))
        self._uvqk_product = (
            QuantisedProduct(schemes["_uvqk_weight"], embedding_dim, uvqk_dim)
            if "_uvqk_weight" in schemes
            else None
        )
        self._output_product = (
            QuantisedProduct(schemes["_output_weight"], 3 * num_heads * hidden_dim, embedding_dim)
            if "_output_weight" in schemes
            else None
        )
        torch.nn.init.xavier_uniform_(self._uvqk_weight)
        torch.nn.init.xavier_uniform_(self._output_weight)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(..., D) -> u, v (..., H * V) and q, k (..., H * K)."""
        normed = self._input_norm(x, self._input_norm_weight, self._input_norm_bias)
        if self._uvqk_product is None:
            projected = torch.addmm(self._uvqk_beta, normed.flatten(0, -2), self._uvqk_weight)
            projected = projected.unflatten(0, x.shape[:-1])
        else:
            projected = self._uvqk_product(normed, self._uvqk_weight) + self._uvqk_beta
        u, v, q, k = projected.split(self._split_sizes, dim=-1)
        return F.silu(u), v, q, k

    def _transform(self, u: torch.Tensor, attn_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """u, attn_output (..., H * V) and the layer's input x (..., D) -> (..., D)."""
        normed = self._output_norm(attn_output, self._output_norm_weight, self._output_norm_bias)
        u, a = u.to(normed.dtype), attn_output.to(normed.dtype)
        y = torch.cat([u, a, u * normed], dim=-1)
        y = F.dropout(y, p=self._output_dropout_ratio, training=self.training).to(x.dtype)
        if self._output_product is not None:
            return self._output_product(y, self._output_weight) + x
        return torch.addmm(x.flatten(0, -2), y.flatten(0, -2), self._output_weight).view_as(x)

    def forward(
        self,
        x: torch.Tensor,
        valid_attn_mask: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, STUCacheState | None]:
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
        delta_x: torch.Tensor,
        cached_lengths: torch.Tensor,
        valid_attn_mask: torch.Tensor,
        cache: STUCacheState,
        attn_scale: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, STUCacheState]:
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


def with_new_rows(cached: torch.Tensor, first_row: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """(B, N, *) with the rows from first_row[b] on replaced by new (B, M, *)."""
    row = torch.arange(cached.size(1), device=cached.device) - first_row.unsqueeze(1)
    is_new_BN1 = ((row >= 0) & (row < new.size(1))).unsqueeze(2)
    return torch.where(is_new_BN1, batch_gather_embeddings(row.clamp(0, new.size(1) - 1), new), cached)


class STUStack(torch.nn.Module):
    """The layers, one after the other.

    Args:
        stu_list: the layers.
        contextual_seq_len, max_attn_len: see `STUAttentionMask`.
    """

    def __init__(self, stu_list: list[STULayer], contextual_seq_len: int = 0, max_attn_len: int = 0) -> None:
        super().__init__()
        self._valid_attn_mask = STUAttentionMask(contextual_seq_len, max_attn_len)
        self._stu_layers = torch.nn.ModuleList(stu_list)

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
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
        delta_x: torch.Tensor,
        x_lengths: torch.Tensor,
        cached_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        cache: list[STUCacheState],
        attn_scale: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
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
        n, m = cache[0][0].size(1), delta_x.size(1)
        # The mask of the whole sequence takes its width and type from the cache, its rows from the new ones.
        valid_attn_mask = self._valid_attn_mask(x_lengths, num_targets, cache[0][0])
        new_row = torch.arange(m, device=delta_x.device)
        row_BM = (cached_lengths.unsqueeze(1) + new_row).clamp(max=n - 1)
        valid_attn_mask = batch_gather_embeddings(row_BM, valid_attn_mask)
        if attn_scale is not None:
            attn_scale = attn_scale.gather(1, row_BM)
        delta_x = zero_padded_rows(delta_x, x_lengths - cached_lengths)
        cache_states = []
        for layer, state in zip(self._stu_layers, cache, strict=True):
            delta_x, state = layer.cached_forward(delta_x, cached_lengths, valid_attn_mask, state, attn_scale)
            cache_states.append(state)
        return delta_x, cache_states
