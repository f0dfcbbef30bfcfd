"""Live models whose reference leaves the range of float16."""

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
