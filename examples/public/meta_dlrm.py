"""Meta's DLRM: the quotient, the pooling and the initial weights of quotient-remainder tables."""

import torch
from checkout import public_module

QREmbeddingBag = public_module(
    "qr_embedding_bag", "https://github.com/facebookresearch/dlrm", "tricks"
).QREmbeddingBag
ROWS, COLLISIONS = 20_000_000, 4


if __name__ == "__main__":
    torch.manual_seed(0)
    # A row of the quotient table holds its own number.
    quotients = torch.arange(ROWS // COLLISIONS, dtype=torch.float64)[:, None]
    tables = quotients, torch.zeros(COLLISIONS, 1, dtype=torch.float64)
    bag = QREmbeddingBag(ROWS, 1, COLLISIONS, operation="add", mode="sum", _weight=tables)
    for first in (0, 2**24):
        ids = torch.arange(first, first + 2**20)
        rows = bag(ids, torch.arange(len(ids)))[:, 0]
        wrong = rows != ids // COLLISIONS
        print(f"ids from {first}: {wrong.float().mean():.0%} are looked up in another row")
    print(f"id {ids[wrong][0]}: row {rows[wrong][0]:.0f}; it belongs to row {ids[wrong][0] // COLLISIONS}")

    one = torch.tensor([[1.0]]), torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    bag = QREmbeddingBag(4, 1, COLLISIONS, operation="mult", mode="sum", _weight=one)
    ids = torch.arange(4)
    alone, together = bag(ids, ids).sum(), bag(ids, torch.tensor([0])).sum()
    print(f"a bag of four ids: {together:.0f}; the sum of their four vectors: {alone:.0f}")

    drawn = QREmbeddingBag(10_000, 16, COLLISIONS, operation="add", mode="sum").weight_q.detach()
    plain = (1 / 10_000) ** 0.5 / 3**0.5
    print(
        f"initial weights: mean {drawn.mean():.3f}, std {drawn.std():.3f}; of a plain table 0 and {plain:.4f}"
    )
