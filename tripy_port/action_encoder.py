"""Embeddings of the actions that a user took on an item. Counterpart of reference/action_encoder.py.

Tripy has no bitwise operations. A product of bits counts the bits that an event and an action share.

Legend: B batch, H history rows, T target rows, M rows of both, A actions, W bits of an action's weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import nvtripy as tp

from tripy_port.parameters import parameter
from tripy_port.sequence_utils import MergeSequences
from tripy_port.validation import require, require_positive


def _bits(numbers: tp.Tensor, width: int) -> tp.Tensor:
    """int64 of any shape, each at least 0 -> (..., width) float32, the lowest bit first."""
    powers = tp.cast(tp.Tensor([2**bit for bit in range(width)]), tp.int64)
    shifted = tp.unsqueeze(numbers, -1) // powers
    return tp.cast(shifted - shifted // 2 * 2, tp.float32)


class ActionEncoder(tp.Module):
    """A row of a table for each action that an event has, zeros for the others; one learned row for targets.

    Args:
        action_embedding_dim: columns of an action.
        action_weights: by action, the bits of an event's number that stand for it; 1 to 2**31 - 1.
        dtype: of the tables.
    """

    def __init__(
        self, action_embedding_dim: int, action_weights: Sequence[int], dtype: tp.dtype = tp.float32
    ) -> None:
        super().__init__()
        require_positive(action_embedding_dim=action_embedding_dim)
        require(len(action_weights) > 0, "action_weights", action_weights, "give at least one")
        for weight in action_weights:
            require_positive(action_weight=weight)
            require(weight < 2**31, "action_weight", weight, "give less than 2**31, as Tripy's integers")
        self._width = len(action_weights) * action_embedding_dim
        self._num_bits = max(action_weights).bit_length()
        self._merge = MergeSequences()
        self._combined_action_weights = tp.cast(tp.Tensor(list(action_weights)), tp.int64)
        self._action_embedding_table = parameter((len(action_weights), action_embedding_dim), dtype)
        self._target_action_embedding_table = parameter((1, self._width), dtype)

    @property
    def output_embedding_dim(self) -> int:
        """Columns of the result."""
        return self._width

    def forward(self, uih_actions: tp.Tensor, uih_lengths: tp.Tensor, targets: tp.Tensor) -> tp.Tensor:
        """
        Args:
            uih_actions: (B, H) int64, each at least 0: the actions of each event, as bits.
            uih_lengths: (B,) int.
            targets: (B, T, *), gives T.

        Returns:
            (B, M, A * action_embedding_dim), anything in the padded rows.
        """
        bits_AW = _bits(self._combined_action_weights, self._num_bits)
        shared_BHA = _bits(uih_actions, self._num_bits) @ tp.transpose(bits_AW, 0, 1)
        has_action_BHA1 = tp.unsqueeze(shared_BHA > 0.5, -1)
        of_uih = tp.flatten(tp.where(has_action_BHA1, self._action_embedding_table, 0.0), start_dim=2)
        of_targets = tp.expand(
            tp.unsqueeze(self._target_action_embedding_table, 0), (*targets.shape[:2], self._width)
        )
        return self._merge(of_uih, of_targets, uih_lengths)
