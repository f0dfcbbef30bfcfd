"""A port that computes a weight while it loads: the weight stays a part of the graph."""

import nvtripy as tp
import pytest
import torch

import parity

D = 6
X = torch.randn(48, D, generator=torch.Generator().manual_seed(2))


class Add(torch.nn.Module):
    def forward(self, x, bias):
        return x + bias


class Model(torch.nn.Module):
    """Passes its own weight to a module."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(D, D)
        self.add = Add()
        self.bias = torch.nn.Parameter(torch.linspace(-1.0, 1.0, D))

    def forward(self, x):
        return self.add(torch.relu(self.layer(x)), self.bias)


class AddPort(tp.Module):
    def forward(self, x, bias):
        return x + bias


class Port(tp.Module):
    def __init__(self, dtype, factor):
        super().__init__()
        self.layer = tp.Linear(D, D, dtype=dtype)
        self.add = AddPort()
        self.bias = tp.Tensor([0.0] * D)
        self.factor = factor

    def load_state_dict(self, state_dict, strict=True):
        computed = {name: tensor * self.factor for name, tensor in state_dict.items()}
        return super().load_state_dict(computed, strict)

    def forward(self, x):
        return self.add(tp.relu(self.layer(x)), self.bias)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PASS"), (1.01, "FAIL at layer\n")])
def test_a_weight_that_the_port_computes_is_judged(factor, verdict):
    result = parity.compare(Model(), lambda dtype: Port(dtype, factor), {"x": X}, ("fp32",))
    assert f"fp32 {verdict}" in f"{result}\n", result
