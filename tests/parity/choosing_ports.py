"""Ports of `tests.parity.choosing_models`, and faults in them.

Legend: B rows, K chosen items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import nvtripy as tp
import torch
from torch import nn

from tests.parity.choosing_models import Beam, Buckets, Experts, Greedy, Quantizer, Ranking, Recommender


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(inputs: int, outputs: int, dtype: tp.dtype) -> tp.Linear:
    return tp.Linear(inputs, outputs, dtype=dtype)


def picked(x_BND: tp.Tensor, index_BK: tp.Tensor, size: int) -> tp.Tensor:
    """Rows of `x_BND` by products with zeros and ones."""
    numbers = tp.reshape(tp.arange(size, dtype=tp.int32), (1, 1, size))
    return tp.cast(tp.unsqueeze(index_BK, -1) == numbers, x_BND.dtype) @ x_BND


def rotated(index_BK: tp.Tensor) -> tp.Tensor:
    return tp.concatenate([index_BK[:, 1:], index_BK[:, :1]], 1)


def long(index: tp.Tensor) -> tp.Tensor:
    return tp.cast(index, tp.int64)


class RecommenderPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.user = linear(8, 12, dtype)
        self.items = tp.Embedding(60, 12, dtype=dtype)
        self.out = linear(12, 3, dtype)
        self.ids = tp.zeros((60,), dtype=tp.int64)

    def forward(self, x):
        logits = self.user(x) @ tp.transpose(self.items.weight, 0, 1)
        scores = tp.softmax(logits, 0 if self.fault == "other axis" else -1)
        top, index = tp.topk(scores, 6, 1)
        if self.fault == "sixth for fifth":
            index = tp.concatenate([index[:, :4], index[:, 5:6]], 1)
        else:
            index = index[:, :5]
        if self.fault == "rotated":
            index = rotated(index)
        used = rotated(index) if self.fault == "other embeddings" else index
        return {"ids": tp.gather(self.ids, 0, index), "top": top[:, :5], "y": self.out(self.items(used))}


class RouterPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.gate = linear(8, 6, dtype)

    def forward(self, x):
        logits = self.gate(x)
        weights, index = tp.topk(tp.softmax(logits, -1), 3, 1)
        second = 2 if self.fault == "third for second" else 1
        weights, index = (
            tp.concatenate([side[:, :1], side[:, second : second + 1]], 1) for side in (weights, index)
        )
        if self.fault == "rotated":
            index = rotated(index)
        if self.fault == "clamped":
            index = tp.minimum(index, tp.full_like(index, 4))
        return weights / tp.sum(weights, -1, keepdim=True), long(index)


class ExpertsPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.router = RouterPort(dtype, fault)
        self.experts = [linear(8, 8, dtype) for _ in range(6)]
        self.out = linear(8, 2, dtype)

    def forward(self, x):
        weights, index = self.router(x)
        index = tp.cast(index, tp.int32)
        if self.fault == "other experts":
            index = rotated(index)
        results = tp.stack([expert(x) for expert in self.experts], 1)
        return self.out(tp.sum(tp.unsqueeze(weights, -1) * picked(results, index, 6), 1))


class GreedyPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.tokens = tp.Embedding(40, 10, dtype=dtype)
        self.mix = linear(10, 10, dtype)
        self.head = linear(10, 40, dtype)

    def forward(self, ids):
        state, tokens = tp.mean(self.tokens(ids), 1), []
        for step in range(3):
            logits = self.head(tp.tanh(self.mix(state)))
            token = tp.argmin(logits, 1) if self.fault == "smallest" else tp.argmax(logits, 1)
            if self.fault == "second best" and step == 1:
                token = tp.topk(logits, 2, 1)[1][:, 1]
            tokens.append(token)
            state = state * 0.5 + self.tokens(tokens[0] if self.fault == "first token" else token)
        return {"tokens": long(tp.stack(tokens, 1)), "state": state}


class RankingPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.score = linear(6, 1, dtype)
        self.out = linear(6, 4, dtype)

    def forward(self, x):
        scores = tp.squeeze(tp.sigmoid(self.score(x)), -1)
        _, order = tp.topk(0.0 - scores if self.fault == "ascending" else scores, 20, 1)
        if self.fault == "swapped":
            order = tp.concatenate([order[:, 1:2], order[:, :1], order[:, 2:]], 1)
        if self.fault == "repeated":
            order = tp.concatenate([order[:, :1], order[:, :19]], 1)
        used = rotated(order) if self.fault == "other rows" else order
        return {"order": long(order), "y": self.out(picked(x, used, 20))}


class BucketsPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.number = linear(5, 4, dtype)
        self.table = tp.Embedding(17, 6, dtype=dtype)
        self.edges = tp.zeros((16,), dtype=dtype)

    def forward(self, x):
        number = tp.tanh(self.number(x)) * 2.0
        edges = tp.reshape(self.edges, (1, 1, 16))[:, :, 1 if self.fault == "an edge less" else 0 :]
        bucket = tp.sum(tp.cast(tp.unsqueeze(number, -1) > edges, tp.int32), -1)
        used = tp.maximum(bucket - 1, tp.zeros_like(bucket)) if self.fault == "other row" else bucket
        level = tp.cast(number * 4.0, tp.int32)
        if self.fault != "truncated":
            level = level - tp.cast(tp.cast(level, number.dtype) > number * 4.0, tp.int32)
        high = number > (0.3 if self.fault == "threshold" else 0.25)
        return {"bucket": long(bucket), "level": long(level), "high": high, "y": self.table(used)}


class BeamPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.tokens = tp.Embedding(12, 8, dtype=dtype)
        self.cell = linear(8, 8, dtype)
        self.head = linear(8, 12, dtype)

    def _scores(self, state):
        logits = self.head(state)
        logits = logits - tp.max(logits, -1, keepdim=True)
        return logits - tp.log(tp.sum(tp.exp(logits), -1, keepdim=True))

    def forward(self, x):
        state = tp.tanh(self.cell(x))
        score, first = tp.topk(self._scores(state), 3, 1)
        if self.fault == "rotated":
            first = rotated(first)
        states = tp.tanh(self.cell(tp.unsqueeze(state, 1) + self.tokens(first)))
        total = self._scores(states)
        if self.fault != "no first score":
            total = tp.unsqueeze(score, -1) + total
        best, flat = tp.topk(tp.flatten(total, 1), 3, 1)
        parent = flat / 12
        second = flat - parent * 12
        used = tp.zeros_like(parent) if self.fault == "first parent" else parent
        last = picked(states, used, 3) + self.tokens(second)
        indices = {"first": long(first), "parent": long(parent), "second": long(second)}
        return {**indices, "best": best, "last": last}


class CodebookPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.codes = tp.zeros((32, 6), dtype=dtype)

    def forward(self, z):
        apart = tp.unsqueeze(z, 1) - tp.unsqueeze(self.codes, 0)
        apart = tp.sum(apart * apart, -1)
        if self.fault == "products":
            apart = 0.0 - z @ tp.transpose(self.codes, 0, 1)
        index = tp.argmax(apart, 1) if self.fault == "farthest" else tp.argmin(apart, 1)
        used = tp.minimum(index + 1, tp.full_like(index, 31)) if self.fault == "next code" else index
        return tp.gather(self.codes, 0, used), long(index)


class QuantizerPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.encoder = linear(9, 6, dtype)
        self.book = CodebookPort(dtype, fault)
        self.decoder = linear(6, 9, dtype)

    def forward(self, x):
        code, index = self.book(self.encoder(x))
        return self.decoder(code), index


@dataclass(frozen=True)
class ChoosingModel:
    """A model, its port by type and fault, inputs by seed, and faults with the taps that show them."""

    reference: Callable[[], nn.Module]
    port: Callable[[tp.dtype, str], tp.Module]
    inputs: Callable[[int], Mapping[str, torch.Tensor]]
    faults: Mapping[str, str]


MODELS = {
    "recommender": ChoosingModel(
        Recommender,
        RecommenderPort,
        lambda seed: {"x": normal(seed, 64, 8)},
        {
            "other axis": "items",
            "sixth for fifth": "items",
            "rotated": "items",
            "other embeddings": "items",
        },
    ),
    "experts": ChoosingModel(
        Experts,
        ExpertsPort,
        lambda seed: {"x": normal(seed, 200, 8)},
        {
            "third for second": "router[0]",
            "rotated": "router[1]",
            "clamped": "router[1]",
            "other experts": "out",
        },
    ),
    "greedy": ChoosingModel(
        Greedy,
        GreedyPort,
        lambda seed: {"ids": normal(seed, 48, 5).mul(1e4).long() % 40},
        {"smallest": "tokens@1", "second best": "tokens@2", "first token": "tokens@2"},
    ),
    "ranking": ChoosingModel(
        Ranking,
        RankingPort,
        lambda seed: {"x": normal(seed, 24, 20, 6)},
        {"ascending": "out", "swapped": "out", "repeated": "out", "other rows": "out"},
    ),
    "buckets": ChoosingModel(
        Buckets,
        BucketsPort,
        lambda seed: {"x": normal(seed, 64, 5)},
        {
            "an edge less": "table",
            "other row": "table",
            "truncated": "forward.level",
            "threshold": "forward.high",
        },
    ),
    "beam": ChoosingModel(
        Beam,
        BeamPort,
        lambda seed: {"x": normal(seed, 40, 8)},
        {"rotated": "tokens", "no first score": "tokens@1", "first parent": "forward.last"},
    ),
    "quantizer": ChoosingModel(
        Quantizer,
        QuantizerPort,
        lambda seed: {"x": normal(seed, 100, 9)},
        {"products": "book[0]", "farthest": "book[0]", "next code": "book[0]"},
    ),
}
