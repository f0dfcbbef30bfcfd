"""Missing numbers that a module replaces are NaN on both sides, and no wrong argument of it."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

RNG = np.random.default_rng(4)
X = RNG.standard_normal((12, 6)).astype(np.float32)
X[RNG.random(X.shape) < 0.2] = np.nan


class Clean(torch.nn.Module):
    def forward(self, numbers):
        return torch.nan_to_num(numbers)


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.clean = Clean()
        self.linear = torch.nn.Linear(6, 5)

    def forward(self, x):
        return self.linear(self.clean(x * 2.0))


class CleanPort(tp.Module):
    def forward(self, numbers):
        return tp.where(numbers == numbers, numbers, tp.zeros_like(numbers))


def port(before, behind):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.clean = CleanPort()
            self.linear = tp.Linear(6, 5, dtype=dtype)

        def forward(self, x):
            return self.linear(self.clean(x * before)) * behind

    return Port


@pytest.mark.parametrize(
    ("factors", "place"),
    [
        ((2.0, 1.0), "PASS"),
        ((2.0, 1.01), "FAIL at forward.output"),
        ((2.02, 1.0), "FAIL at clean"),
    ],
)
def test_a_fault_is_named_where_it_is(factors, place):
    text = str(parity.compare(Reference(), port(*factors), {"x": X}, ("fp32",)))
    assert f"fp32 {place}" in text
    assert ("receives another numbers: 60 of 60 elements" in text) is place.endswith("clean")
