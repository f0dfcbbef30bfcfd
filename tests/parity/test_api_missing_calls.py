"""A module that pads by itself in the port, and is called less often than PyTorch's."""

import nvtripy as tp
import torch
import torch.nn.functional as F

import parity

INPUTS = {"x": torch.randn(24, 6, 9, generator=torch.Generator().manual_seed(3))}


class Causal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(6, 6, 3)

    def forward(self, x):
        return x + torch.tanh(self.conv(F.pad(x, (2, 0))))


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Causal()

    def forward(self, x):
        return torch.sigmoid(self.block(self.block(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Twice()

    def forward(self, x):
        return self.body(x)


class CausalPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.conv = tp.Conv(6, 6, (3,), padding=((2, 0),), dtype=dtype)

    def forward(self, x):
        return x + tp.tanh(self.conv(x))


class TwicePort(tp.Module):
    def __init__(self, dtype, calls):
        super().__init__()
        self.block = CausalPort(dtype)
        self.calls = calls

    def forward(self, x):
        for _ in range(self.calls):
            x = self.block(x)
        return tp.sigmoid(x)


class ModelPort(tp.Module):
    def __init__(self, dtype, calls):
        super().__init__()
        self.body = TwicePort(dtype, calls)

    def forward(self, x):
        return self.body(x)


def compared(calls):
    return parity.compare(Model(), lambda dtype: ModelPort(dtype, calls), INPUTS, ("fp32",))


def test_a_module_that_pads_by_itself_passes():
    assert compared(2).passed


def test_a_missing_call_of_it_is_no_other_shape():
    text = str(compared(1))
    assert "FAIL at body\n" in text, text
    assert "body.block@1 is missing: the port calls body.block once, the reference 2 times" in text
    assert "shape (24" not in text.split("note:")[0]
