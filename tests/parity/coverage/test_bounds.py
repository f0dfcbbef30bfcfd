"""Bounds of the reference that no input meets are told, also where the port left them out."""

import nvtripy as tp
import pytest
import torch

import parity
from parity.coverage.bounds import Bounds

X = {"x": torch.randn(8, 4, generator=torch.Generator().manual_seed(0))}


class Clamped(torch.nn.Module):
    """A learned temperature below a bound that its value does not reach."""

    def __init__(self, log_temperature=0.2):
        super().__init__()
        self.log_temperature = torch.nn.Parameter(torch.tensor([log_temperature]))

    def forward(self, x):
        return x * self.log_temperature.clamp(max=1.5).exp()


class Unclamped(tp.Module):
    def __init__(self, dtype=tp.float32):
        super().__init__()
        self.log_temperature = tp.zeros((1,), dtype=dtype)

    def forward(self, x):
        return x * tp.exp(self.log_temperature)


class Port(Unclamped):
    def forward(self, x):
        return x * tp.exp(tp.minimum(self.log_temperature, tp.ones_like(self.log_temperature) * 1.5))


def _bounds(result):
    return [entry for entry in result.report.coverage.unasked if entry.kind == "bound"]


@pytest.mark.parametrize("port", [Unclamped, Port])
def test_a_bound_that_no_value_is_beyond_is_told_with_its_line(port):
    result = parity.compare(Clamped(), port, X, ("fp32", "fp16"), initial="own", dynamic={"x": {0: 1}})
    assert result.passed, result
    (entry,) = _bounds(result)
    assert entry.module == __name__
    assert (entry.place, entry.missing) == ("Clamped.forward", ("above",))
    assert entry.text == "clamp(max) in return x * self.log_temperature.clamp(max=1.5).exp()"
    assert entry.line == Clamped.forward.__code__.co_firstlineno + 1
    assert "1 bound of the reference" in str(result)


def test_a_port_without_a_bound_that_a_value_is_beyond_fails():
    result = parity.compare(Clamped(2.0), Unclamped, X, initial="own")
    assert not result.passed
    assert parity.compare(Clamped(2.0), Port, X, initial="own").passed


def _told(body):
    with torch.inference_mode(), Bounds() as bounds:
        body()
    return {
        question.text.partition(" in ")[0]: tuple(sorted(seen))
        for question, seen in bounds.coverage.seen.items()
    }


A = torch.tensor([-3.0, 0.0, 7.0])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda: A.clamp(-5, 5), {"clamp(min)": ("above",), "clamp(max)": ("above", "below")}),
        (lambda: A.clamp(max=9.0), {"clamp(max)": ("below",)}),
        (lambda: A.clamp(min=torch.tensor(8.0)), {"clamp(min)": ("below",)}),
        (lambda: A.clone().clamp_(max=0.0), {"clamp(max)": ("above", "below")}),
        (lambda: torch.relu(A), {"relu": ("above", "below")}),
        (lambda: torch.relu(A.abs()), {"abs": ("above", "below"), "relu": ("above",)}),
        (lambda: torch.nn.functional.leaky_relu(A + 3.0), {"leaky_relu": ("above",)}),
        (lambda: torch.nn.functional.elu(A), {"elu": ("above", "below")}),
        (lambda: torch.nn.functional.prelu(-A, torch.tensor([0.1])), {"prelu": ("above", "below")}),
        (lambda: A.abs(), {"abs": ("above", "below")}),
        (lambda: (A + 1j).abs(), {}),
        (
            lambda: torch.nn.functional.hardswish(A),
            {"hardswish(-3)": ("above",), "hardswish(3)": ("above", "below")},
        ),
        (
            lambda: torch.nn.functional.relu6(A),
            {"hardtanh(min_val)": ("above", "below"), "hardtanh(max_val)": ("above", "below")},
        ),
        (
            lambda: torch.nn.Hardtanh()(A * 0.1),
            {"hardtanh(min_val)": ("above",), "hardtanh(max_val)": ("below",)},
        ),
        (lambda: torch.nn.Threshold(20, 0)(A), {"threshold(threshold)": ("below",)}),
        (lambda: torch.maximum(A, -A), {"maximum": ("above", "below")}),
        (lambda: torch.minimum(A, torch.tensor(9.0)), {"minimum": ("below",)}),
        (lambda: A > 9, {"gt": ("false",)}),
        (lambda: A == A, {"eq": ("true",)}),
        (lambda: torch.tensor([1, 2]) <= 1, {"le": ("false", "true")}),
        (lambda: A + 1, {}),
        (lambda: torch.zeros(0).clamp(min=1.0), {"clamp(min)": ()}),
    ],
)
def test_sides_of_bounds_and_outcomes_of_comparisons(body, expected):
    assert _told(body) == expected


def test_operations_of_one_line_are_apart_and_answers_of_runs_add_up():
    bounds = Bounds()

    def run(x):
        with bounds:
            torch.relu(x) + torch.relu(x - 1.5)

    run(torch.tensor([1.0, -1.0]))
    assert [sorted(seen) for seen in bounds.coverage.seen.values()] == [["above", "below"], ["below"]]
    assert [question.text[:8] for question in bounds.coverage.seen] == ["relu in ", "relu 2 i"]
    run(torch.tensor([2.0]))
    assert [*bounds.coverage.missing()] == []
