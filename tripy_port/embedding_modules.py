"""Item embeddings. Counterpart of reference/embedding_modules.py.

The lookup is ``forward`` here, so that it can be observed as a module; the public name calls it.
"""

from __future__ import annotations

import abc

import nvtripy as tp

from tripy_port.validation import require_positive


class EmbeddingModule(tp.Module):
    """Interface: item ids to vectors."""

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name."""

    @property
    @abc.abstractmethod
    def item_embedding_dim(self) -> int:
        """Width of an item's vector."""

    @abc.abstractmethod
    def forward(self, item_ids: tp.Tensor) -> tp.Tensor:
        """(...,) int in [0, num_items] -> (..., item_embedding_dim). 0 is the padding item."""

    def get_item_embeddings(self, item_ids: tp.Tensor) -> tp.Tensor:
        """Same as ``forward``."""
        return self(item_ids)


class LocalEmbeddingModule(EmbeddingModule):
    """One row for each item."""

    def __init__(self, num_items: int, item_embedding_dim: int, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        require_positive(num_items=num_items, item_embedding_dim=item_embedding_dim)
        self._item_embedding_dim = item_embedding_dim
        self._item_emb = tp.Embedding(num_items + 1, item_embedding_dim, dtype=dtype)

    def debug_str(self) -> str:
        return f"local_emb_d{self._item_embedding_dim}"

    @property
    def item_embedding_dim(self) -> int:
        return self._item_embedding_dim

    def forward(self, item_ids: tp.Tensor) -> tp.Tensor:
        return self._item_emb(item_ids)


class CategoricalEmbeddingModule(EmbeddingModule):
    """One row for each category; items of a category share it.

    Args:
        num_items: the table keeps num_items + 1 rows, as in the public code, so that any map fits.
        item_id_to_category_id: (num_items,) int64 in [0, num_items), the category of item i + 1 at index i.
            The padding item 0 takes the category of item 1, as in the public code. Its range is the caller's
            care: to look at the values would start the runtime.
    """

    def __init__(
        self,
        num_items: int,
        item_embedding_dim: int,
        item_id_to_category_id: tp.Tensor,
        dtype: tp.dtype = tp.float32,
    ) -> None:
        super().__init__()
        require_positive(num_items=num_items, item_embedding_dim=item_embedding_dim)
        self._item_embedding_dim = item_embedding_dim
        self._item_emb = tp.Embedding(num_items + 1, item_embedding_dim, dtype=dtype)
        self._item_id_to_category_id = item_id_to_category_id

    def debug_str(self) -> str:
        return f"cat_emb_d{self._item_embedding_dim}"

    @property
    def item_embedding_dim(self) -> int:
        return self._item_embedding_dim

    def forward(self, item_ids: tp.Tensor) -> tp.Tensor:
        category_ids = tp.gather(self._item_id_to_category_id, 0, tp.maximum(item_ids - 1, 0))
        return self._item_emb(category_ids + 1)
