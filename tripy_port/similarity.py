"""Similarity of user states and items.

Counterpart of reference/similarity.py.

Legend: B batch, X items, D embedding, r queries an item set.
"""

from __future__ import annotations

import abc

import nvtripy as tp


class SimilarityModule(tp.Module):
    """Interface: scores items for queries."""

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name."""

    @abc.abstractmethod
    def forward(self, query_embeddings: tp.Tensor, item_embeddings: tp.Tensor) -> tp.Tensor:
        """(B, D) and (1 or B, X, D) -> (B, X)."""


class DotProductSimilarity(SimilarityModule):
    """Inner product."""

    def debug_str(self) -> str:
        return "dp"

    def forward(self, query_embeddings: tp.Tensor, item_embeddings: tp.Tensor) -> tp.Tensor:
        """Three broadcast forms, all of them one grouped product.

        A graph with dynamic shapes cannot choose by batch size. A shared item set is one group of B queries;
        one item set a query is B groups of one query.

        Args:
            query_embeddings: (B, D), or (B * r, D) with r queries in a row for each item set.
            item_embeddings: (1, X, D), shared by all queries, or (B, X, D).

        Returns:
            (B, X) or (B * r, X).
        """
        num_sets, num_items, dim = item_embeddings.shape
        grouped = tp.reshape(query_embeddings, (num_sets, -1, dim))
        return tp.reshape(grouped @ tp.transpose(item_embeddings, 1, 2), (-1, num_items))


class SequentialEncoderWithLearnedSimilarityModule(tp.Module):
    """A sequence encoder together with the function that scores items against its states."""

    def __init__(self, ndp_module: SimilarityModule) -> None:
        super().__init__()
        self._ndp_module = ndp_module

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name of the encoder."""

    @abc.abstractmethod
    def get_item_embeddings(self, item_ids: tp.Tensor) -> tp.Tensor:
        """(...,) int -> (..., D)."""

    def similarity_fn(
        self,
        query_embeddings: tp.Tensor,
        item_ids: tp.Tensor,
        item_embeddings: tp.Tensor | None = None,
    ) -> tp.Tensor:
        """Score items.

        Args:
            query_embeddings: (B, D).
            item_ids: (1, X), shared by the batch, or (B, X) int.
            item_embeddings: (1 or B, X, D); looked up from item_ids when not given.

        Returns:
            (B, X).
        """
        assert query_embeddings.rank == 2, f"query_embeddings is (B, D), not of rank {query_embeddings.rank}"
        assert item_ids.rank == 2, f"item_ids is (1 or B, X), not of rank {item_ids.rank}"
        if item_embeddings is None:
            item_embeddings = self.get_item_embeddings(item_ids)
        assert item_embeddings.rank == 3, (
            f"item_embeddings is (1 or B, X, D), not of rank {item_embeddings.rank}"
        )
        return self._ndp_module(query_embeddings, item_embeddings)
