"""`parity.compare` on ports with channels last and axes of one length, with a right norm and a wrong one."""

import nvtripy as tp
import torch

import parity

SIZE = 6
"""Channels, rows and columns: no length tells them apart."""
IMAGES = torch.randn(8, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
EPS = 1e-6


class Norm(torch.nn.Module):
    """Normalizes the channels, which come first."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(SIZE) + 0.5)
        self.bias = torch.nn.Parameter(torch.randn(SIZE))

    def forward(self, x):
        centred = x - x.mean(1, keepdim=True)
        normed = centred / torch.sqrt(centred.pow(2).mean(1, keepdim=True) + EPS)
        return self.weight[:, None, None] * normed + self.bias[:, None, None]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, SIZE, 3, padding=1)
        self.norm = Norm()
        self.head = torch.nn.Linear(SIZE, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class NormPort(tp.Module):
    """Normalizes the last axis."""

    def __init__(self, dtype, eps):
        super().__init__()
        self.weight, self.bias = tp.ones((SIZE,), dtype=dtype), tp.zeros((SIZE,), dtype=dtype)
        self.eps = eps

    def forward(self, x):
        centred = x - tp.mean(x, dim=-1, keepdim=True)
        variance = tp.mean(centred * centred, dim=-1, keepdim=True)
        return self.weight * centred / tp.sqrt(variance + self.eps) + self.bias


class NetPort(tp.Module):
    eps = EPS
    order = (0, 2, 3, 1)

    def __init__(self, dtype):
        super().__init__()
        self.conv = tp.Conv(3, SIZE, (3, 3), padding=[(1, 1), (1, 1)], dtype=dtype)
        self.norm = NormPort(dtype, self.eps)
        self.head = tp.Linear(SIZE, 4, dtype=dtype)

    def forward(self, x):
        y = tp.relu(self.norm(tp.permute(self.conv(x), self.order)))
        return self.head(tp.mean(y, dim=(1, 2)))


class OtherEpsilon(NetPort):
    eps = 0.1


class NotTurned(NetPort):
    """The norm has the reference's axes, and takes columns for channels."""

    order = (0, 1, 2, 3)


TOLD = "its arguments have their axes in another order inside the model; there, it has: relative L2 error "


def test_a_right_norm_passes():
    assert parity.compare(Net(), NetPort, {"x": IMAGES}, ("fp32",)).passed


def test_the_error_of_a_wrong_norm_is_that_in_the_order_of_its_call():
    text = str(parity.compare(Net(), OtherEpsilon, {"x": IMAGES}, ("fp32",)))
    assert "FAIL at norm" in text
    alone, there = (float(own.split()[0]) for own in text.split("relative L2 error ")[1:3])
    assert TOLD in text
    assert there < 0.3
    assert alone > 5 * there


def test_a_norm_of_other_axes_is_told_as_it_is():
    text = str(parity.compare(Net(), NotTurned, {"x": IMAGES}, ("fp32",)))
    assert "FAIL at norm" in text
    assert TOLD not in text
