"""Research HSTU over a stream: new items are appended to a cache of fixed size, the oldest ones leave it.

The public code appends one item at a time, inside a padded row (`reference.transduction_dense`); this forward
is ours. It computes the dense model over the whole stream, with another mask:

* An item sees itself and the C - 1 positions before it, C being the cache's capacity. This holds for any
  number of items appended at once: new rows see cached rows and each other under that mask.
* A state is computed once. Behind the first block, an item's keys and values depend on positions that may
  have left the cache since. They are not recomputed.
* An item keeps the learned position that it came with, counted from the stream's beginning; positions past
  the table take its last row. The blocks see relative positions alone. Nothing else changes as a stream grows
  beyond W, the model's width. W stays the divisor.
* Each position has its successor's time, as in the dense model. An item without a known successor takes the
  query's time. It is appended again, in front of its successor, when that is known.

The cache is aligned at its end: slot C - 1 holds the latest position. A row with fewer than C positions
begins with empty slots. Relative positions between new rows and slots are then the same for the whole batch.

Legend: B batch, C capacity, M new positions, S = C + M, D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

import torch

from reference.hstu_dense import TIMESTAMPS_KEY, HSTUDenseModel
from reference.sequence_utils import batch_gather_embeddings
from reference.transduction_dense import HSTUDense, SequentialTransductionUnitDense
from reference.validation import require, require_positive

# k (B, C, H * K) and v (B, C, H * V) of one block.
KVCache = tuple[torch.Tensor, torch.Tensor]


def _window_mask(lengths: torch.Tensor, capacity: int, like: torch.Tensor) -> torch.Tensor:
    """The mask of cached and new positions that a new row sees.

    Args:
        lengths: (B,) int, positions of each row so far, including positions that have left the cache.
        capacity: C.
        like: (B, M, D), gives M and the dtype.

    Returns:
        (B, M, C + M) in like's dtype, 1 where row i sees column j. Row i is column C + i; it sees the latest
        C columns up to itself, less empty slots.
    """
    m = like.size(1)
    row_M1 = torch.arange(m, device=like.device).unsqueeze(1)
    column_S = torch.arange(capacity + m, device=like.device)
    in_window_MS = (column_S > row_M1) & (column_S <= row_M1 + capacity)
    is_filled_B1S = (column_S >= capacity - lengths.unsqueeze(1)).unsqueeze(1)
    return (in_window_MS & is_filled_B1S).to(like.dtype)


def _latest_rows(cached_and_new: torch.Tensor, new_lengths: torch.Tensor, capacity: int) -> torch.Tensor:
    """The cache after an append: (B, C + M, *) and (B,) int in [0, M] -> (B, C, *)."""
    slot_C = torch.arange(capacity, device=new_lengths.device)
    return batch_gather_embeddings(new_lengths.unsqueeze(1) + slot_C, cached_and_new)


class StreamingTransductionUnit(SequentialTransductionUnitDense):
    """An HSTU block with a k/v cache; parameters and `forward` are the dense block's."""

    def empty_cache(self, batch_size: int, capacity: int) -> KVCache:
        """k and v of no positions, on the parameters' device and in their dtype."""
        widths = (self._num_heads * self._attention_dim, self._num_heads * self._linear_dim)
        k, v = (self._uvqk.new_zeros(batch_size, capacity, width) for width in widths)
        return k, v

    def cached_forward(
        self,
        x: torch.Tensor,
        all_timestamps: torch.Tensor,
        next_timestamps: torch.Tensor,
        valid_attn_mask: torch.Tensor,
        new_lengths: torch.Tensor,
        cache: KVCache,
    ) -> tuple[torch.Tensor, KVCache]:
        """
        Args:
            x: (B, M, D), the new rows.
            all_timestamps: (B, C + M) int64 seconds, of the cached and the new positions.
            next_timestamps: (B, M) int64 seconds, of each new position's successor.
            valid_attn_mask: (B, M, C + M), 1 for the latest C columns of each new row.
            new_lengths: (B,) int in [0, M], number of new rows that enter the cache.
            cache: this block's; it is not modified.

        Returns:
            (B, M, D) and the new cache.
        """
        u, v, q, k = self._project(x)
        cached_k, cached_v = cache
        all_k, all_v = torch.cat([cached_k, k], dim=1), torch.cat([cached_v, v], dim=1)
        assert self._rel_attn_bias is not None, "a block without a bias has softmax attention, and no stream"
        attn_bias = self._rel_attn_bias.last_rows(all_timestamps, next_timestamps)
        outputs = self._transform(u, self._attn(q, all_k, all_v, attn_bias, valid_attn_mask), x)
        capacity = cached_k.size(1)
        new_k, new_v = (_latest_rows(rows, new_lengths, capacity) for rows in (all_k, all_v))
        return outputs, (new_k, new_v)


