"""The production STU stack with jagged (L, D) tensors inside, the layout of the public code.

Source: meta-recsys/generative-recommenders, generative_recommenders/modules/stu.py. Only the layout differs
from the dense stack, so parameters, projection and output are inherited from it. Departures from the public
code: as in `reference.stu`, but no row of padding is computed.

Legend: B batch, N sequence, L total jagged length, D embedding, H heads, K attention dim, V hidden dim.
"""

from __future__ import annotations

import torch

from reference.jagged_ops import complete_cumsum, dense_to_jagged, jagged_to_padded_dense, resolve_backend
from reference.stu import STUCacheState, STULayer, STUStack
from reference.stu_attention import STUAttention


class STUAttentionJagged(STUAttention):
    """`STUAttention` between padding and unpadding."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        valid_attn_mask: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
        x_offsets: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> torch.Tensor:
        """
        Args:
            q, k: (L, H * K). v: (L, H * V).
            valid_attn_mask: (B, N, N). attn_scale: (B, N) or None.
            x_offsets: (B + 1,) int. Without them all arguments are dense, as in an incremental step.
            backend: of the jagged operators, see `reference.jagged_ops`.

        Returns:
            (L, H * V).
        """
        if x_offsets is None:
            return super().forward(q, k, v, valid_attn_mask, attn_scale)
        n = valid_attn_mask.size(-1)
        q, k, v = (jagged_to_padded_dense(x, x_offsets, n, 0.0, backend) for x in (q, k, v))
        return dense_to_jagged(super().forward(q, k, v, valid_attn_mask, attn_scale), x_offsets, backend)


class STULayerJagged(STULayer):
    """One layer on jagged values; constructor and `cached_forward` as for the dense layer."""

    attention_class = STUAttentionJagged

    def forward(
        self,
        x: torch.Tensor,
        valid_attn_mask: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
        return_cache_states: bool = False,
        x_offsets: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> tuple[torch.Tensor, STUCacheState | None]:
        """
        Args:
            x: (L, D).
            valid_attn_mask, attn_scale, x_offsets, backend: see `STUAttentionJagged.forward`.

        Returns:
            (L, D) and the cache state, padded to (B, N, *), or None in its place.
        """
        assert x_offsets is not None, "a jagged layer needs x_offsets"
        u, v, q, k = self._project(x)
        attn_output = self._attn(q, k, v, valid_attn_mask, attn_scale, x_offsets, backend)
        outputs = self._transform(u, attn_output, x)
        if not return_cache_states:
            return outputs, None
        n = valid_attn_mask.size(-1)
        k, v = (jagged_to_padded_dense(values, x_offsets, n, 0.0, backend) for values in (k, v))
        return outputs, (k, v)


class STUStackJagged(STUStack):
    """`STUStack` in the jagged layout; same parameters, methods, inputs and outputs.

    Args:
        stu_list: `STULayerJagged`s.
        contextual_seq_len, max_attn_len: see `STUStack`.
        jagged_backend: "auto", "fbgemm" or "plain", see `reference.jagged_ops`.

    Raises:
        ValueError: also for a backend that is unknown or cannot run here.
    """

    def __init__(
        self,
        stu_list: list[STULayerJagged],
        contextual_seq_len: int = 0,
        max_attn_len: int = 0,
        jagged_backend: str = "auto",
    ) -> None:
        super().__init__(list(stu_list), contextual_seq_len, max_attn_len)
        resolve_backend(jagged_backend, torch.float32)
        self._jagged_backend = jagged_backend

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
        return_cache_states: bool = False,
    ) -> tuple[torch.Tensor, list[STUCacheState]]:
        """As `STUStack.forward`: dense at both ends."""
        valid_attn_mask = self._valid_attn_mask(x_lengths, num_targets, x)
        x_offsets = complete_cumsum(x_lengths, self._jagged_backend)
        n = x.size(1)
        x = dense_to_jagged(x, x_offsets, self._jagged_backend)
        cache_states: list[STUCacheState] = []
        for layer in self._stu_layers:
            x, cache_state = layer(
                x, valid_attn_mask, attn_scale, return_cache_states, x_offsets, self._jagged_backend
            )
            if cache_state is not None:
                cache_states.append(cache_state)
        return jagged_to_padded_dense(x, x_offsets, n, 0.0, self._jagged_backend), cache_states
