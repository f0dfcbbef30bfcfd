"""Input feature preprocessors: item vectors to the encoder's input.

Counterpart of reference/input_features_preprocessors.py.

Legend: B batch, N sequence, D embedding, I item embedding, R rating embedding.
"""

from __future__ import annotations

import abc

import nvtripy as tp

from tripy_port.numerics import scale
from tripy_port.validation import require_positive, require_rate

RATINGS_KEY = "ratings"
Preprocessed = tuple[tp.Tensor, tp.Tensor, tp.Tensor]


def _positions(
    count: tp.types.IntLike, first_positions: tp.Tensor | None, rows: tp.types.IntLike
) -> tp.Tensor:
    """(1 or B, count) int32, each in [0, rows)."""
    position_1N = tp.iota((1, count), dim=1, dtype=tp.int32)
    if first_positions is None:
        return position_1N
    return tp.minimum(tp.unsqueeze(tp.cast(first_positions, tp.int32), 1) + position_1N, rows - 1)


class Dropout(tp.Module):
    """`torch.nn.Dropout` as it runs in inference, all that Tripy does: the identity.

    It adds nothing to the graph; it keeps the tree of modules the same as the reference's.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: tp.Tensor) -> tp.Tensor:
        return input


class InputFeaturesPreprocessorModule(tp.Module):
    """Interface. `positions_per_item` is the number of positions that an item takes in the output."""

    positions_per_item: int = 1

    @property
    @abc.abstractmethod
    def embedding_dim(self) -> int:
        """D, the width of the output."""

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name."""

    @abc.abstractmethod
    def forward(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        first_positions: tp.Tensor | None = None,
    ) -> Preprocessed:
        """
        Args:
            past_lengths: (B,) int.
            past_ids: (B, N) int, 0 for no item.
            past_embeddings: (B, N, I).
            past_payloads: "ratings" (B, N) int in [0, num_ratings) where ratings are used.
            first_positions: (B,) int, the position of each row's first item; 0 without. Positions past the
                learned ones take the last one's vector.

        Returns:
            lengths (B,) int, embeddings (B, N, D) with zero rows for item 0, and a 0/1 mask (B, N, 1). The
            mask is 1 at all other items, in the embeddings' dtype. Lengths and N count positions here,
            positions_per_item for each item.
        """


class LearnablePositionalEmbeddingInputFeaturesPreprocessor(InputFeaturesPreprocessorModule):
    """Item vector * sqrt(D) + learned position, counted from the left."""

    def __init__(
        self, max_sequence_len: int, embedding_dim: int, dropout_rate: float, dtype: tp.dtype = tp.float32
    ) -> None:
        super().__init__()
        require_positive(max_sequence_len=max_sequence_len, embedding_dim=embedding_dim)
        require_rate(dropout_rate=dropout_rate)
        self._embedding_dim = embedding_dim
        self._pos_emb = tp.Embedding(max_sequence_len, embedding_dim, dtype=dtype)
        self._dropout_rate = dropout_rate
        self._emb_dropout = Dropout(p=dropout_rate)

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def debug_str(self) -> str:
        return f"posi_d{self._dropout_rate}"

    def forward(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        first_positions: tp.Tensor | None = None,
    ) -> Preprocessed:
        position = _positions(past_ids.shape[1], first_positions, self._pos_emb.weight.shape[0])
        x_BND = scale(past_embeddings, self._embedding_dim**0.5) + self._pos_emb(position)
        x_BND = self._emb_dropout(x_BND)
        valid_mask = tp.cast(tp.unsqueeze(past_ids != 0, -1), x_BND.dtype)
        return past_lengths, x_BND * valid_mask, valid_mask


class LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor(InputFeaturesPreprocessorModule):
    """[item vector, rating vector] * sqrt(D) + learned position, with D = I + R."""

    def __init__(
        self,
        max_sequence_len: int,
        item_embedding_dim: int,
        dropout_rate: float,
        rating_embedding_dim: int,
        num_ratings: int,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(
            max_sequence_len=max_sequence_len,
            item_embedding_dim=item_embedding_dim,
            rating_embedding_dim=rating_embedding_dim,
            num_ratings=num_ratings,
        )
        require_rate(dropout_rate=dropout_rate)
        self._embedding_dim = item_embedding_dim + rating_embedding_dim
        self._pos_emb = tp.Embedding(max_sequence_len, self._embedding_dim, dtype=dtype)
        self._dropout_rate = dropout_rate
        self._emb_dropout = Dropout(p=dropout_rate)
        self._rating_emb = tp.Embedding(num_ratings, rating_embedding_dim, dtype=dtype)

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def debug_str(self) -> str:
        return f"posir_d{self._dropout_rate}"

    def forward(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        first_positions: tp.Tensor | None = None,
    ) -> Preprocessed:
        position = _positions(past_ids.shape[1], first_positions, self._pos_emb.weight.shape[0])
        ratings = tp.cast(past_payloads[RATINGS_KEY], tp.int32)
        rated_BND = tp.concatenate([past_embeddings, self._rating_emb(ratings)], dim=-1)
        x_BND = scale(rated_BND, self._embedding_dim**0.5) + self._pos_emb(position)
        x_BND = self._emb_dropout(x_BND)
        valid_mask = tp.cast(tp.unsqueeze(past_ids != 0, -1), x_BND.dtype)
        return past_lengths, x_BND * valid_mask, valid_mask


class CombinedItemAndRatingInputFeaturesPreprocessor(InputFeaturesPreprocessorModule):
    """Items and ratings interleaved, [item_0, rating_0, item_1, rating_1, ...]: twice the length, D = I."""

    positions_per_item = 2

    def __init__(
        self,
        max_sequence_len: int,
        item_embedding_dim: int,
        dropout_rate: float,
        num_ratings: int,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(
            max_sequence_len=max_sequence_len, item_embedding_dim=item_embedding_dim, num_ratings=num_ratings
        )
        require_rate(dropout_rate=dropout_rate)
        self._embedding_dim = item_embedding_dim
        self._pos_emb = tp.Embedding(max_sequence_len * 2, item_embedding_dim, dtype=dtype)
        self._dropout_rate = dropout_rate
        self._emb_dropout = Dropout(p=dropout_rate)
        self._rating_emb = tp.Embedding(num_ratings, item_embedding_dim, dtype=dtype)

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def debug_str(self) -> str:
        return f"combir_d{self._dropout_rate}"

    def get_preprocessed_ids(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
    ) -> tp.Tensor:
        """(B, 2N) in past_ids' dtype: item and rating ids interleaved."""
        b, n = past_ids.shape
        ratings = tp.cast(past_payloads[RATINGS_KEY], past_ids.dtype)
        return tp.reshape(tp.stack([past_ids, ratings], dim=2), (b, n * 2))

    def get_preprocessed_masks(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
    ) -> tp.Tensor:
        """(B, 2N) bool: False for both positions of item 0."""
        return tp.repeat(past_ids != 0, 2, dim=1)

    def forward(
        self,
        past_lengths: tp.Tensor,
        past_ids: tp.Tensor,
        past_embeddings: tp.Tensor,
        past_payloads: dict[str, tp.Tensor],
        first_positions: tp.Tensor | None = None,
    ) -> Preprocessed:
        b, n = past_ids.shape
        position = _positions(n * 2, first_positions, self._pos_emb.weight.shape[0])
        ratings = tp.cast(past_payloads[RATINGS_KEY], tp.int32)
        pair_BN2D = tp.stack([past_embeddings, self._rating_emb(ratings)], dim=2)
        x_BND = tp.reshape(scale(pair_BN2D, self._embedding_dim**0.5), (b, n * 2, self._embedding_dim))
        x_BND = self._emb_dropout(x_BND + self._pos_emb(position))
        valid_mask = self.get_preprocessed_masks(past_lengths, past_ids, past_embeddings, past_payloads)
        valid_mask = tp.cast(tp.unsqueeze(valid_mask, 2), x_BND.dtype)
        return past_lengths * 2, x_BND * valid_mask, valid_mask
