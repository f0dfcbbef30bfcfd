"""`parity.compare` on right ports whose layouts, types or loops differ from PyTorch's."""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

WIDTH, STEPS = 6, 4
RNG = np.random.default_rng(0)
ROWS = {"x": RNG.standard_normal((32, WIDTH)).astype(np.float32)}


class Pointwise(torch.nn.Module):
    """A convolution of one position, a batch norm of rows, and the largest element."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Conv1d(WIDTH, WIDTH, 1)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.top = Top()

    def forward(self, x):
        y = self.norm(self.mix(x[:, :, None])[:, :, 0])
        return y * self.top(y)[:, None]


class Top(torch.nn.Module):
    def forward(self, y):
        return y.argmax(1)


class PointwisePort(tp.Module):
    factor = 1.0

    def __init__(self, dtype):
        super().__init__()
        self.mix = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.norm = tp.BatchNorm(WIDTH, dtype=dtype)
        self.top = TopPort()

    def forward(self, x):
        y = tp.squeeze(self.norm(tp.unsqueeze(self.mix(x), 2)), 2)
        return self.factor * y * tp.unsqueeze(tp.cast(self.top(y), y.dtype), 1)


class TopPort(tp.Module):
    def forward(self, y):
        return tp.cast(tp.argmax(y, dim=1), tp.int64)


class NarrowTop(TopPort):
    def forward(self, y):
        return tp.argmax(y, dim=1)


class Narrow(PointwisePort):
    def __init__(self, dtype):
        super().__init__(dtype)
        self.top = NarrowTop()


class NarrowAndWrong(Narrow):
    factor = 2.0


def _judged(port):
    return parity.compare(Pointwise(), port, ROWS, ("fp32",), squeeze=True)


def test_a_linear_layer_in_place_of_a_convolution_and_a_batch_norm_with_an_axis_of_1():
    result = _judged(PointwisePort)
    assert result.passed, result


@pytest.mark.parametrize(
    ("port", "place"),
    [
        (Narrow, "torch.int64, and all values are equal: cast"),
        (NarrowAndWrong, "forward.output: relative L2"),
    ],
)
def test_integers_of_another_type_hide_no_wrong_value(port, place):
    result = _judged(port)
    assert not result.passed
    assert place in str(result)


class Loop(torch.nn.Module):
    """The last valid state of a cell that runs at every position."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, valid):
        state = torch.zeros_like(x[:, 0])
        for step in range(STEPS):
            new = torch.tanh(self.cell(torch.cat([x[:, step], state], 1)))
            state = torch.where(valid[:, step, None], new, state)
        return state


class LoopPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.cell = tp.Linear(2 * WIDTH, WIDTH, dtype=dtype)

    def forward(self, x, valid):
        state = tp.zeros_like(x[:, 0])
        for step in range(STEPS):
            new = tp.tanh(self.cell(tp.concatenate([x[:, step], state], dim=1)))
            state = tp.where(valid[:, step : step + 1], new, state)
        return state


def test_a_cell_that_runs_at_padded_positions_does_not_leak():
    lengths = np.resize(np.arange(1, STEPS + 1), 12)
    x = RNG.standard_normal((12, STEPS, WIDTH)).astype(np.float32)
    inputs = {"x": x, "valid": np.arange(STEPS) < lengths[:, None]}
    result = parity.compare(Loop(), LoopPort, inputs, ("fp32",), mask="valid", poison=("x",))
    assert result.passed, result
