"""Item embeddings. Source: generative_recommenders/research/modeling/sequential/embedding_modules.py.

The lookup is ``forward`` here, so that it can be observed as a module; the public name calls it.
"""

from __future__ import annotations

import abc

import torch

from reference.initialization import truncated_normal
from reference.validation import require, require_positive


class EmbeddingModule(torch.nn.Module):
    """Interface: item ids to vectors."""

    @abc.abstractmethod
    def debug_str(self) -> str:
        """Short name."""

    @property
    @abc.abstractmethod
    def item_embedding_dim(self) -> int:
        """Width of an item's vector."""

    @abc.abstractmethod
    def forward(self, item_ids: torch.Tensor) -> torch.Tensor:
        """(...,) int in [0, num_items] -> (..., item_embedding_dim). 0 is the padding item."""

    def get_item_embeddings(self, item_ids: torch.Tensor) -> torch.Tensor:
        """Same as ``forward``."""
        return self(item_ids)


class LocalEmbeddingModule(EmbeddingModule):
    """One row for each item. Row 0 is drawn like the others, as in the public code."""

    def __init__(self, num_items: int, item_embedding_dim: int) -> None:
        super().__init__()
        require_positive(num_items=num_items, item_embedding_dim=item_embedding_dim)
        self._item_embedding_dim = item_embedding_dim
        self._item_emb = torch.nn.Embedding(num_items + 1, item_embedding_dim, padding_idx=0)
        self.reset_params()

    def reset_params(self) -> None:
        """Truncated normal, std 0.02."""
        truncated_normal(self._item_emb.weight.data, mean=0.0, std=0.02)

    def debug_str(self) -> str:
        return f"local_emb_d{self._item_embedding_dim}"

    @property
    def item_embedding_dim(self) -> int:
        return self._item_embedding_dim

    def forward(self, item_ids: torch.Tensor) -> torch.Tensor:
        return self._item_emb(item_ids)


class CategoricalEmbeddingModule(EmbeddingModule):
    """One row for each category; items of a category share it.

    Args:
        num_items: the table keeps num_items + 1 rows, as in the public code, so that any map fits.
        item_id_to_category_id: (num_items,) int in [0, num_items), the category of item i + 1 at index i. The
            padding item 0 takes the category of item 1, as in the public code.
    """

    def __init__(self, num_items: int, item_embedding_dim: int, item_id_to_category_id: torch.Tensor) -> None:
        super().__init__()
        require_positive(num_items=num_items, item_embedding_dim=item_embedding_dim)
        shape = tuple(item_id_to_category_id.shape)
        require(shape == (num_items,), "item_id_to_category_id.shape", shape, f"must be ({num_items},)")
        lowest, highest = int(item_id_to_category_id.min()), int(item_id_to_category_id.max())
        require(
            0 <= lowest and highest < num_items,
            "item_id_to_category_id range",
            (lowest, highest),
            f"categories lie in [0, {num_items - 1}]",
        )
        self._item_embedding_dim = item_embedding_dim
        self._item_emb = torch.nn.Embedding(num_items + 1, item_embedding_dim, padding_idx=0)
        self.register_buffer("_item_id_to_category_id", item_id_to_category_id)
        self.reset_params()

    def reset_params(self) -> None:
        """Truncated normal, std 0.02."""
        truncated_normal(self._item_emb.weight.data, mean=0.0, std=0.02)

    def debug_str(self) -> str:
        return f"cat_emb_d{self._item_embedding_dim}"

    @property
    def item_embedding_dim(self) -> int:
        return self._item_embedding_dim

    def forward(self, item_ids: torch.Tensor) -> torch.Tensor:
        category_ids = self._item_id_to_category_id[(item_ids - 1).clamp(min=0)]
        return self._item_emb(category_ids + 1)
