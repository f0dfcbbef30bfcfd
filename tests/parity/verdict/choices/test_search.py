"""Choices that no integer shows: the search takes the port's where rounding explains them, and no others."""

import nvtripy as tp
import pytest
import torch
from torch import nn

import parity
from tests.parity.choosing_ports import linear, normal
from tests.parity.choosing_rates import judged
from tests.parity.hidden_ports import HIDDEN
from tests.parity.verdict.choices.searches import Search


def searched(model, numbers, port):
    """The oracle's result under the choices that a search takes, of a model with rows."""
    return Search(lambda x: {"y": model(x)}, numbers, {"y": port}, len(numbers)).results["y"]


def wide(*rows):
    return torch.tensor(rows, dtype=torch.float64)


VALUES = wide([10.0, 20.0, 30.0, 40.0])[0]


@pytest.mark.parametrize(
    ("model", "numbers", "near", "far"),
    [
        # The second row is a tie within rounding; another choice in the first one is an error.
        (lambda x: VALUES[x.argmax(-1)], wide([0.9, 0.1, 0.0], [0.0, 0.9, 0.92]), [10.0, 20.0], [30.0, 30.0]),
        (lambda x: torch.where(x > 0.5, x, -x), wide([0.9], [0.52]), [[0.9], [-0.52]], [[-0.9], [0.52]]),
        (lambda x: torch.round(x), wide([0.9], [2.48]), [[1.0], [3.0]], [[0.0], [2.0]]),
        (
            lambda x: VALUES[x.argsort(-1, descending=True)],
            wide([0.9, 0.1], [0.4, 0.45]),
            [[10.0, 20.0], [10.0, 20.0]],
            [[20.0, 10.0], [20.0, 10.0]],
        ),
    ],
)
def test_values_that_rounding_explains_are_taken_row_by_row(model, numbers, near, far):
    own = model(numbers)
    port = torch.tensor(near, dtype=torch.float64)
    assert not torch.equal(own, port)
    assert torch.equal(searched(model, numbers, port), port)
    # A choice beyond rounding stays the oracle's.
    assert torch.equal(searched(model, numbers, torch.tensor(far, dtype=torch.float64)), own)


def test_a_right_port_with_a_hidden_choice_passes():
    runner = judged("decoded", "bf16", "", 0)
    assert runner.verdict == "PASS", runner.diagnosis


class Votes(nn.Module):
    """Ones where three votes together are positive, as floating-point numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 4) for _ in range(3))

    def forward(self, x):
        total = (self.a(x[:, :3]) + self.b(x[:, 3:6])) + self.c(x[:, 6:])
        return {"open": torch.where(total > 0, 1.0, 0.0).to(x.dtype)}


class VotesPort(tp.Module):
    """Adds in another order, around 1."""

    def __init__(self, dtype, threshold):
        super().__init__()
        self.threshold = threshold
        self.a, self.b, self.c = (linear(3, 4, dtype) for _ in range(3))

    def forward(self, x):
        total = ((self.a(x[:, :3]) + 1.0) + (self.b(x[:, 3:6]) + self.c(x[:, 6:9]))) - 1.0
        return {"open": tp.cast(total > self.threshold, x.dtype)}


@pytest.mark.parametrize(("threshold", "verdict"), [(0.0, "PASS"), (0.1, "FAIL")])
def test_a_choice_that_floating_point_numbers_show(threshold, verdict):
    torch.manual_seed(271)
    result = parity.compare(
        Votes(),
        lambda dtype: VotesPort(dtype, threshold),
        inputs={"x": normal(271, 40, 9)},
        precisions=("bf16",),
    )
    runner = next(runner for *_, runner in result.report.runner_reports() if runner.runner == "tripy")
    assert runner.verdict == verdict, runner.diagnosis


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("decoded", "second best"),
        pytest.param("gated", "threshold", marks=pytest.mark.full),
        pytest.param("sorted", "last ones swapped", marks=pytest.mark.full),
        pytest.param("nucleus", "without the third", marks=pytest.mark.full),
    ],
)
def test_a_wrong_hidden_choice_fails_where_it_is_made(name, fault):
    runner = judged(name, "bf16", fault, 0)
    assert (runner.verdict, runner.diagnosis.tap) == ("FAIL", HIDDEN[name].faults[fault])
