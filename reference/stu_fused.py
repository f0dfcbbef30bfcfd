"""The production STU on jagged rows, with fused kernels for a layer's attention, or for whole layers.

The function equals `reference.stu`; the layout of the computation differs. A layer's tensors hold the valid
rows of all sequences, one after the other, without padding. The kernel (`kernels.hstu_attention`) computes
mask, SiLU and both products of a head without an (N, N) tensor. `_valid_attn_mask` only owns the numbers that
the kernel reads.

`STULayerWhole` adds the kernels of `kernels.stu_layer` for norm, activation and gate. Both products of a
layer are PyTorch's.

Departures from the jagged stack of `reference.stu_jagged`: the caller names the valid rows of the padded
batch. A compiled graph, whose shapes cannot follow from values, has the same signature.

Legend: B batch, N sequence, L valid rows, D embedding, H heads, K attention dim, V hidden dim.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.hstu_attention import (
    ProductionMask,
    dot_precision_of_torch,
    hstu_attention,
    hstu_attention_cached,
)
from kernels.stu_layer import stu_gate, stu_norm
from reference.fused_attention import padded_rows, require_heads, row_offsets, valid_rows_of
from reference.hstu_transducer import HSTUTransducer
from reference.sequence_utils import zero_padded_rows
from reference.stu import STUCacheState, STUInputNorm, STULayer, with_new_rows
from reference.stu_attention import STUAttention, STUAttentionMask

NO_CACHE = "the production STU with fused attention has no k/v cache; use the dense model, `build_stu`"


class STUAttentionFused(STUAttention):
    """`STUAttention` on jagged rows, with the mask computed inside; constructor as there.

    On CUDA tensors the Triton kernel runs, on others the plain PyTorch form of the same operation.

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
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x_offsets: torch.Tensor,
        num_targets: torch.Tensor,
        padded: torch.Tensor,
        valid_attn_mask: STUAttentionMask,
        attn_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            q, k: (L, H * K). v: (L, H * V).
            x_offsets: (B + 1,) int, where each sequence begins, and L.
            num_targets: (B,) int, number of a sequence's last rows that are targets.
            padded: (N,) int, whose extent alone counts: N, the divisor of the weights.
            valid_attn_mask: owner of the window and of contextual_seq_len.
            attn_scale: (L,), factor of each row's weights in place of 1 / N.

        Returns:
            (L, H * V).
        """
        heads, n = self._num_heads, padded.size(0)
        mask = ProductionMask(
            self._alpha,
            float(n),
            attn_scale,
            num_targets,
            valid_attn_mask.max_attn_len,
            valid_attn_mask.contextual_seq_len,
        )
        attn_output_LHV = hstu_attention(
            q.reshape(-1, heads, self._attention_dim),
            k.reshape(-1, heads, self._attention_dim),
            v.reshape(-1, heads, self._hidden_dim),
            x_offsets,
            n,
            mask,
            backend="triton" if q.is_cuda else "eager",
            dot_precision=dot_precision_of_torch(q),
        )
        return attn_output_LHV.reshape(-1, heads * self._hidden_dim)

    def cached_forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x_offsets: torch.Tensor,
        cached_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        valid_attn_mask: STUAttentionMask,
    ) -> torch.Tensor:
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
        mask = ProductionMask(
            self._alpha,
            float(n),
            None,
            num_targets,
            valid_attn_mask.max_attn_len,
            valid_attn_mask.contextual_seq_len,
        )
        attn_output_LHV = hstu_attention_cached(
            q.reshape(-1, heads, self._attention_dim),
            k.reshape(b, n, heads, self._attention_dim),
            v.reshape(b, n, heads, self._hidden_dim),
            x_offsets,
            cached_lengths,
            n,
            q.size(0) // b,
            mask,
            backend="triton" if k.is_cuda else "eager",
            dot_precision=dot_precision_of_torch(q),
        )
        return attn_output_LHV.reshape(-1, heads * self._hidden_dim)


class STULayerFused(STULayer):
    """One layer on jagged rows; constructor as for the dense layer."""

    attention_class = STUAttentionFused

    def forward(
        self,
        x: torch.Tensor,
        x_offsets: torch.Tensor,
        num_targets: torch.Tensor,
        padded: torch.Tensor,
        valid_attn_mask: STUAttentionMask,
        attn_scale: torch.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, STUCacheState | None]:
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
        delta_x: torch.Tensor,
        x_offsets: torch.Tensor,
        cached_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        valid_attn_mask: STUAttentionMask,
        cache: STUCacheState,
    ) -> tuple[torch.Tensor, STUCacheState]:
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
            with_new_rows(old, cached_lengths, rows.reshape(b, m, -1))
            for old, rows in zip(cache, (k, v), strict=True)
        )
        attn_output = self._attn.cached_forward(
            q, k, v, x_offsets, cached_lengths, num_targets, valid_attn_mask
        )
        return self._transform(u, attn_output, delta_x), (k, v)


class STUInputNormFused(STUInputNorm):
    """`STUInputNorm` as one kernel; constructor as there. Without CUDA tensors, its plain PyTorch form."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """x (..., D), weight and bias (D,) -> (..., D)."""
        backend = "triton" if x.is_cuda else "eager"
        return stu_norm(x.flatten(0, -2), weight, bias, backend=backend).view(x.shape)


class STULayerWhole(STULayerFused):
    """`STULayerFused` with kernels for all of a layer but its two products; for inference alone.

    One kernel computes SiLU of u, the output's norm and the gate, and writes the output product's factor.
    """

    input_norm_class = STUInputNormFused

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(L, D) -> u before its activation and v (L, H * V), q and k (L, H * K)."""
        normed = self._input_norm(x, self._input_norm_weight, self._input_norm_bias)
        return torch.addmm(self._uvqk_beta, normed, self._uvqk_weight).split(self._split_sizes, dim=-1)

    def _transform(self, u: torch.Tensor, attn_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """u before its activation, attn_output (L, H * V) and the layer's input x (L, D) -> (L, D).

        Raises:
            RuntimeError: in training, for which the kernels have no dropout.
        """
        if self.training:
            raise RuntimeError(
                "training=True: whole layers have no dropout; call eval(), or build without them"
            )
        y = stu_gate(
            u,
            attn_output,
            self._output_norm_weight,
            self._output_norm_bias,
            self._output_norm.norm_groups,
            backend="triton" if u.is_cuda else "eager",
        )
        return torch.addmm(x, y, self._output_weight)


class STUStackFused(torch.nn.Module):
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
        self._stu_layers = torch.nn.ModuleList(stu_list)

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        valid_rows: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths, num_targets: (B,) int, see `STUAttentionMask.forward`.
            valid_rows: (L,) int, see `reference.fused_attention.valid_rows_of`.
            attn_scale: (B, N) or None, see `STUAttention.forward`.

        Returns:
            (B, N, D) with padded rows zero, and a cache state for each layer (none unless asked for):
            (L, H * K) and (L, H * V), the valid rows.
        """
        x_offsets = row_offsets(x_lengths)
        padded = x_lengths.new_zeros(x.size(1))
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
        delta_x: torch.Tensor,
        x_lengths: torch.Tensor,
        cached_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        cache: list[STUCacheState],
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """As `reference.stu.STUStack.cached_forward`, without attn_scale; at most N - M rows are cached."""
        b, m, d = delta_x.shape
        new_lengths = x_lengths - cached_lengths
        values = zero_padded_rows(delta_x, new_lengths).reshape(b * m, d)
        x_offsets = torch.arange(b + 1, device=x_lengths.device) * m
        # Rows behind a sequence's last one count as targets, which no other row sees.
        targets = num_targets - new_lengths + m
        cache_states = []
        for layer, state in zip(self._stu_layers, cache, strict=True):
            values, state = layer.cached_forward(
                values, x_offsets, cached_lengths, targets, self._valid_attn_mask, state
            )
            cache_states.append(state)
        return values.reshape(b, m, d), cache_states


class HSTUTransducerFused(HSTUTransducer):
    """`HSTUTransducer` with fused attention; same parameters, inputs and outputs, and the valid rows.

    Args:
        stu_module: an `STUStackFused`. The others: see `HSTUTransducer`.
    """

    def forward(
        self,
        seq_lengths: torch.Tensor,
        seq_ids: torch.Tensor,
        seq_timestamps: torch.Tensor,
        num_targets: torch.Tensor,
        valid_rows: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As in the dense model, with the valid rows, see `STUStackFused.forward`."""
        x = self._embed(seq_lengths, seq_ids, seq_timestamps, num_targets)
        x, _ = self._stu_module(x, seq_lengths, num_targets, valid_rows, attn_scale)
        targets = self._split_targets(x, seq_lengths, num_targets)
        return self._postprocess(targets, seq_lengths, seq_timestamps, num_targets)

    def prefill(self, *args: Any, **kwargs: Any) -> list[STUCacheState]:
        """Raises NotImplementedError: fused attention has no cache."""
        raise NotImplementedError(NO_CACHE)

    def extend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Raises NotImplementedError: fused attention has no cache."""
        raise NotImplementedError(NO_CACHE)
