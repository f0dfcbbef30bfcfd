"""Ports of `tests.parity.hidden_models`, and faults in them."""

from __future__ import annotations

import nvtripy as tp

from tests.parity.choosing_ports import ChoosingModel, linear, normal, picked, rotated
from tests.parity.hidden_models import (
    Decoded,
    Experts,
    Gated,
    Nucleus,
    Rounded,
    Sorted,
    Suppressed,
    Timed,
    Window,
)


class ExpertsPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.gate = linear(8, 6, dtype)
        self.experts = [linear(8, 8, dtype) for _ in range(6)]
        self.out = linear(8, 2, dtype)

    def forward(self, x):
        logits = self.gate(x)
        weights, index = tp.topk(0.0 - logits if self.fault == "smallest" else tp.softmax(logits, -1), 3, 1)
        second = 2 if self.fault == "third for second" else 1
        weights, index = (
            tp.concatenate([side[:, :1], side[:, second : second + 1]], 1) for side in (weights, index)
        )
        if self.fault == "rotated":
            index = rotated(index)
        results = tp.stack([expert(x) for expert in self.experts], 1)
        return {"y": self.out(tp.sum(tp.unsqueeze(weights, -1) * picked(results, index, 6), 1))}


class DecodedPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.head = linear(8, 30, dtype)
        self.tokens = tp.Embedding(30, 6, dtype=dtype)
        self.out = linear(6, 3, dtype)

    def forward(self, x):
        logits = self.head(x)
        token = tp.argmin(logits, 1) if self.fault == "smallest" else tp.argmax(logits, 1)
        if self.fault == "second best":
            token = tp.topk(logits, 2, 1)[1][:, 1]
        if self.fault == "clamped":
            token = tp.minimum(token, tp.full_like(token, 28))
        return {"y": self.out(self.tokens(token))}


class GatedPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.gate = linear(8, 5, dtype)
        self.left = linear(8, 5, dtype)

    def forward(self, x):
        left, gate = self.left(x), tp.sigmoid(self.gate(x))
        is_left = gate < 0.5 if self.fault == "other side" else gate > 0.5
        if self.fault == "threshold":
            is_left = gate > 0.53
        return {"y": tp.where(is_left, left, 1.0 - left)}


class SortedPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.score = linear(6, 1, dtype)
        self.out = linear(6, 4, dtype)
        self.discount = tp.zeros((1, 12, 1), dtype=dtype)

    def forward(self, x):
        scores = tp.squeeze(tp.tanh(self.score(x)), -1)
        _, order = tp.topk(0.0 - scores if self.fault == "ascending" else scores, 12, 1)
        if self.fault == "swapped":
            order = tp.concatenate([order[:, 1:2], order[:, :1], order[:, 2:]], 1)
        if self.fault == "last ones swapped":
            order = tp.concatenate([order[:, :10], order[:, 11:], order[:, 10:11]], 1)
        return {"y": tp.sum(self.out(picked(x, order, 12)) * self.discount, 1)}


class TimeBiasPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.rate = linear(4, 4, dtype)
        self.table = tp.zeros((32,), dtype=dtype)

    def forward(self, x):
        rate = tp.exp(self.rate(x) * 2.0)
        seconds = tp.maximum(rate, tp.ones_like(rate))
        # A cast of positive numbers is their whole part.
        bucket = tp.cast(tp.log(seconds) / (0.31 if self.fault == "width" else 0.301), tp.int32)
        if self.fault == "next bucket":
            bucket = bucket + 1
        bucket = tp.minimum(bucket, tp.full_like(bucket, 3 if self.fault == "clamp" else 31))
        return tp.gather(self.table, 0, bucket)


class TimedPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.bias = TimeBiasPort(dtype, fault)
        self.out = linear(4, 3, dtype)

    def forward(self, x):
        return {"y": self.out(self.bias(x) + x)}


class RounderPort(tp.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, x):
        steps = 7.0 if self.fault == "steps" else 8.0
        scaled = x * steps + (0.0 if self.fault == "down" else 0.5)
        # Tripy rounds towards zero in a cast.
        whole = tp.cast(scaled + 16.0, tp.int32) - 16
        if self.fault == "towards zero":
            whole = tp.cast(x * steps, tp.int32)
        return tp.cast(whole, x.dtype) / steps


class RoundedPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.first = linear(7, 6, dtype)
        self.rounder = RounderPort(fault)
        self.out = linear(6, 3, dtype)

    def forward(self, x):
        return {"y": self.out(self.rounder(tp.tanh(self.first(x))))}


class SuppressedPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.box = linear(5, 2, dtype)
        self.score = linear(5, 1, dtype)
        self.out = linear(5, 3, dtype)

    def forward(self, x):
        box, score = tp.sigmoid(self.box(x)), tp.squeeze(tp.sigmoid(self.score(x)), -1)
        low, high = box[:, :, 0] - box[:, :, 1] * 0.1, box[:, :, 0] + box[:, :, 1] * 0.1
        end = tp.minimum(tp.unsqueeze(high, 2), tp.unsqueeze(high, 1))
        common = end - tp.maximum(tp.unsqueeze(low, 2), tp.unsqueeze(low, 1))
        one, other = tp.unsqueeze(score, 2), tp.unsqueeze(score, 1)
        better = one > other if self.fault == "worse score" else other > one
        both = tp.cast(common > (0.07 if self.fault == "threshold" else 0.05), tp.int32) * tp.cast(
            better, tp.int32
        )
        if self.fault == "all overlap":
            both = tp.cast(better, tp.int32)
        counts = tp.sum(both, -1)
        return {"y": self.out(x) * tp.unsqueeze(tp.cast(counts < 1, x.dtype), -1)}


class WindowPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.number = linear(6, 8, dtype)

    def forward(self, x):
        number = tp.tanh(self.number(x))
        below = number < (0.55 if self.fault == "upper end" else 0.5)
        above = number > (0.0 if self.fault == "lower end" else -0.25)
        inside = (
            below
            if self.fault == "upper end alone"
            else tp.cast(tp.cast(below, tp.int32) * tp.cast(above, tp.int32), tp.bool)
        )
        return {"inside": inside, "y": number * tp.cast(inside, number.dtype)}


class NucleusPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.score = linear(8, 10, dtype)

    def forward(self, x):
        scores = self.score(x)
        best = tp.topk(scores, 4, 1)[0]
        last = {"two": 1, "four": 3}.get(self.fault, 2)
        third = best[:, last : last + 1]
        outside = scores <= third if self.fault == "without the third" else scores < third
        return {"y": tp.softmax(tp.masked_fill(scores, outside, float("-inf")), -1)}


HIDDEN = {
    "hidden experts": ChoosingModel(
        Experts,
        ExpertsPort,
        lambda seed: {"x": normal(seed, 200, 8)},
        {"smallest": "out", "third for second": "out", "rotated": "out"},
    ),
    "decoded": ChoosingModel(
        Decoded,
        DecodedPort,
        lambda seed: {"x": normal(seed, 150, 8)},
        {"smallest": "tokens", "second best": "tokens", "clamped": "tokens"},
    ),
    "gated": ChoosingModel(
        Gated,
        GatedPort,
        lambda seed: {"x": normal(seed, 150, 8)},
        {"other side": "forward.output", "threshold": "forward.output"},
    ),
    "sorted": ChoosingModel(
        Sorted,
        SortedPort,
        lambda seed: {"x": normal(seed, 60, 12, 6)},
        {"ascending": "out", "swapped": "out", "last ones swapped": "out"},
    ),
    "timed": ChoosingModel(
        Timed,
        TimedPort,
        lambda seed: {"x": normal(seed, 120, 4)},
        {"width": "bias", "next bucket": "bias", "clamp": "bias"},
    ),
    "rounded": ChoosingModel(
        Rounded,
        RoundedPort,
        lambda seed: {"x": normal(seed, 120, 7)},
        {"steps": "rounder", "down": "rounder", "towards zero": "rounder"},
    ),
    "suppressed": ChoosingModel(
        Suppressed,
        SuppressedPort,
        lambda seed: {"x": normal(seed, 60, 8, 5)},
        {"worse score": "forward.output", "threshold": "forward.output", "all overlap": "forward.output"},
    ),
    "window": ChoosingModel(
        Window,
        WindowPort,
        lambda seed: {"x": normal(seed, 150, 6)},
        {"upper end": "forward.inside", "lower end": "forward.inside", "upper end alone": "forward.inside"},
    ),
    "nucleus": ChoosingModel(
        Nucleus,
        NucleusPort,
        lambda seed: {"x": normal(seed, 150, 8)},
        {"two": "forward.output", "four": "forward.output", "without the third": "forward.output"},
    ),
}
