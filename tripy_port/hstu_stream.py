"""Research HSTU over a stream: new items are appended to a cache of fixed size, the oldest ones leave it.

Counterpart of reference/hstu_stream.py, which defines the computation. Tripy's tensors are immutable. A new
state is an output of the executable and an input of the next call; it stays on the GPU. A ring buffer would
save nothing, and would need a positional bias for each row of the batch.

Legend: B batch, C capacity, M new positions, S = C + M, D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

import nvtripy as tp

from tripy_port.hstu_dense import TIMESTAMPS_KEY, HSTUDenseModel
from tripy_port.numerics import both
from tripy_port.sequence_utils import batch_gather_embeddings
from tripy_port.transduction_dense import HSTUDense, SequentialTransductionUnitDense
from tripy_port.validation import require, require_positive

# k (B, C, H * K) and v (B, C, H * V) of one block.
KVCache = tuple[tp.Tensor, tp.Tensor]


def _window_mask(lengths: tp.Tensor, capacity: tp.types.IntLike, like: tp.Tensor) -> tp.Tensor:
    """The mask of cached and new positions that a new row sees.

    Args:
        lengths: (B,) int, positions of each row so far, including positions that have left the cache.
        capacity: C.
        like: (B, M, D), gives M and the dtype.

    Returns:
        (B, M, C + M) in like's dtype, 1 where row i sees column j. Row i is column C + i; it sees the latest
        C columns up to itself, less empty slots.
    """
    m = like.shape[1]
    row_MS, column_MS = (tp.iota((m, m + capacity), dim=dim, dtype=tp.int32) for dim in (0, 1))
    in_window_MS = both(column_MS > row_MS, column_MS <= row_MS + capacity)
    column_11S = tp.iota((1, 1, m + capacity), dim=2, dtype=tp.int32)
    filled_from_B11 = tp.reshape(capacity - tp.cast(lengths, tp.int32), (lengths.shape[0], 1, 1))
    return tp.cast(both(tp.unsqueeze(in_window_MS, 0), column_11S >= filled_from_B11), like.dtype)


def _latest_rows(cached_and_new: tp.Tensor, new_lengths: tp.Tensor, capacity: tp.types.IntLike) -> tp.Tensor:
    """The cache after an append: (B, C + M, *) and (B,) int in [0, M] -> (B, C, *)."""
    slot_1C = tp.iota((1, capacity), dim=1, dtype=tp.int32)
    return batch_gather_embeddings(tp.unsqueeze(tp.cast(new_lengths, tp.int32), 1) + slot_1C, cached_and_new)


class StreamingTransductionUnit(SequentialTransductionUnitDense):
    """An HSTU block with a k/v cache; parameters and `forward` are the dense block's."""

    def empty_cache(self, batch_size: int, capacity: int) -> KVCache:
        """k and v of no positions, on the GPU and in the parameters' dtype."""
        widths = (self._num_heads * self._attention_dim, self._num_heads * self._linear_dim)
        k, v = (tp.zeros((batch_size, capacity, width), dtype=self._uvqk.dtype).eval() for width in widths)
        return k, v

    def cached_forward(
        self,
        x: tp.Tensor,
        all_timestamps: tp.Tensor,
        next_timestamps: tp.Tensor,
        valid_attn_mask: tp.Tensor,
        new_lengths: tp.Tensor,
        cache: KVCache,
    ) -> tuple[tp.Tensor, KVCache]:
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
        all_k, all_v = tp.concatenate([cached_k, k], dim=1), tp.concatenate([cached_v, v], dim=1)
        assert self._rel_attn_bias is not None, "a block without a bias has softmax attention, and no stream"
        attn_bias = self._rel_attn_bias.last_rows(all_timestamps, next_timestamps)
        outputs = self._transform(u, self._attn(q, all_k, all_v, attn_bias, valid_attn_mask), x)
        capacity = cached_k.shape[1]
        new_k, new_v = (_latest_rows(rows, new_lengths, capacity) for rows in (all_k, all_v))
        return outputs, (new_k, new_v)


class StreamingHSTU(HSTUDense):
    """The stack of blocks with their caches."""

    def empty_cache(self, batch_size: int, capacity: int) -> list[tp.Tensor]:
        """k and v of each block in turn."""
        return [
            tensor for layer in self._attention_layers for tensor in layer.empty_cache(batch_size, capacity)
        ]

    def cached_forward(
        self,
        x: tp.Tensor,
        lengths: tp.Tensor,
        all_timestamps: tp.Tensor,
        next_timestamps: tp.Tensor,
        new_lengths: tp.Tensor,
        cache: list[tp.Tensor],
    ) -> tuple[tp.Tensor, list[tp.Tensor]]:
        """
        Args:
            x: (B, M, D), the new rows, anything finite behind a row's last.
            lengths: (B,) int, positions of each row so far.
            all_timestamps, next_timestamps, new_lengths: see `StreamingTransductionUnit.cached_forward`.
            cache: see `empty_cache`.

        Returns:
            (B, M, D) and the new cache.
        """
        valid_attn_mask = _window_mask(lengths, cache[0].shape[1], x)
        new_cache: list[tp.Tensor] = []
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

    def empty_state(self, batch_size: int, capacity: int) -> list[tp.Tensor]:
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
        shapes = ((batch_size,), (batch_size, capacity))
        return [*(tp.zeros(shape, dtype=tp.int64).eval() for shape in shapes), *cache]

    def extend(
        self,
        state: list[tp.Tensor],
        new_lengths: tp.Tensor,
        new_ids: tp.Tensor,
        new_embeddings: tp.Tensor,
        new_payloads: dict[str, tp.Tensor],
    ) -> tuple[tp.Tensor, list[tp.Tensor]]:
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
        all_timestamps = tp.concatenate([timestamps, new_timestamps[:, :-1]], dim=1)
        encoded, cache = self._hstu.cached_forward(
            x, lengths, all_timestamps, new_timestamps[:, 1:], new_lengths, cache
        )
        timestamps = tp.squeeze(
            _latest_rows(tp.unsqueeze(all_timestamps, 2), new_lengths, timestamps.shape[1]), 2
        )
        return self._output_postproc(encoded), [lengths + new_lengths, timestamps, *cache]
