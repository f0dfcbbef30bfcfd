"""Similarity of user states and items.

Source: generative_recommenders/research/rails/similarities/ (module.py, dot_product_similarity_fn.py) and
research/modeling/similarity_module.py. The public modules return (similarity, auxiliary losses); ours return
the similarity, since a dot product has no auxiliary loss.

Legend: B batch, X items, D embedding, r queries an item set.
"""

from __future__ import annotations

import abc

import torch


class SimilarityModule(torch.nn.Module):
    """Interface: scores items for queries."""

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name."""

    @abc.abstractmethod
    def forward(self, query_embeddings: torch.Tensor, item_embeddings: torch.Tensor) -> torch.Tensor:
        """(B, D) and (1 or B, X, D) -> (B, X)."""


class DotProductSimilarity(SimilarityModule):
    """Inner product."""

    def debug_str(self) -> str:
        return "dp"

    def forward(self, query_embeddings: torch.Tensor, item_embeddings: torch.Tensor) -> torch.Tensor:
        """Three broadcast forms; the batch sizes select one.

        Args:
            query_embeddings: (B, D), or (B * r, D) with r queries in a row for each item set.
            item_embeddings: (1, X, D), shared by all queries, or (B, X, D).

        Returns:
            (B, X) or (B * r, X).
        """
        num_sets, num_items, dim = item_embeddings.size()
        if num_sets == 1:
            return query_embeddings @ item_embeddings.squeeze(0).t()
        if query_embeddings.size(0) == num_sets:
            return torch.bmm(item_embeddings, query_embeddings.unsqueeze(2)).squeeze(2)
        assert query_embeddings.size(0) % num_sets == 0, (
            f"{query_embeddings.size(0)} queries do not divide among {num_sets} item sets"
        )
        grouped = query_embeddings.reshape(num_sets, -1, dim)
        return torch.bmm(grouped, item_embeddings.transpose(1, 2)).reshape(-1, num_items)


class SequentialEncoderWithLearnedSimilarityModule(torch.nn.Module):
    """A sequence encoder together with the function that scores items against its states."""

    def __init__(self, ndp_module: SimilarityModule) -> None:
        super().__init__()
        self._ndp_module = ndp_module

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name of the encoder."""

    @abc.abstractmethod
    def get_item_embeddings(self, item_ids: torch.Tensor) -> torch.Tensor:
        """(...,) int -> (..., D)."""

    def similarity_fn(
        self,
        query_embeddings: torch.Tensor,
        item_ids: torch.Tensor,
        item_embeddings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Score items.

        Args:
            query_embeddings: (B, D).
            item_ids: (1, X), shared by the batch, or (B, X) int.
            item_embeddings: (1 or B, X, D); looked up from item_ids when not given.

        Returns:
            (B, X).
        """
        assert query_embeddings.dim() == 2, f"query_embeddings is (B, D), not {tuple(query_embeddings.shape)}"
        assert item_ids.dim() == 2, f"item_ids is (1 or B, X), not {tuple(item_ids.shape)}"
        if item_embeddings is None:
            item_embeddings = self.get_item_embeddings(item_ids)
        assert item_embeddings.dim() == 3, (
            f"item_embeddings is (1 or B, X, D), not {tuple(item_embeddings.shape)}"
        )
        return self._ndp_module(query_embeddings, item_embeddings)
