"""The production STU on jagged rows, with fused kernels for a layer's attention, or for whole layers.

The function equals `reference.stu`; the layout of the computation differs. A layer's tensors hold the valid
rows of all sequences, one after the other, without padding. The kernel (`kernels.hstu_attention`) computes
mask, SiLU and both products of a head without an (N, N) tensor. `_valid_attn_mask` only owns the numbers that
the kernel reads.

A stack of whole layers (`kernels.stu_layer`) is faster, and calls no module inside that one could observe.

Departures from the jagged stack of `reference.stu_jagged`: the caller names the valid rows of the padded
batch. A compiled graph, whose shapes cannot follow from values, has the same signature. There is no
incremental forward.

Legend: B batch, N sequence, L valid rows, D embedding, H heads, K attention dim, V hidden dim.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.hstu_attention import ProductionMask, dot_precision_of_torch, hstu_attention
from kernels.stu_layer import Parameters, Sizes, stu_layers
from reference.fused_attention import padded_rows, require_heads, row_offsets, valid_rows_of
from reference.hstu_transducer import HSTUTransducer
from reference.stu import STUCacheState, STULayer
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


class STULayerFused(STULayer):
    """One layer on jagged rows; constructor as for the dense layer."""

    attention_class = STUAttentionFused

    def kernel_parameters(self) -> Parameters:
        """The parameters under the kernels' names."""
        return Parameters(*(getattr(self, f"_{name}") for name in Parameters._fields))

    def kernel_sizes(self) -> Sizes:
        """The heads and their norm."""
        attention, norm = self._attn, self._output_norm
        sizes = (attention._num_heads, attention._attention_dim, attention._hidden_dim)
        return Sizes(*sizes, use_group_norm=norm._use_group_norm)

    def forward(
        self,
        x: torch.Tensor,
        x_offsets: torch.Tensor,
        num_targets: torch.Tensor,
        padded: torch.Tensor,
        valid_attn_mask: STUAttentionMask,
        attn_scale: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
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


class STUStackFused(torch.nn.Module):
    """The layers, from padded rows to padded rows.

    Args:
        stu_list: the layers.
        contextual_seq_len, max_attn_len: see `STUAttentionMask`.
        whole_layers: compute the layers by `kernels.stu_layer`; for inference alone.
    """

    def __init__(
        self,
        stu_list: list[STULayerFused],
        contextual_seq_len: int = 0,
        max_attn_len: int = 0,
        whole_layers: bool = False,
    ) -> None:
        super().__init__()
        self._valid_attn_mask = STUAttentionMask(contextual_seq_len, max_attn_len)
        self._stu_layers = torch.nn.ModuleList(stu_list)
        self._whole_layers = whole_layers

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor,
        num_targets: torch.Tensor,
        valid_rows: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[None]]:
        """
        Args:
            x: (B, N, D), anything in the padded rows.
            x_lengths, num_targets: (B,) int, see `STUAttentionMask.forward`.
            valid_rows: (L,) int, see `reference.fused_attention.valid_rows_of`.
            attn_scale: (B, N) or None, see `STUAttention.forward`.

        Returns:
            (B, N, D) with padded rows zero, and no cache states.
        """
        x_offsets = row_offsets(x_lengths)
        padded = x_lengths.new_zeros(x.size(1))
        if attn_scale is not None:
            attn_scale = valid_rows_of(attn_scale, valid_rows)
        values = valid_rows_of(x, valid_rows)
        if self._whole_layers:
            values = self._by_kernels(values, x_offsets, num_targets, x.size(1), attn_scale)
            return padded_rows(values, x_lengths, x_offsets, x), []
        for layer in self._stu_layers:
            values, _ = layer(values, x_offsets, num_targets, padded, self._valid_attn_mask, attn_scale)
        return padded_rows(values, x_lengths, x_offsets, x), []

    def _by_kernels(
        self,
        values: torch.Tensor,
        x_offsets: torch.Tensor,
        num_targets: torch.Tensor,
        n: int,
        attn_scale: torch.Tensor | None,
    ) -> torch.Tensor:
        """(L, D) -> (L, D). Raises RuntimeError in training: the kernels have no dropout."""
        if self.training:
            raise RuntimeError(
                "training=True: whole layers have no dropout; call eval(), or build without them"
            )
        first, mask = self._stu_layers[0], self._valid_attn_mask
        return stu_layers(
            values,
            x_offsets,
            n,
            ProductionMask(
                first._attn._alpha,
                float(n),
                attn_scale,
                num_targets,
                mask.max_attn_len,
                mask.contextual_seq_len,
            ),
            [layer.kernel_parameters() for layer in self._stu_layers],
            first.kernel_sizes(),
            backend="triton" if values.is_cuda else "eager",
        )


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
