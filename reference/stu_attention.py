"""Mask and attention of a production STU layer; `reference.stu` holds the stack and the departures.

Source: meta-recsys/generative-recommenders, generative_recommenders/ops/pytorch/pt_hstu_attention.py.

Legend: B batch, N sequence, M query rows (N, or the new ones in an incremental step), D embedding, H heads,
K attention dim, V hidden dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from reference.validation import require, require_positive


class STUAttentionMask(torch.nn.Module):
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

    def forward(self, x_lengths: torch.Tensor, num_targets: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x_lengths: (B,) int, rows of each sequence: contextual, history and targets.
            num_targets: (B,) int, number of rows at the end that are targets.
            like: (B, N, D), gives N and the dtype.

        Returns:
            (B, N, N) in like's dtype, 1 where row i sees column j. No row of a sequence sees its padding.
        """
        row = torch.arange(like.size(1), device=x_lengths.device).unsqueeze(0)
        # A sequence's distances are counted with its contextual rows as one position, and its targets as one.
        merged = max(self._contextual_seq_len - 1, 0)
        first_target_B1 = (x_lengths - num_targets - merged).unsqueeze(1)
        position_BN = (row - merged).clamp(min=0).minimum(first_target_B1)
        distance_BNN = position_BN.unsqueeze(2) - position_BN.unsqueeze(1)
        sees_BNN = distance_BNN > 0
        if self._max_attn_len > 0:
            sees_BNN = sees_BNN & (distance_BNN <= self._max_attn_len)
        sees_BNN = sees_BNN | (row.unsqueeze(2) == row.unsqueeze(1))
        if self._contextual_seq_len > 0:
            is_contextual = (row < self._contextual_seq_len).unsqueeze(2)
            before_targets_B1N = (position_BN < first_target_B1).unsqueeze(1)
            sees_BNN = sees_BNN | (is_contextual & before_targets_B1N)
        return sees_BNN.to(like.dtype)


class STUAttention(torch.nn.Module):
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
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        valid_attn_mask: torch.Tensor,
        attn_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            q: (B, M, H * K). k: (B, N, H * K). v: (B, N, H * V).
            valid_attn_mask: (B, M, N), each element in {0, 1}, in q's dtype.
            attn_scale: (B, M), factor of each row's weights in place of 1 / N.

        Returns:
            (B, M, H * V).
        """
        b, m, _ = q.size()
        n = k.size(1)
        q_BHMK = q.reshape(b, m, self._num_heads, self._attention_dim).transpose(1, 2)
        k_BHNK = k.reshape(b, n, self._num_heads, self._attention_dim).transpose(1, 2)
        v_BHNV = v.reshape(b, n, self._num_heads, self._hidden_dim).transpose(1, 2)
        weights_BHMN = F.silu(q_BHMK @ k_BHNK.transpose(2, 3) * self._alpha)
        if attn_scale is None:
            weights_BHMN = weights_BHMN / n
        else:
            weights_BHMN = weights_BHMN * attn_scale.reshape(b, 1, m, 1)
        attn_output_BHMV = (weights_BHMN * valid_attn_mask.unsqueeze(1)) @ v_BHNV
        return attn_output_BHMV.transpose(1, 2).reshape(b, m, self._num_heads * self._hidden_dim)