class StreamingHSTU(HSTUDense):
    """The stack of blocks with their caches."""

    def empty_cache(self, batch_size: int, capacity: int) -> list[torch.Tensor]:
        """k and v of each block in turn."""
        return [
            tensor for layer in self._attention_layers for tensor in layer.empty_cache(batch_size, capacity)
        ]

    def cached_forward(
        self,
        x: torch.Tensor,
        lengths: torch.Tensor,
        all_timestamps: torch.Tensor,
        next_timestamps: torch.Tensor,
        new_lengths: torch.Tensor,
        cache: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """
        Args:
            x: (B, M, D), the new rows, anything finite behind a row's last.
            lengths: (B,) int, positions of each row so far.
            all_timestamps, next_timestamps, new_lengths: see `StreamingTransductionUnit.cached_forward`.
            cache: see `empty_cache`.

        Returns:
            (B, M, D) and the new cache.
        """
        valid_attn_mask = _window_mask(lengths, cache[0].size(1), x)
        new_cache: list[torch.Tensor] = []
        for i, layer in enumerate(self._attention_layers):
            x, new_kv = layer.cached_forward(
                x,
                all_timestamps,
                next_timestamps,
                valid_attn_mask,
                new_lengths,
                (cache[2 * i], cache[2 * i + 1]),
            )
            new_cache.extend(new_kv)
        return x, new_cache


class HSTUStreamModel(HSTUDenseModel):
    """The dense model, and the same model over streams.

    A stream's state is a list of tensors. The first is the number of positions so far, (B,) int64. The second
    is the timestamps of the cached positions, (B, C) int64 seconds. k (B, C, H * K) and v (B, C, H * V) of
    each block follow.
    """

    unit_class = StreamingTransductionUnit
    encoder_class = StreamingHSTU

    def empty_state(self, batch_size: int, capacity: int) -> list[torch.Tensor]:
        """The state of streams that have not begun.

        Args:
            batch_size: B.
            capacity: C, in positions; an item takes positions_per_item of the preprocessor.

        Raises:
            ValueError: naming the parameter, its value and the fix.
        """
        require_positive(batch_size=batch_size, capacity=capacity)
        require(
            capacity <= self._sequence_width,
            "capacity",
            capacity,
            f"must be at most the width of the model, {self._sequence_width}, which has no bias for more",
        )
        require(
            not self._needs_full_width(),
            "normalization",
            self._normalization,
            "sums over positions to come, which a stream does not have; use 'rel_bias'",
        )
        cache = self._hstu.empty_cache(batch_size, capacity)
        counts = {"dtype": torch.int64, "device": cache[0].device}
        return [torch.zeros(batch_size, **counts), torch.zeros(batch_size, capacity, **counts), *cache]

    def extend(
        self,
        state: list[torch.Tensor],
        new_lengths: torch.Tensor,
        new_ids: torch.Tensor,
        new_embeddings: torch.Tensor,
        new_payloads: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Append items. With interleaved ratings an item is two positions, and M is twice their number.

        Args:
            state: of `empty_state` or of the last call; it is not modified.
            new_lengths: (B,) int, number of new items that enter the cache. Later items see all earlier ones
                and are forgotten: padding, or an item without a known successor.
            new_ids: (B, items) int, 0 for no item.
            new_embeddings: (B, items, item_embedding_dim), finite in the padding, too.
            new_payloads: "timestamps" (B, M + 1) int64 seconds, of each new position and of the last one's
                successor; "ratings" (B, items) int where the preprocessor uses them.

        Returns:
            (B, M, output dim), and the new state.
        """
        lengths, timestamps, *cache = state
        new_lengths, x, _ = self._input_features_preproc(
            past_lengths=new_lengths,
            past_ids=new_ids,
            past_embeddings=new_embeddings,
            past_payloads=new_payloads,
            first_positions=lengths,
        )
        new_timestamps = new_payloads[TIMESTAMPS_KEY]
        all_timestamps = torch.cat([timestamps, new_timestamps[:, :-1]], dim=1)
        encoded, cache = self._hstu.cached_forward(
            x, lengths, all_timestamps, new_timestamps[:, 1:], new_lengths, cache
        )
        timestamps = _latest_rows(all_timestamps.unsqueeze(2), new_lengths, timestamps.size(1)).squeeze(2)
        return self._output_postproc(encoded), [lengths + new_lengths, timestamps, *cache]
