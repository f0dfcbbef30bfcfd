"""`parity.compare` on ports with other orders of axes that are equally long: the values tell the order."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

SIZE = 6
"""Channels and positions: no length tells them apart."""
RNG = np.random.default_rng(0)
SEQUENCES = {"x": RNG.standard_normal((24, SIZE, SIZE)).astype(np.float32)}


class Mix(torch.nn.Module):
    """Mixes the channels, which come first."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(SIZE, SIZE))

    def forward(self, x):
        return torch.einsum("oc,bcs->bos", self.weight, x)


class Act(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


class Sum(torch.nn.Module):
    """The running sum of the positions."""

    def forward(self, x):
        return torch.cumsum(x, 2)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.act, self.sum = Mix(), Act(), Sum()

    def forward(self, x):
        return self.sum(self.act(self.mix(x)))


class Model(torch.nn.Module):
    """A block, and a matrix of products of its rows, which is symmetric, times a weight."""

    def __init__(self):
        super().__init__()
        self.block, self.gram, self.head = Block(), Mix(), Mix()

    def forward(self, x):
        y = self.block(x)
        return self.head(self.gram(y @ y.transpose(1, 2)))


class MixPort(tp.Module):
    """Mixes the channels, which come last if `last`; the result is transposed if `turned`."""

    def __init__(self, dtype, last=False, turned=False):
        super().__init__()
        self.weight = tp.zeros((SIZE, SIZE), dtype=dtype)
        self.last, self.turned = last, turned

    def forward(self, x):
        y = x @ tp.transpose(self.weight, 0, 1) if self.last else self.weight @ x
        return tp.transpose(y, 1, 2) if self.turned else y


class ActPort(tp.Module):
    def forward(self, x):
        return tp.relu(x)


class SumPort(tp.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return tp.cumsum(x, dim=self.dim)


def turn(x):
    return tp.transpose(x, 1, 2)


class BlockPort(tp.Module):
    """Has the channels last, up to a place."""

    def __init__(self, dtype, layout, fault):
        super().__init__()
        self.layout, self.fault = layout, fault
        self.mix, self.act = MixPort(dtype, last=layout != "first"), ActPort()
        self.sum = SumPort(1 if layout == "last" else 2)

    def forward(self, x):
        if self.layout == "first":
            x = turn(x) if self.fault == "argument" else x
            y = self.mix(x)
            y = turn(y) if self.fault in ("elementwise", "survives") else y
            y = self.act(y)
            return self.sum(turn(y) if self.fault == "elementwise" else y)
        x = turn(x)
        y = self.mix(tp.flip(x, dim=2) if self.fault == "values" else x)
        if self.layout == "mix":
            return self.sum(self.act(turn(y)))
        y = self.sum(self.act(tp.flip(y, dim=1) if self.fault == "behind" else y))
        return y if self.fault == "stays" else turn(y)


class Port(tp.Module):
    def __init__(self, dtype, layout="first", fault=""):
        super().__init__()
        self.fault = fault
        self.block = BlockPort(dtype, layout, fault)
        self.gram = MixPort(dtype, turned=fault == "symmetric")
        self.head = MixPort(dtype)

    def forward(self, x):
        y = self.block(x)
        z = self.gram(y @ turn(y))
        return self.head(tp.flip(z, dim=1) if self.fault == "later" else z)


def judged(layout="first", fault="", precisions=("fp32", "fp16")):
    torch.manual_seed(0)
    return parity.compare(Model(), lambda dtype: Port(dtype, layout, fault), SEQUENCES, precisions)


@pytest.mark.parametrize(
    ("layout", "fault", "turned"),
    [
        ("first", "", ()),
        ("mix", "", ("block.mix",)),
        ("last", "", ("block.mix", "block.act", "block.sum")),
        # Each element by itself is the same in any order.
        ("first", "elementwise", ("block.act",)),
    ],
)
def test_another_order_of_equally_long_axes_is_a_layout(layout, fault, turned):
    result = judged(layout, fault)
    assert result.passed, result
    note = f"the port has the axes in another order; compared as (24, {SIZE}, {SIZE})"
    assert tuple(tap for tap, own in modules(result).items() if note in own.notes) == turned


def test_a_module_that_is_wrong_alone_for_the_order_of_its_axes_is_judged_inside_the_model():
    own = modules(judged("last"))
    alone = "judged inside the model alone: it takes other arguments than the reference's"
    for tap in ("block.mix", "block.sum"):
        assert own[tap].isolated is None
        assert f"{alone}, they have their axes in another order" in own[tap].notes
    # The order of the axes is nothing to such a module.
    assert own["block.act"].isolated is not None


@pytest.mark.parametrize(
    ("layout", "fault", "text"),
    [
        ("mix", "values", "FAIL at block.mix"),
        ("last", "values", "FAIL at block.mix"),
        # The order ends in the block's code, and so the first wrong place of the block stays.
        ("last", "behind", "FAIL at block"),
        ("last", "stays", "FAIL at block"),
        ("first", "argument", "block.mix receives another x"),
        ("first", "survives", "block.act receives another x"),
        # The argument is its own transpose. The result is another matrix.
        ("first", "symmetric", "FAIL at gram"),
        # A layout that ends in its block hides no fault behind it, and takes no blame for it.
        ("last", "later", "head receives another x"),
        ("mix", "later", "head receives another x"),
    ],
)
def test_the_order_of_equally_long_axes_hides_no_fault(layout, fault, text):
    result = judged(layout, fault, ("fp32",))
    assert not result.passed
    assert text in str(result)
