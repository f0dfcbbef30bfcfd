"""Live models whose port returns another tensor of the model in an output's place: the cause names it."""

import nvtripy as tp
import pytest
import torch

import parity

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(4))


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(6, 6)
        self.b = torch.nn.Linear(6, 6)

    def forward(self, x):
        a = torch.tanh(self.a(x))
        return a, self.b(a)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()

    def forward(self, x):
        a, b = self.pair(x)
        return {
            "h": torch.relu(a) - b,
            "c": torch.sigmoid(b),
            "best": b.argmax(1),
            "first": a.argmax(1),
        }


class PairPort(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.a = tp.Linear(6, 6, dtype=dtype)
        self.b = tp.Linear(6, 6, dtype=dtype)
        self.bug = bug

    def forward(self, x):
        a = tp.tanh(self.a(x))
        b = self.b(a)
        return (b, a) if self.bug == "results" else (a, b)


class Port(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.pair = PairPort(dtype, bug)
        self.bug = bug

    def forward(self, x):
        a, b = self.pair(x)
        h, c = tp.relu(a) - b, tp.sigmoid(b)
        if self.bug == "outputs":
            h, c = c, h
        if self.bug == "module":
            h = b
        if self.bug == "unknown":
            h = tp.relu(a) - b * b
        best = tp.cast(tp.argmax(b, dim=1), tp.int64)
        first = tp.cast(tp.argmax(a, dim=1), tp.int64)
        return {"h": h, "c": c, "best": first if self.bug == "integers" else best, "first": first}


def result_with(bug):
    return parity.compare(Model(), lambda dtype: Port(dtype, bug), {"x": X}, ("fp32", "bf16"))


@pytest.mark.parametrize(
    ("bug", "place", "cause"),
    [
        ("outputs", "forward.h", "equals the oracle's forward.c"),
        ("module", "forward.h", "equals the oracle's pair[1]"),
        ("integers", "forward.best", "equals the oracle's forward.first"),
        ("results", "pair[0]", "equals the oracle's pair[1]"),
    ],
)
def test_the_cause_names_the_tensor_in_an_outputs_place(bug, place, cause):
    told = str(result_with(bug))
    assert told.count(f"FAIL at {place}") == 2, told
    assert told.count(cause) == 2, told


def test_a_tensor_that_no_other_equals_has_no_such_cause():
    assert result_with("").passed
    told = str(result_with("unknown"))
    assert "FAIL at forward.h" in told
    assert "equals the oracle's" not in told
