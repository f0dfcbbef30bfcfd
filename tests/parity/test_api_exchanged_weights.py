"""Live models whose port uses one weight, or one layer, in the place of another: the cause names both."""

import nvtripy as tp
import pytest
import torch

import parity

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(4))


class Gates(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.randn(6))
        self.beta = torch.nn.Parameter(torch.randn(6))
        self.left = torch.nn.Linear(6, 6)
        self.left_gate = torch.nn.Linear(6, 6)
        self.right_gate = torch.nn.Linear(6, 6)

    def forward(self, x):
        y = self.alpha * x + self.beta
        left = self.left(y)
        return left * torch.sigmoid(self.left_gate(y)) - x * torch.sigmoid(self.right_gate(y)), left


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = Gates()

    def forward(self, x):
        mixed, left = self.gates(x)
        return torch.tanh(mixed) + left


class GatesPort(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.alpha = tp.ones((6,), dtype=dtype)
        self.beta = tp.ones((6,), dtype=dtype)
        self.left = tp.Linear(6, 6, dtype=dtype)
        self.left_gate = tp.Linear(6, 6, dtype=dtype)
        self.right_gate = tp.Linear(6, 6, dtype=dtype)
        self.bug = bug

    def forward(self, x):
        alpha, beta = (self.beta, self.alpha) if self.bug == "weights" else (self.alpha, self.beta)
        if self.bug == "one weight":
            beta = alpha
        y = alpha * x + beta
        left, right = self.left_gate(y), self.right_gate(y)
        if self.bug == "layers":
            left, right = right, left
        made = self.left(y)
        return made * tp.sigmoid(left) - x * tp.sigmoid(right), made


class Port(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.gates = GatesPort(dtype, bug)

    def forward(self, x):
        mixed, left = self.gates(x)
        return tp.tanh(mixed) + left


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("weights", "with the weights alpha and beta exchanged"),
        ("one weight", "with the weight alpha in place of beta"),
        ("layers", "with the modules left_gate and right_gate exchanged"),
    ],
)
def test_the_weights_are_named(bug, words):
    text = str(parity.compare(Model(), lambda dtype: Port(dtype, bug), {"x": X}, ("fp32",)))
    assert "FAIL at gates" in text
    assert f"cause: fits the reference {words}" in text


def test_no_weights_are_named_where_each_is_in_its_place():
    assert parity.compare(Model(), lambda dtype: Port(dtype, ""), {"x": X}, ("fp32",)).passed
