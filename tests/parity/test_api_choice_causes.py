"""Causes in a model of two stages: in a half type, choices behind its results may fall either way."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

D, ITEMS, K, ROWS = 8, 60, 6, 96
RNG = np.random.default_rng(3)
INPUTS = {
    "x": RNG.standard_normal((ROWS, D)).astype(np.float32),
    "history": RNG.integers(0, ITEMS, (ROWS, 5)),
}


class Retrieval(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, D)
        self.user = torch.nn.Linear(D, D)

    def forward(self, x, history):
        user = self.user(x) + self.items(history).mean(1)
        return (user @ self.items.weight.T * D**-0.5).topk(K, -1)


class Ranking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, D)
        self.up = torch.nn.Linear(2 * D, 2 * D)
        self.out = torch.nn.Linear(2 * D, 1)

    def forward(self, x, top, index):
        pairs = torch.cat([x.unsqueeze(1).expand(-1, K, -1), self.items(index)], -1)
        scores = self.out(torch.nn.functional.silu(self.up(pairs))).squeeze(-1)
        scores = scores * 0.5 + torch.softmax(top, -1)
        return scores, scores.argmax(-1)


class TwoStages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.retrieval = Retrieval()
        self.ranking = Ranking()

    def forward(self, x, history):
        top, index = self.retrieval(x, history)
        scores, best = self.ranking(x, top, index)
        item, score = (torch.gather(side, 1, best.unsqueeze(-1)).squeeze(-1) for side in (index, scores))
        return {"item": item, "click": torch.sigmoid(score - 0.25)}


class RetrievalPort(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.items = tp.Embedding(ITEMS, D, dtype=dtype)
        self.user = tp.Linear(D, D, dtype=dtype)
        self.bug = bug

    def forward(self, x, history):
        rows = self.items(history)
        user = self.user(x) + (tp.sum(rows, 1) if self.bug == "sum" else tp.mean(rows, 1))
        scores = user @ tp.transpose(self.items.weight, 0, 1) * D**-0.5
        top, index = tp.topk(scores * -1.0 if self.bug == "smallest" else scores, K, 1)
        return top * -1.0 if self.bug == "smallest" else top, tp.cast(index, tp.int64)


class RankingPort(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.items = tp.Embedding(ITEMS, D, dtype=dtype)
        self.up = tp.Linear(2 * D, 2 * D, dtype=dtype)
        self.out = tp.Linear(2 * D, 1, dtype=dtype)
        self.bug = bug

    def forward(self, x, top, index):
        items = self.items(tp.cast(index, tp.int32))
        users = tp.unsqueeze(x, 1) + tp.zeros_like(items)
        hidden = self.up(tp.concatenate([items, users] if self.bug == "order" else [users, items], -1))
        scores = tp.squeeze(self.out(hidden * tp.sigmoid(hidden)), -1)
        scores = scores if self.bug == "factor" else scores * 0.5
        scores = scores + tp.softmax(top, 0 if self.bug == "axis" else -1)
        return scores, tp.cast(tp.argmax(scores, 1), tp.int64)


class TwoStagesPort(tp.Module):
    def __init__(self, dtype, bug=""):
        super().__init__()
        self.retrieval = RetrievalPort(dtype, bug)
        self.ranking = RankingPort(dtype, bug)
        self.bug = bug

    def forward(self, x, history):
        top, index = self.retrieval(x, history)
        scores, best = self.ranking(x, top, index)
        places = tp.reshape(tp.cast(tp.arange(K, dtype=tp.int32), tp.int64), (1, K))
        is_best = tp.cast(tp.unsqueeze(best, -1) == places, tp.int32)
        item = tp.cast(tp.sum(tp.cast(index, tp.int32) * is_best, 1), tp.int64)
        score = tp.sum(scores * tp.cast(is_best, scores.dtype), 1)
        return {"item": item, "click": tp.sigmoid(score if self.bug == "threshold" else score - 0.25)}


def judged(bug, precision):
    torch.manual_seed(0)
    port = lambda dtype: TwoStagesPort(dtype, bug)  # noqa: E731, a function as users write it
    return parity.compare(TwoStages(), port, INPUTS, (precision,))


def test_a_right_port_has_choices_of_its_own():
    result = judged("", "bf16")
    assert result.passed, result
    (runner,) = (own for *_, own in result.report.runner_reports() if own.runner == "tripy")
    assert any(verdict.ties for module in runner.modules for verdict in module.verdicts.values())


@pytest.mark.parametrize(
    ("bug", "place", "cause"),
    [
        ("sum", "retrieval[0]", "with sum in place of mean"),
        ("smallest", "retrieval[0]", "with largest False in place of True in topk"),
        ("order", "ranking[0]", "with operands 0 and 1 of cat exchanged"),
        ("factor", "ranking[0]", "without the step times 0.5"),
        ("axis", "ranking[0]", "with softmax over axis 0 in place of 1"),
        ("threshold", "forward.click", "without the term 0.25 in sub"),
    ],
)
def test_a_wrong_port_has_the_same_cause_in_every_precision(bug, place, cause):
    for precision in ("fp32", "bf16"):
        text = str(judged(bug, precision))
        assert f"FAIL at {place}" in text
        assert f"cause: fits the reference {cause}" in text, text
