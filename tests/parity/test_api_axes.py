"""`parity.compare` on ports that keep channels last, where the convolutions of PyTorch have them first."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.verdict.axes import axes_order, with_axes
from tests.parity.live_models import modules

CHANNELS, MIXED, STEPS = 6, 5, 4
SEQUENCES = {"x": np.random.default_rng(0).standard_normal((24, STEPS, CHANNELS)).astype(np.float32)}


class Mixer(torch.nn.Module):
    """Mixes channels by a convolution of size 1, scales them, and ends in the sequence's layout."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Conv1d(CHANNELS, MIXED, 1)
        self.turn = Turn()

    def forward(self, x):
        return self.turn(torch.relu(self.mix(x.transpose(1, 2))))


class Turn(torch.nn.Module):
    def forward(self, y):
        return torch.cumsum(y, 2).transpose(1, 2)


class TurnPort(tp.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, y):
        if self.fault == "stays":
            return tp.cumsum(y, dim=2)
        return tp.transpose(tp.cumsum(y, dim=2), 1, 2)


class MixerPort(tp.Module):
    """Mixes channels that come last; with a fault, mixes other elements or ends in the wrong layout."""

    def __init__(self, dtype, fault=""):
        super().__init__()
        self.fault = fault
        self.mix = tp.Linear(CHANNELS, MIXED, dtype=dtype)
        self.turn = TurnPort(fault)

    def forward(self, x):
        y = self.mix(tp.flip(x, dim=2) if self.fault == "mix" else x)
        if self.fault == "behind":
            y = tp.flip(y, dim=1)
        return self.turn(tp.transpose(tp.relu(y), 1, 2))


def judged(fault=""):
    return parity.compare(Mixer(), lambda dtype: MixerPort(dtype, fault), SEQUENCES, ("fp32", "fp16"))


def test_a_linear_layer_on_channels_last_stands_for_a_convolution():
    result = judged()
    assert result.passed, result
    layer = modules(result)["mix"]
    assert (layer.status, layer.accumulated.checked) == ("PASS", 24 * STEPS * MIXED)
    assert f"the port has the axes in another order; compared as (24, {MIXED}, {STEPS})" in layer.notes


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("mix", "FAIL at mix"),
        ("behind", "turn receives another y"),
        # A module that receives the reference's axes returns its own.
        ("stays", "turn (Turn) diverges on its own: shape"),
    ],
)
def test_another_order_of_axes_hides_no_fault(fault, text):
    assert text in str(judged(fault))


@pytest.mark.parametrize(
    ("shape", "other", "expected"),
    [
        ((7, 4, 3), (7, 3, 4), (0, 2, 1)),
        # An equal first axis stays, also where another axis is as long.
        ((4, 3, 4), (4, 4, 3), (0, 2, 1)),
        ((7, 4, 3), (7, 3, 1, 4), (0, 2, 1)),
        ((1, 4, 3), (1, 3, 4), (1, 0)),
        ((5, 7, 3), (7, 5, 3), (1, 0, 2)),
        ((7, 4, 3, 2), (7, 2, 4, 3), (0, 3, 1, 2)),
        ((7, 4, 3), (7, 4, 3), ()),
        ((7, 4, 3), (7, 4, 3, 1), ()),
        ((7, 12), (7, 3, 4), ()),
        ((7, 4, 3), (7, 3, 5), ()),
        # Two axes of one length are not told apart.
        ((7, 4, 3, 4), (7, 3, 4, 4), ()),
        ((7, 7, 3), (3, 7, 7), ()),
        ((), (), ()),
        ((), (1,), ()),
    ],
)
def test_the_order_of_axes_is_that_of_their_lengths_alone(shape, other, expected):
    assert axes_order(shape, other) == expected
    if expected:
        values = torch.arange(np.prod(shape)).reshape(shape)
        turned = with_axes(values, expected, other)
        assert turned.shape == other
        axes = [size for size in shape if size != 1]
        place = tuple(size - 1 for size in axes)
        moved = tuple(place[axis] for axis in expected)
        squeezed = turned.reshape([size for size in other if size != 1])
        assert squeezed[moved] == values.reshape(axes)[place]
        first = tuple(1 if number == len(place) - 1 else 0 for number in range(len(place)))
        assert squeezed[tuple(first[axis] for axis in expected)] == values.reshape(axes)[first]


GROUPS, SIDE = 2, 5
SQUARES = {"x": np.random.default_rng(1).standard_normal((12, CHANNELS, SIDE, SIDE)).astype(np.float32)}


class Square(torch.nn.Module):
    """Calls one normalised layer twice."""

    def __init__(self):
        super().__init__()
        self.layer = NormalisedLayer()

    def forward(self, x):
        return self.layer(self.layer(x))


class NormalisedLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.norm = torch.nn.GroupNorm(GROUPS, CHANNELS)

    def forward(self, x):
        return torch.tanh(self.norm(self.mix(x)))


class NormLast(tp.Module):
    """A group norm of channels that come last, behind two axes of one length."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = tp.ones((CHANNELS,), dtype=dtype)
        self.bias = tp.zeros((CHANNELS,), dtype=dtype)

    def forward(self, x):
        g = tp.reshape(x, (-1, SIDE * SIDE, GROUPS, CHANNELS // GROUPS))
        g = g - tp.mean(g, (1, 3), keepdim=True)
        g = g * tp.rsqrt(tp.mean(g * g, (1, 3), keepdim=True) + 1e-5)
        return tp.reshape(g, (-1, SIDE, SIDE, CHANNELS)) * self.weight + self.bias


class NormalisedLayerPort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.fault = fault
        self.mix = tp.Linear(CHANNELS, CHANNELS, dtype=dtype)
        self.norm = NormLast(dtype)

    def forward(self, x):
        y = self.norm(self.mix(tp.permute(x, (0, 2, 3, 1))))
        return tp.permute(tp.sigmoid(y) if self.fault else tp.tanh(y), (0, 3, 1, 2))


class SquarePort(tp.Module):
    def __init__(self, dtype, fault):
        super().__init__()
        self.layer = NormalisedLayerPort(dtype, fault)

    def forward(self, x):
        return self.layer(self.layer(x))


@pytest.mark.parametrize(("fault", "place"), [(False, "PASS"), (True, "FAIL at layer\n")])
def test_a_fault_behind_channels_last_is_not_named_at_their_module(fault, place):
    """Two axes of one length leave several orders. The first call's values tell the second call's."""
    result = parity.compare(Square(), lambda dtype: SquarePort(dtype, fault), SQUARES, ("fp32",))
    assert f"Square fp32 {place}" in str(result)
