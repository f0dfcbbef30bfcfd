"""Live models whose reference, or a port of it, leaves the range of float16."""

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

X = 3 * torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
FACTOR = 3e4
"""Times a layer's result, more than float16 holds."""


class Overflowing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        y = self.first(x) * FACTOR
        return self.last(y - y.mean(-1, keepdim=True))


class OverflowingPort(tp.Module):
    is_wide = False

    def __init__(self, dtype):
        super().__init__()
        self.first = tp.Linear(8, 8, dtype=dtype)
        self.last = tp.Linear(8, 4, dtype=dtype)

    def forward(self, x):
        y = self.first(x)
        y = (tp.cast(y, tp.float32) if self.is_wide else y) * FACTOR
        y = y - tp.mean(y, dim=-1, keepdim=True)
        return self.last(tp.cast(y / FACTOR if self.is_wide else y, x.dtype))


class Wide(OverflowingPort):
    """Keeps what lies between the layers in float32, and scales it, so that it has numbers everywhere."""

    is_wide = True


@pytest.mark.parametrize("port", [OverflowingPort, Wide])
def test_a_reference_without_a_number_is_no_fault_of_the_port(port):
    result = parity.compare(Overflowing(), port, {"x": X}, ("fp16",))
    assert not result.passed
    assert "last (Linear) cannot be judged: NaN or Inf among the compared elements: " in str(result)
    assert "the reference itself does not work in this precision" in str(result)
    assert modules(result)["first"].status == "PASS"


def test_a_wider_precision_has_a_verdict():
    assert parity.compare(Overflowing(), OverflowingPort, {"x": X}, ("bf16",)).passed


class Norm(torch.nn.Module):
    """PyTorch adds the squares of half numbers in float32."""

    def forward(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + 1.0)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.norm(x)), torch.softmax(x / 4, -1)


class NormPort(tp.Module):
    def forward(self, x):
        return x / (tp.sqrt(tp.sum(x * x, dim=-1, keepdim=True)) + 1.0)


def stable_softmax(x):
    return tp.softmax(x, dim=-1)


def plain_softmax(x):
    powers = tp.exp(x)
    return powers / tp.sum(powers, dim=-1, keepdim=True)


def port_of(norm, softmax):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.norm = norm()
            self.last = tp.Linear(8, 4, dtype=dtype)

        def forward(self, x):
            return self.last(self.norm(x)), softmax(x / 4.0)

    return Port


def test_sums_of_squares_beyond_the_precision_are_named():
    """What is divided by an infinite norm is 0."""
    text = str(parity.compare(Normed(), port_of(NormPort, stable_softmax), {"x": 150 * X}, ("fp16",)))
    assert "FAIL at norm" in text
    assert "cause: the sum of squares of linalg_vector_norm in test_api_overflow.py:" in text
    assert "in the oracle, and float16 ends at 6.55e+04" in text


def test_exponentials_beyond_the_precision_are_named():
    text = str(parity.compare(Normed(), port_of(NormPort, plain_softmax), {"x": 8 * X}, ("fp16",)))
    assert "where: forward.1: NaN or Inf among the compared elements: " in text
    assert "cause: the exponential of softmax in test_api_overflow.py:" in text


def test_another_fault_beside_large_numbers_has_its_own_cause():
    class Twice(NormPort):
        def forward(self, x):
            return x * 0.0 + 1.0

    text = str(parity.compare(Normed(), port_of(Twice, stable_softmax), {"x": 150 * X}, ("fp16",)))
    assert "FAIL at norm" in text
    assert "ends at" not in text
