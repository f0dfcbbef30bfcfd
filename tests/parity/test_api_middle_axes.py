"""Ports with an axis of 1 in the middle of tensors: modules that do not run with the reference's arguments.

Tripy's convolution of two dimensions is one way to write PyTorch's of one dimension.
"""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

INPUTS = {"x": np.random.default_rng(7).standard_normal((48, 2, 12)).astype(np.float32)}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 3, 1)

    def forward(self, x):
        return torch.tanh(self.conv(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.widen = torch.nn.Conv1d(2, 3, 1)
        self.block = Block()
        self.head = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.block(self.widen(x)).mean(-1))


class BlockPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.conv = tp.Conv(3, 3, (1, 1), dtype=dtype)

    def forward(self, x):
        return tp.tanh(self.conv(x))


class Port(tp.Module):
    """The model in (B, C, 1, T)."""

    def __init__(self, dtype):
        super().__init__()
        self.widen = tp.Conv(2, 3, (1, 1), dtype=dtype)
        self.block = BlockPort(dtype)
        self.head = tp.Linear(3, 2, dtype=dtype)

    def forward(self, x):
        return self.head(tp.mean(self.block(self.widen(tp.unsqueeze(x, 2))), dim=(2, 3)))


class SigmoidBlock(BlockPort):
    def forward(self, x):
        return tp.sigmoid(self.conv(x))


class WrongBlock(Port):
    def __init__(self, dtype):
        super().__init__(dtype)
        self.block = SigmoidBlock(dtype)


class WrongHead(Port):
    def forward(self, x):
        return tp.relu(super().forward(x))


@pytest.mark.parametrize("squeeze", [False, True])
def test_a_right_port_passes_and_its_modules_say_that_they_are_judged_inside_the_model(squeeze):
    result = parity.compare(Model(), Port, INPUTS, ("fp32",), squeeze=squeeze)
    assert result.passed, result
    shapes = "input: shape (48, 3, 1, 12) in place of (48, 3, 12)"
    assert "block.conv (Conv1d): judged inside the model alone: it does not run with" in str(result)
    assert shapes in str(result)


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize(("port", "place"), [(WrongBlock, "block"), (WrongHead, "forward.output")])
def test_a_wrong_one_is_named_and_not_the_modules_that_cannot_run_alone(port, place, squeeze):
    result = parity.compare(Model(), port, INPUTS, ("fp32",), squeeze=squeeze)
    assert f"FAIL at {place}\n" in str(result), result
