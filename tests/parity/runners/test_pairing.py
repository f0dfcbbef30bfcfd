"""Arguments of the reference's calls, as the port's modules take them."""

import numpy as np
import nvtripy as tp
import torch

import parity


class Scaling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, twice=False):
        return self.linear(x) * (2 if twice else 1)


class Reference(torch.nn.Module):
    def __init__(self, twice):
        super().__init__()
        self.scaling, self.twice = Scaling(), twice

    def forward(self, x):
        return self.scaling(x, twice=self.twice)


class ScalingPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.linear = tp.Linear(4, 4, dtype=dtype)

    def forward(self, x):
        return self.linear(x)


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.scaling = ScalingPort(dtype)

    def forward(self, x):
        return self.scaling(x)


def test_an_option_that_matters_fails_the_port():
    inputs = {"x": np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)}
    assert parity.compare(Reference(False), Port, inputs, ("fp32",)).passed
    result = parity.compare(Reference(True), Port, inputs, ("fp32",))
    assert "FAIL at scaling\n" in str(result)
