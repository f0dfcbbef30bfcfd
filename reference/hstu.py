"""Research HSTU with jagged (L, D) tensors, the layout of the public code.

Source: "Actions Speak Louder than Words" (ICML'24, arXiv 2402.17152), sections 3 and 4.1.1; public code:
generative_recommenders/research/modeling/sequential/hstu.py. Only the layout differs from the dense model,
so parameters, projection and output are inherited from it. Departures from the public code: as in
`reference.hstu_dense`, with two exceptions. Attention runs at the full width W, and an incremental step
computes all its rows, as in the public code.

Legend: B batch, N sequence, L total jagged length, W width of the mask, D embedding, H heads,
K attention dim, V linear dim.
"""

from __future__ import annotations

from typing import Any

import torch

from reference.hstu_dense import HSTUDenseModel
from reference.jagged_ops import complete_cumsum, dense_to_jagged, jagged_to_padded_dense, resolve_backend
from reference.sequence_utils import batch_scatter_embeddings
from reference.transduction_dense import (
    HSTUAttentionDense,
    HSTUCacheState,
    SequentialTransductionUnitDense,
)

# (B,) int each: the new tokens' indices in the jagged values, and their positions in [0, N).
JaggedDeltaOffsets = tuple[torch.Tensor, torch.Tensor]


