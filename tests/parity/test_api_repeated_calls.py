"""Live models of which one side repeats a call of a shared module, so that later calls have other numbers."""

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

ROWS, WIDTH = 20, 6
IDS = {
    name: torch.randint(ROWS, (24,), generator=torch.Generator().manual_seed(seed))
    for seed, name in enumerate("ab")
}


class Scorer(torch.nn.Module):
    """A table and a layer for two ids; `calls` are the ids of the table's calls, in their order."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        self.table = torch.nn.Embedding(ROWS, WIDTH)
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(2 * WIDTH, 1)

    def forward(self, a, b):
        rows = [self.table(a if name == "a" else b) for name in self.calls]
        left, right = self.layer(rows[0]), self.layer(rows[-1])
        return self.head(torch.cat([left * rows[self.calls.rindex("a")], right], -1))


class ScorerPort(tp.Module):
    def __init__(self, dtype, calls, bug=""):
        super().__init__()
        self.calls, self.bug = calls, bug
        self.table = tp.Embedding(ROWS, WIDTH, dtype=dtype)
        self.layer = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.head = tp.Linear(2 * WIDTH, 1, dtype=dtype)

    def forward(self, a, b):
        rows = [self.table(a if name == "a" else b) for name in self.calls]
        again = rows[self.calls.rindex("a")]
        left, right = self.layer(rows[0]), self.layer(rows[-1])
        mixed = left + again if self.bug == "sum" else left * again
        scores = self.head(tp.concatenate([mixed, right], dim=-1))
        return scores * 2.0 if self.bug == "output" else scores


def compared(theirs, ours, bug=""):
    return parity.compare(Scorer(theirs), lambda dtype: ScorerPort(dtype, ours, bug), IDS, ("fp32",))


SIDES = pytest.mark.parametrize(
    ("theirs", "ours", "side"), [("aab", "ab", "reference"), ("ab", "aab", "port")]
)


@SIDES
def test_a_repeated_call_before_another_one_is_no_failure(theirs, ours, side):
    result = compared(theirs, ours)
    assert result.passed
    gaps = [module.gap for tap, module in modules(result).items() if tap.startswith("table") and module.gap]
    assert gaps == [f"the {side} alone makes this call"]
    assert "in another order" not in str(result)


@SIDES
@pytest.mark.parametrize(
    ("bug", "place"),
    [("sum", "head receives another input"), ("output", "forward.output: relative")],
)
def test_a_fault_behind_it_is_named(theirs, ours, side, bug, place):
    assert f"where: {place}" in str(compared(theirs, ours, bug))


def test_a_call_with_other_ids_in_place_of_a_repeated_one_is_named():
    assert "where: table@1 receives another input" in str(compared("aab", "abb"))
    text = str(compared("aab", "aa"))
    assert "table@2: missing: the port calls table 2 times, the reference 3 times" in text
