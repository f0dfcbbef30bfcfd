"""NaN in an output of a port whose fault lies before it."""

import nvtripy as tp
import torch

import parity

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 4)

    def forward(self, x):
        size = self.first(x).abs()
        return self.second(size), torch.log(size.sum(-1))


def port_of(is_wrong_before, is_wrong_behind):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.first = tp.Linear(6, 6, dtype=dtype)
            self.second = tp.Linear(6, 4, dtype=dtype)

        def forward(self, x):
            y = self.first(x)
            before = y if is_wrong_before else abs(y)
            behind = y if is_wrong_behind else abs(y)
            return self.second(before), tp.log(tp.sum(behind, dim=-1))

    return Port


def test_a_wrong_argument_is_named_before_it():
    text = str(parity.compare(Model(), port_of(True, True), {"x": X}, ("fp32",)))
    assert "where: second receives another input" in text
    assert "cause: fits the reference without abs" in text


class Normed(torch.nn.Module):
    """Rows of length 1, or of zeros."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6, bias=False)
        self.second = torch.nn.Linear(6, 4)

    def forward(self, x):
        y = self.first(x)
        return self.second(y / y.norm(dim=-1, keepdim=True).clamp(min=1e-6))


class NormedPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = tp.Linear(6, 6, bias=False, dtype=dtype)
        self.second = tp.Linear(6, 4, dtype=dtype)

    def forward(self, x):
        y = self.first(x)
        return self.second(y / tp.sqrt(tp.sum(y * y, dim=-1, keepdim=True)))


def test_the_cause_of_a_nan_argument_is_told():
    x = X.clone()
    x[5] = 0.0
    text = str(parity.compare(Normed(), NormedPort, {"x": x}, ("fp32",)))
    assert "where: second receives another input: 6 of 144 elements, all at the batch 5" in text
    assert "cause: fits the reference without clamp" in text


def test_the_code_behind_right_modules_makes_it():
    text = str(parity.compare(Model(), port_of(False, True), {"x": X}, ("fp32",)))
    assert "where: forward.1: NaN or Inf among the compared elements: " in text
    assert "every module is right and receives the right arguments; the code of forward" in text
    assert parity.compare(Model(), port_of(False, False), {"x": X}, ("fp32",)).passed
