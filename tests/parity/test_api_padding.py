"""A causal convolution: PyTorch pads before the layer, and the port's layer pads itself."""

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

C, TIME = 4, 9
INPUTS = {"x": torch.randn(5, C, TIME, generator=torch.Generator().manual_seed(3))}


class Causal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv1d(C, C, 3)
        self.second = torch.nn.Conv1d(C, C, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(torch.nn.functional.pad(x, (2, 0)))))


class CausalPort(tp.Module):
    def __init__(self, dtype, padding=(2, 0), scale=1.0):
        super().__init__()
        self.scale = scale
        self.first = tp.Conv(C, C, (3,), padding=(padding,), dtype=dtype)
        self.second = tp.Conv(C, C, (1,), dtype=dtype)

    def forward(self, x):
        return self.second(tp.relu(self.first(x * self.scale)))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_layer_that_pads_itself_is_judged_inside_the_model(precision):
    result = parity.compare(Causal(), CausalPort, INPUTS, (precision,))
    result.raise_if_failed()
    first = modules(result)["first"]
    assert set(first.verdicts) == {"in the model"}
    words = "judged inside the model alone: it takes other arguments than the reference's"
    assert f"{words}, input: shape (5, 4, 9) in place of (5, 4, 11)" in first.notes
    assert set(modules(result)["second"].verdicts) == {"in the model", "alone"}


@pytest.mark.parametrize("fault", [{"padding": (0, 2)}, {"padding": (1, 1)}, {"scale": 1.001}])
def test_a_wrong_padding_fails_at_the_layer(fault):
    text = str(parity.compare(Causal(), lambda dtype: CausalPort(dtype, **fault), INPUTS, ("fp32",)))
    assert "FAIL at first" in text
