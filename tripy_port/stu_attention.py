"""Mask and attention of a production STU layer. Counterpart of reference/stu_attention.py.

Legend: B batch, N sequence, M query rows (N, or the new ones in an incremental step), D embedding, H heads,
K attention dim, V hidden dim.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.numerics import both, scale, silu
from tripy_port.validation import require, require_positive


class STUAttentionMask(tp.Module):
    """The mask of the columns that each row sees.

    History rows see themselves and the past. Targets see all history and themselves, never each other. All
    contextual rows together count as one position in front of the history. Each of them sees every contextual
    and history row. A window limits how far back a row sees, contextual rows excepted. All targets together
    count as one position behind the history.

    Args:
        contextual_seq_len: rows in front of the history.
        max_attn_len: the window; 0 for none.
    """

    def __init__(self, contextual_seq_len: int, max_attn_len: int) -> None:
        super().__init__()
        require(contextual_seq_len >= 0, "contextual_seq_len", contextual_seq_len, "must be at least 0")
        require(max_attn_len >= 0, "max_attn_len", max_attn_len, "must be at least 0; 0 is no window")
        self._contextual_seq_len = contextual_seq_len
        self._max_attn_len = max_attn_len

    @property
    def contextual_seq_len(self) -> int:
        """Rows in front of the history."""
        return self._contextual_seq_len

    @property
    def max_attn_len(self) -> int:
        """The window; 0 for none."""
        return self._max_attn_len

    def forward(self, x_lengths: tp.Tensor, num_targets: tp.Tensor, like: tp.Tensor) -> tp.Tensor:
        """
        Args:
            x_lengths: (B,) int, rows of each sequence: contextual, history and targets.
            num_targets: (B,) int, number of rows at the end that are targets.
            like: (B, N, D), gives N and the dtype.

        Returns:
            (B, N, N) in like's dtype, 1 where row i sees column j. No row of a sequence sees its padding.
        """
        row_1N = tp.iota((1, like.shape[1]), dim=1, dtype=tp.int32)
        # A sequence's distances are counted with its contextual rows as one position, and its targets as one.
        merged = max(self._contextual_seq_len - 1, 0)
        first_target_B1 = tp.unsqueeze(tp.cast(x_lengths - num_targets, tp.int32), 1) - merged
        position_BN = tp.minimum(tp.maximum(row_1N - merged, 0), first_target_B1)
        distance_BNN = tp.unsqueeze(position_BN, 2) - tp.unsqueeze(position_BN, 1)
        sees_BNN = distance_BNN > 0
        if self._max_attn_len > 0:
            sees_BNN = both(sees_BNN, distance_BNN <= self._max_attn_len)
        sees_BNN = sees_BNN | (tp.unsqueeze(row_1N, 2) == tp.unsqueeze(row_1N, 1))
        if self._contextual_seq_len > 0:
            is_contextual = tp.unsqueeze(row_1N < self._contextual_seq_len, 2)
            before_targets_B1N = tp.unsqueeze(position_BN < first_target_B1, 1)
            sees_BNN = sees_BNN | both(is_contextual, before_targets_B1N)
        return tp.cast(sees_BNN, like.dtype)


class STUAttention(tp.Module):
    """SiLU(alpha q k^T) / N, or times a scale for each row, then the mask; a head at a time.

    Args:
        num_heads, attention_dim, hidden_dim: H, K, V.
        attn_alpha: alpha; 1 / sqrt(K) if None.
    """

    def __init__(
        self, num_heads: int, attention_dim: int, hidden_dim: int, attn_alpha: float | None = None
    ) -> None:
        super().__init__()
        require_positive(num_heads=num_heads, attention_dim=attention_dim, hidden_dim=hidden_dim)
        require(attn_alpha is None or attn_alpha > 0, "attn_alpha", attn_alpha, "must be positive, or None")
        self._num_heads = num_heads
        self._attention_dim = attention_dim
        self._hidden_dim = hidden_dim
        self._alpha = attention_dim**-0.5 if attn_alpha is None else attn_alpha

    def forward(
        self,
        q: tp.Tensor,
        k: tp.Tensor,
        v: tp.Tensor,
        valid_attn_mask: tp.Tensor,
        attn_scale: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """
        Args:
            q: (B, M, H * K). k: (B, N, H * K). v: (B, N, H * V).
            valid_attn_mask: (B, M, N), each element in {0, 1}, in q's dtype.
            attn_scale: (B, M), factor of each row's weights in place of 1 / N.

        Returns:
            (B, M, H * V).
        """
        b, m, _ = q.shape
        n = k.shape[1]
        q_BMHK = tp.reshape(q, (b, m, self._num_heads, self._attention_dim))
        k_BNHK = tp.reshape(k, (b, n, self._num_heads, self._attention_dim))
        v_BNHV = tp.reshape(v, (b, n, self._num_heads, self._hidden_dim))
        logits_BHMN = scale(tp.permute(q_BMHK, (0, 2, 1, 3)) @ tp.permute(k_BNHK, (0, 2, 3, 1)), self._alpha)
        weights_BHMN = silu(logits_BHMN)
        if attn_scale is None:
            # As `numerics.divide`, by a width that may be dynamic.
            wide = tp.cast(weights_BHMN, tp.float32) / tp.cast(n, tp.float32)
            weights_BHMN = tp.cast(wide, q.dtype)
        else:
            weights_BHMN = weights_BHMN * tp.reshape(attn_scale, (b, 1, m, 1))
        attn_output_BHMV = (weights_BHMN * tp.unsqueeze(valid_attn_mask, 1)) @ tp.permute(
            v_BNHV, (0, 2, 1, 3)
        )
        attn_output_BMHV = tp.permute(attn_output_BHMV, (0, 2, 1, 3))
        return tp.reshape(attn_output_BMHV, (b, m, self._num_heads * self._hidden_dim))
