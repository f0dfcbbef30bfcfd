"""SASRec (Kang and McAuley, 2018) with PyTorch's own attention: a causal mask, and a mask of padding.

    PYTHONPATH=. python examples/sasrec.py

`nn.MultiheadAttention` has one matrix for queries, keys and values, and never calls its `out_proj`. The port
has a layer for each. Histories end in padding, so that every row of attention sees an item.
"""

from __future__ import annotations

import math

import numpy as np
import nvtripy as tp
import torch

import parity

ITEMS, WIDTH, HEADS, LAYERS, LENGTH, PADDING = 50, 16, 2, 2, 12, 0


class Feed(torch.nn.Module):
    """The same two layers at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, N, D) from (B, N, D)."""
        return self.second(torch.relu(self.first(x)))


class Block(torch.nn.Module):
    """Attention, whose queries alone are normalized, and the two layers; each with its input added."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = torch.nn.LayerNorm(WIDTH, eps=1e-8)
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.2, batch_first=True)
        self.feed_norm = torch.nn.LayerNorm(WIDTH, eps=1e-8)
        self.feed = Feed()
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, is_padding: torch.Tensor, is_future: torch.Tensor) -> torch.Tensor:
        """(B, N, D) from (B, N, D) and the masks (B, N) and (N, N), true where attention is not allowed."""
        queries = self.attention_norm(x)
        mixed, _ = self.attention(
            queries, x, x, key_padding_mask=is_padding, attn_mask=is_future, need_weights=False
        )
        x = self.feed_norm(queries + mixed)
        return x + self.dropout(self.feed(x))


class SasRec(torch.nn.Module):
    """Scores of candidates behind every position of a history."""

    def __init__(self) -> None:
        super().__init__()
        self.item_embedding = torch.nn.Embedding(ITEMS, WIDTH, padding_idx=PADDING)
        self.position_embedding = torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.last_norm = torch.nn.LayerNorm(WIDTH, eps=1e-8)

    def forward(self, items: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """(B, N, C) from the items of histories (B, N), 0 behind their ends, and candidates (B, C)."""
        positions = torch.arange(LENGTH, device=items.device)
        x = self.item_embedding(items) * math.sqrt(WIDTH) + self.position_embedding(positions)
        is_future = positions[:, None] < positions[None, :]
        for block in self.blocks:
            x = block(x, items == PADDING, is_future)
        return self.last_norm(x) @ self.item_embedding(candidates).transpose(1, 2)


class FeedPort(tp.Module):
    """`Feed` in Tripy."""

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.first = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.second = tp.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(B, N, D) from (B, N, D)."""
        return self.second(tp.relu(self.first(x)))


class AttentionPort(tp.Module):
    """`nn.MultiheadAttention` in Tripy, as `Block` calls it."""

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.query = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.key = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.value = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.out_proj = tp.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(
        self,
        query: tp.Tensor,
        key: tp.Tensor,
        value: tp.Tensor,
        key_padding_mask: tp.Tensor,
        attn_mask: tp.Tensor,
    ) -> tp.Tensor:
        """(B, N, D) from (B, N, D) and the masks (B, N) and (N, N), true where attention is not allowed."""
        q, k, v = (
            tp.transpose(tp.reshape(x, (-1, LENGTH, HEADS, WIDTH // HEADS)), 1, 2)
            for x in (self.query(query), self.key(key), self.value(value))
        )
        scores = q @ tp.transpose(k, 2, 3) / math.sqrt(WIDTH // HEADS)
        is_hidden = tp.reshape(key_padding_mask, (-1, 1, 1, LENGTH)) | attn_mask
        # The least number of float16, near enough to minus infinity for a softmax.
        scores = tp.where(is_hidden, tp.full_like(scores, -65504.0), scores)
        mixed = tp.transpose(tp.softmax(scores, dim=-1) @ v, 1, 2)
        return self.out_proj(tp.reshape(mixed, (-1, LENGTH, WIDTH)))


class BlockPort(tp.Module):
    """`Block` in Tripy."""

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.attention_norm = tp.LayerNorm(WIDTH, eps=1e-8, dtype=dtype)
        self.attention = AttentionPort(dtype)
        self.feed_norm = tp.LayerNorm(WIDTH, eps=1e-8, dtype=dtype)
        self.feed = FeedPort(dtype)

    def forward(self, x: tp.Tensor, is_padding: tp.Tensor, is_future: tp.Tensor) -> tp.Tensor:
        """(B, N, D) from (B, N, D) and the masks (B, N) and (N, N), true where attention is not allowed."""
        queries = self.attention_norm(x)
        mixed = self.attention(queries, x, x, is_padding, is_future)
        x = self.feed_norm(queries + mixed)
        return x + self.feed(x)


class SasRecPort(tp.Module):
    """`SasRec` in Tripy."""

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.item_embedding = tp.Embedding(ITEMS, WIDTH, dtype=dtype)
        self.position_embedding = tp.Embedding(LENGTH, WIDTH, dtype=dtype)
        self.blocks = [BlockPort(dtype) for _ in range(LAYERS)]
        self.last_norm = tp.LayerNorm(WIDTH, eps=1e-8, dtype=dtype)

    def forward(self, items: tp.Tensor, candidates: tp.Tensor) -> tp.Tensor:
        """(B, N, C) from the items of histories (B, N), 0 behind their ends, and candidates (B, C)."""
        positions = tp.iota((LENGTH,), dtype=tp.int32)
        x = self.item_embedding(items) * math.sqrt(WIDTH) + self.position_embedding(positions)
        is_future = self.is_future(tp.unsqueeze(positions, 1), tp.unsqueeze(positions, 0))
        for block in self.blocks:
            x = block(x, items == PADDING, is_future)
        return self.last_norm(x) @ tp.transpose(self.item_embedding(candidates), 1, 2)

    @staticmethod
    def is_future(query: tp.Tensor, key: tp.Tensor) -> tp.Tensor:
        """Whether the position of a key lies behind that of a query."""
        return query < key


def histories(rows: int = 24) -> dict[str, np.ndarray]:
    """Histories of 1 to `LENGTH` items, and five candidates a row."""
    random = np.random.default_rng(0)
    lengths = np.resize(np.arange(LENGTH, 0, -1), rows)
    items = random.integers(1, ITEMS, (rows, LENGTH), np.int32)
    items[np.arange(LENGTH) >= lengths[:, None]] = PADDING
    return {"items": items, "candidates": random.integers(1, ITEMS, (rows, 5), np.int32)}


PARTS = enumerate(("query", "key", "value"))
WEIGHTS = {
    f"blocks.*.attention.{name}.{kind}": parity.From(f"blocks.*.attention.in_proj_{kind}", split=(part, 3))
    for part, name in PARTS
    for kind in ("weight", "bias")
}


def main(port: type[SasRecPort] = SasRecPort) -> parity.Result:
    """Compare both in two precisions. Scores behind the end of a history do not count."""
    return parity.compare(
        SasRec(),
        port,
        inputs=histories(),
        weights=WEIGHTS,
        mask="items",
        dynamic={"items": {0: 1}, "candidates": {0: 1}},
    )


if __name__ == "__main__":
    result = main()
    print(result)
    result.raise_if_failed()