class HSTUAttentionJagged(HSTUAttentionDense):
    """`HSTUAttentionDense` between padding and unpadding."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_bias: torch.Tensor | None,
        valid_attn_mask: torch.Tensor,
        x_offsets: torch.Tensor,
        delta_x_offsets: JaggedDeltaOffsets | None = None,
        cached_q: torch.Tensor | None = None,
        cached_k: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """
        Args:
            q, k: (L, H * K), or (B, H * K) with delta_x_offsets. v: (L, H * V).
            attn_bias: (1 or B, W, W) or None.
            valid_attn_mask: (W, W), each element in {0, 1}, in q's dtype.
            x_offsets: (B + 1,) int.
            cached_q, cached_k: (B, W, H * K), with delta_x_offsets; not modified.

        Returns:
            the output (L, H * V), and the padded q and k (B, W, H * K).
        """
        width = valid_attn_mask.size(-1)
        if delta_x_offsets is None:
            padded_q = jagged_to_padded_dense(q, x_offsets, width, 0.0, backend)
            padded_k = jagged_to_padded_dense(k, x_offsets, width, 0.0, backend)
        else:
            assert cached_q is not None, "delta_x_offsets needs cached_q"
            assert cached_k is not None, "delta_x_offsets needs cached_k"
            padded_q = batch_scatter_embeddings(cached_q, delta_x_offsets[1], q)
            padded_k = batch_scatter_embeddings(cached_k, delta_x_offsets[1], k)
        padded_v = jagged_to_padded_dense(v, x_offsets, width, 0.0, backend)
        attn_output = super().forward(padded_q, padded_k, padded_v, attn_bias, valid_attn_mask)
        return dense_to_jagged(attn_output, x_offsets, backend), padded_q, padded_k


class SequentialTransductionUnitJagged(SequentialTransductionUnitDense):
    """One HSTU block on jagged values; constructor as for the dense block."""

    attention_class = HSTUAttentionJagged

    def forward(
        self,
        x: torch.Tensor,
        x_offsets: torch.Tensor,
        all_timestamps: torch.Tensor | None,
        valid_attn_mask: torch.Tensor,
        delta_x_offsets: JaggedDeltaOffsets | None = None,
        cache: HSTUCacheState | None = None,
        return_cache_states: bool = False,
        backend: str = "auto",
    ) -> tuple[torch.Tensor, HSTUCacheState | None]:
        """
        Args:
            x: (L, D), new tokens included.
            x_offsets: (B + 1,) int.
            all_timestamps: (B, W) int64 seconds, or None.
            valid_attn_mask: (W, W), each element in {0, 1}, in x's dtype.
            delta_x_offsets: the new tokens. Needs ``cache``.
            cache: v (L, H * V), padded q and k (B, W, H * K), outputs (L, D). L counts the new tokens, whose
                rows hold anything. The cache is not modified.
            backend: of the jagged operators, see `reference.jagged_ops`.

        Returns:
            (L, D) and the new cache state, or None in its place.
        """
        if delta_x_offsets is None:
            u, v, q, k = self._project(x)
            attn_output, padded_q, padded_k = self._attn(
                q, k, v, self._attn_bias(all_timestamps), valid_attn_mask, x_offsets, backend=backend
            )
            outputs = self._transform(u, attn_output, x)
        else:
            assert cache is not None, "delta_x_offsets needs the cache of the previous forward"
            cached_v, cached_q, cached_k, cached_outputs = cache
            new_index = delta_x_offsets[0]
            new_x = x[new_index]
            u, v, q, k = self._project(new_x)
            v = cached_v.index_copy(0, new_index, v)
            attn_output, padded_q, padded_k = self._attn(
                q,
                k,
                v,
                self._attn_bias(all_timestamps),
                valid_attn_mask,
                x_offsets,
                delta_x_offsets,
                cached_q,
                cached_k,
                backend,
            )
            new_outputs = self._transform(u, attn_output[new_index], new_x)
            outputs = cached_outputs.index_copy(0, new_index, new_outputs)
        return outputs, ((v.contiguous(), padded_q, padded_k, outputs) if return_cache_states else None)


class HSTUJagged(torch.nn.Module):
    """The stack of blocks."""

    def __init__(self, modules: list[SequentialTransductionUnitJagged]) -> None:
        super().__init__()
        self._attention_layers = torch.nn.ModuleList(modules)

    def forward(
        self,
        x: torch.Tensor,
        x_offsets: torch.Tensor,
        all_timestamps: torch.Tensor | None,
        valid_attn_mask: torch.Tensor,
        delta_x_offsets: JaggedDeltaOffsets | None = None,
        cache: list[HSTUCacheState] | None = None,
        return_cache_states: bool = False,
        backend: str = "auto",
    ) -> tuple[torch.Tensor, list[HSTUCacheState]]:
        """
        Args:
            x: (B, N, D) dense or (L, D) jagged.
            others: see `SequentialTransductionUnitJagged.forward`; a cache state for each block.

        Returns:
            (B, W, D) with padded rows zero, and the new states (empty unless return_cache_states).
        """
        if x.dim() == 3:
            x = dense_to_jagged(x, x_offsets, backend)
        cache_states: list[HSTUCacheState] = []
        for i, layer in enumerate(self._attention_layers):
            x, cache_state = layer(
                x=x,
                x_offsets=x_offsets,
                all_timestamps=all_timestamps,
                valid_attn_mask=valid_attn_mask,
                delta_x_offsets=delta_x_offsets,
                cache=cache[i] if cache is not None else None,
                return_cache_states=return_cache_states,
                backend=backend,
            )
            if cache_state is not None:
                cache_states.append(cache_state)
        return jagged_to_padded_dense(x, x_offsets, valid_attn_mask.size(1), 0.0, backend), cache_states


class HSTU(HSTUDenseModel):
    """`HSTUDenseModel` in the jagged layout; same parameters, methods, inputs and outputs.

    Differences: ``delta_x_offsets`` is the pair of `JaggedDeltaOffsets`. A block's cache state holds v and
    outputs jagged: the caller makes room in them for new tokens, as in the public code.

    Args:
        jagged_backend: "auto", "fbgemm" or "plain", see `reference.jagged_ops`.
        arguments: see `HSTUDenseModel`.

    Raises:
        ValueError: also for a backend that is unknown or cannot run here.
    """

    unit_class = SequentialTransductionUnitJagged
    encoder_class = HSTUJagged

    def __init__(self, *, jagged_backend: str = "auto", **arguments: Any) -> None:
        super().__init__(**arguments)
        resolve_backend(jagged_backend, torch.float32)
        self._jagged_backend = jagged_backend

    def active_jagged_backend(self) -> str:
        """The backend that runs for the dtype the model has now: "fbgemm" or "plain"."""
        return resolve_backend(self._jagged_backend, next(self._hstu.parameters()).dtype)

    def _needs_full_width(self) -> bool:
        return True

    def _run_blocks(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        all_timestamps: torch.Tensor | None,
        delta_x_offsets: JaggedDeltaOffsets | None,
        cache: list[HSTUCacheState] | None,
        return_cache_states: bool,
    ) -> tuple[torch.Tensor, list[HSTUCacheState]]:
        return self._hstu(
            x=x,
            x_offsets=complete_cumsum(x_lengths, self._jagged_backend),
            all_timestamps=all_timestamps,
            valid_attn_mask=self._valid_attn_mask(self._attn_mask, x),
            delta_x_offsets=delta_x_offsets,
            cache=cache,
            return_cache_states=return_cache_states,
            backend=self._jagged_backend,
        )
