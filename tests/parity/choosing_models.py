"""Small PyTorch models whose results depend on choices."""

from __future__ import annotations

import torch
from torch import nn


class Recommender(nn.Module):
    """The best items of a catalogue, and what follows from their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Linear(8, 12)
        self.items = nn.Embedding(60, 12)
        self.out = nn.Linear(12, 3)
        self.register_buffer("ids", torch.arange(60).flip(0) * 7 + 1000)

    def forward(self, x):
        scores = torch.softmax(self.user(x) @ self.items.weight.T, -1)
        top, index = scores.topk(5, -1)
        return {"ids": self.ids[index], "top": top, "y": self.out(self.items(index))}


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 6)

    def forward(self, x):
        weights, index = torch.softmax(self.gate(x), -1).topk(2, -1)
        return weights / weights.sum(-1, keepdim=True), index


class Experts(nn.Module):
    """Two experts a row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        weights, index = self.router(x)
        results = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = torch.gather(results, 1, index[..., None].expand(-1, -1, 8))
        return self.out((weights[..., None] * chosen).sum(1))


class Greedy(nn.Module):
    """Three tokens, each from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 10)
        self.mix = nn.Linear(10, 10)
        self.head = nn.Linear(10, 40)

    def forward(self, ids):
        state, tokens = self.tokens(ids).mean(1), []
        for _ in range(3):
            tokens.append(self.head(torch.tanh(self.mix(state))).argmax(-1))
            state = state * 0.5 + self.tokens(tokens[-1])
        return {"tokens": torch.stack(tokens, 1), "state": state}


class Ranking(nn.Module):
    """All items by a score."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 1)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        order = torch.sigmoid(self.score(x)).squeeze(-1).argsort(-1, descending=True)
        return {"order": order, "y": self.out(torch.gather(x, 1, order[..., None].expand(-1, -1, 6)))}


class Buckets(nn.Module):
    """Buckets, whole parts and a comparison of computed numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Linear(5, 4)
        self.table = nn.Embedding(17, 6)
        self.register_buffer("edges", torch.linspace(-1.5, 1.5, 16))

    def forward(self, x):
        number = torch.tanh(self.number(x)) * 2.0
        bucket = torch.bucketize(number, self.edges)
        level = torch.floor(number * 4.0).to(torch.int64)
        return {"bucket": bucket, "level": level, "high": number > 0.25, "y": self.table(bucket)}


class Beam(nn.Module):
    """Two steps of a beam of three, over twelve tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 8)
        self.cell = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, x):
        state = torch.tanh(self.cell(x))
        score, first = torch.log_softmax(self.head(state), -1).topk(3, -1)
        states = torch.tanh(self.cell(state[:, None] + self.tokens(first)))
        total = score[..., None] + torch.log_softmax(self.head(states), -1)
        best, flat = total.flatten(1).topk(3, -1)
        parent, second = flat // 12, flat % 12
        last = torch.gather(states, 1, parent[..., None].expand(-1, -1, 8)) + self.tokens(second)
        return {"first": first, "parent": parent, "second": second, "best": best, "last": last}


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(32, 6))

    def forward(self, z):
        index = (z[:, None] - self.codes).square().sum(-1).argmin(-1)
        return self.codes[index], index


class Quantizer(nn.Module):
    """The nearest codeword."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(9, 6)
        self.book = Codebook()
        self.decoder = nn.Linear(6, 9)

    def forward(self, x):
        code, index = self.book(self.encoder(x))
        return self.decoder(code), index
