"""Input feature preprocessors: item vectors to the encoder's input.

Source: generative_recommenders/research/modeling/sequential/input_features_preprocessors.py. Departure: the
returned mask has the embeddings' dtype; the public one is float32 under any model.

Legend: B batch, N sequence, D embedding, I item embedding, R rating embedding.
"""

from __future__ import annotations

import abc
import math

import torch

from reference.initialization import truncated_normal
from reference.validation import require_positive, require_rate

RATINGS_KEY = "ratings"
Preprocessed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _positions(
    count: int, past_ids: torch.Tensor, first_positions: torch.Tensor | None, rows: int
) -> torch.Tensor:
    """(1 or B, count) int, each in [0, rows)."""
    position_1N = torch.arange(count, device=past_ids.device).unsqueeze(0)
    if first_positions is None:
        return position_1N
    return (first_positions.unsqueeze(1) + position_1N).clamp(max=rows - 1)


class InputFeaturesPreprocessorModule(torch.nn.Module):
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
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        first_positions: torch.Tensor | None = None,
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

    def __init__(self, max_sequence_len: int, embedding_dim: int, dropout_rate: float) -> None:
        super().__init__()
        require_positive(max_sequence_len=max_sequence_len, embedding_dim=embedding_dim)
        require_rate(dropout_rate=dropout_rate)
        self._embedding_dim = embedding_dim
        self._pos_emb = torch.nn.Embedding(max_sequence_len, embedding_dim)
        self._dropout_rate = dropout_rate
        self._emb_dropout = torch.nn.Dropout(p=dropout_rate)
        self.reset_state()

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def debug_str(self) -> str:
        return f"posi_d{self._dropout_rate}"

    def reset_state(self) -> None:
        """Truncated normal, std 1 / sqrt(D)."""
        truncated_normal(self._pos_emb.weight.data, mean=0.0, std=math.sqrt(1.0 / self._embedding_dim))

    def forward(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        first_positions: torch.Tensor | None = None,
    ) -> Preprocessed:
        position = _positions(past_ids.size(1), past_ids, first_positions, self._pos_emb.num_embeddings)
        x_BND = past_embeddings * self._embedding_dim**0.5 + self._pos_emb(position)
        x_BND = self._emb_dropout(x_BND)
        valid_mask = (past_ids != 0).unsqueeze(-1).to(x_BND.dtype)
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
        self._pos_emb = torch.nn.Embedding(max_sequence_len, self._embedding_dim)
        self._dropout_rate = dropout_rate
        self._emb_dropout = torch.nn.Dropout(p=dropout_rate)
        self._rating_emb = torch.nn.Embedding(num_ratings, rating_embedding_dim)
        self.reset_state()

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def debug_str(self) -> str:
        return f"posir_d{self._dropout_rate}"

    def reset_state(self) -> None:
        """Truncated normal, std 1 / sqrt(D)."""
        std = math.sqrt(1.0 / self._embedding_dim)
        truncated_normal(self._pos_emb.weight.data, mean=0.0, std=std)
        truncated_normal(self._rating_emb.weight.data, mean=0.0, std=std)

    def forward(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        first_positions: torch.Tensor | None = None,
    ) -> Preprocessed:
        position = _positions(past_ids.size(1), past_ids, first_positions, self._pos_emb.num_embeddings)
        rated_BND = torch.cat([past_embeddings, self._rating_emb(past_payloads[RATINGS_KEY].int())], dim=-1)
        x_BND = rated_BND * self._embedding_dim**0.5 + self._pos_emb(position)
        x_BND = self._emb_dropout(x_BND)
        valid_mask = (past_ids != 0).unsqueeze(-1).to(x_BND.dtype)
        return past_lengths, x_BND * valid_mask, valid_mask


class CombinedItemAndRatingInputFeaturesPreprocessor(InputFeaturesPreprocessorModule):
    """Items and ratings interleaved, [item_0, rating_0, item_1, rating_1, ...]: twice the length, D = I."""

    positions_per_item = 2

    def __init__(
        self, max_sequence_len: int, item_embedding_dim: int, dropout_rate: float, num_ratings: int
    ) -> None:
        super().__init__()
        require_positive(
            max_sequence_len=max_sequence_len, item_embedding_dim=item_embedding_dim, num_ratings=num_ratings
        )
        require_rate(dropout_rate=dropout_rate)
        self._embedding_dim = item_embedding_dim
        self._pos_emb = torch.nn.Embedding(max_sequence_len * 2, item_embedding_dim)
        self._dropout_rate = dropout_rate
        self._emb_dropout = torch.nn.Dropout(p=dropout_rate)
        self._rating_emb = torch.nn.Embedding(num_ratings, item_embedding_dim)
        self.reset_state()

    @property
    def embedding_dim(self) -> int:
        return self._embedding_dim

    def debug_str(self) -> str:
        return f"combir_d{self._dropout_rate}"

    def reset_state(self) -> None:
        """Truncated normal, std 1 / sqrt(D)."""
        std = math.sqrt(1.0 / self._embedding_dim)
        truncated_normal(self._pos_emb.weight.data, mean=0.0, std=std)
        truncated_normal(self._rating_emb.weight.data, mean=0.0, std=std)

    def get_preprocessed_ids(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """(B, 2N) in past_ids' dtype: item and rating ids interleaved."""
        b, n = past_ids.size()
        ratings = past_payloads[RATINGS_KEY].to(past_ids.dtype)
        return torch.stack([past_ids, ratings], dim=2).reshape(b, 2 * n)

    def get_preprocessed_masks(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """(B, 2N) bool: False for both positions of item 0."""
        b, n = past_ids.size()
        return (past_ids != 0).unsqueeze(2).expand(b, n, 2).reshape(b, 2 * n)

    def forward(
        self,
        past_lengths: torch.Tensor,
        past_ids: torch.Tensor,
        past_embeddings: torch.Tensor,
        past_payloads: dict[str, torch.Tensor],
        first_positions: torch.Tensor | None = None,
    ) -> Preprocessed:
        b, n = past_ids.size()
        position = _positions(2 * n, past_ids, first_positions, self._pos_emb.num_embeddings)
        pair_BN2D = torch.stack([past_embeddings, self._rating_emb(past_payloads[RATINGS_KEY].int())], dim=2)
        x_BND = (pair_BN2D * self._embedding_dim**0.5).reshape(b, 2 * n, self._embedding_dim)
        x_BND = self._emb_dropout(x_BND + self._pos_emb(position))
        valid_mask = self.get_preprocessed_masks(past_lengths, past_ids, past_embeddings, past_payloads)
        valid_mask = valid_mask.unsqueeze(2).to(x_BND.dtype)
        return past_lengths * 2, x_BND * valid_mask, valid_mask
