"""Small PyTorch models whose choices no integer shows."""

from __future__ import annotations

import torch
from torch import nn


class Experts(nn.Module):
    """Two experts a row, chosen in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 6)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        weights, index = torch.softmax(self.gate(x), -1).topk(2, -1)
        results = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = torch.gather(results, 1, index[..., None].expand(-1, -1, 8))
        return {"y": self.out((weights[..., None] * chosen).sum(1))}


class Decoded(nn.Module):
    """The embedding of the best token."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 30)
        self.tokens = nn.Embedding(30, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return {"y": self.out(self.tokens(self.head(x).argmax(-1)))}


class Gated(nn.Module):
    """One of two sides, by a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 5)
        self.left = nn.Linear(8, 5)

    def forward(self, x):
        left = self.left(x)
        return {"y": torch.where(torch.sigmoid(self.gate(x)) > 0.5, left, 1.0 - left)}


class Sorted(nn.Module):
    """Items in the order of a score, in different weights."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 1)
        self.out = nn.Linear(6, 4)
        self.register_buffer("discount", 1.0 / torch.arange(1.0, 13.0).reshape(1, 12, 1))

    def forward(self, x):
        order = torch.tanh(self.score(x)).squeeze(-1).argsort(-1, descending=True)
        ranked = torch.gather(x, 1, order[..., None].expand(-1, -1, 6))
        return {"y": (self.out(ranked) * self.discount).sum(1)}


class TimeBias(nn.Module):
    """A learned number for each bucket of a time on a logarithmic scale."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(32))

    def forward(self, x):
        seconds = torch.exp(2.0 * self.rate(x)).clamp(min=1.0)
        bucket = torch.floor(torch.log(seconds) / 0.301).long().clamp(0, 31)
        return self.table[bucket]


class Timed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = TimeBias()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return {"y": self.out(self.bias(x) + x)}


class Rounder(nn.Module):
    def forward(self, x):
        return torch.round(x * 8.0) / 8.0


class Rounded(nn.Module):
    """Numbers in steps of an eighth."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 6)
        self.rounder = Rounder()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return {"y": self.out(self.rounder(torch.tanh(self.first(x))))}


class Suppressed(nn.Module):
    """Intervals, without those that overlap one of a better score."""

    def __init__(self) -> None:
        super().__init__()
        self.box = nn.Linear(5, 2)
        self.score = nn.Linear(5, 1)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        box, score = torch.sigmoid(self.box(x)), torch.sigmoid(self.score(x)).squeeze(-1)
        low, high = box[..., 0] - 0.1 * box[..., 1], box[..., 0] + 0.1 * box[..., 1]
        common = torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])
        overlaps = common > 0.05
        overlaps &= score[:, None] > score[:, :, None]
        return {"y": self.out(x) * (~overlaps.any(-1)).to(x.dtype)[..., None]}


class Window(nn.Module):
    """Numbers in a window, as a mask of two comparisons."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Linear(6, 8)

    def forward(self, x):
        number = torch.tanh(self.number(x))
        inside = number > -0.25
        inside &= number < 0.5
        return {"inside": inside, "y": number * inside}


class Nucleus(nn.Module):
    """A softmax over the three best scores, by the third one as a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 10)

    def forward(self, x):
        scores = self.score(x)
        third = scores.topk(3, -1)[0][:, -1:]
        return {"y": torch.softmax(scores.masked_fill(scores < third, -torch.inf), -1)}
