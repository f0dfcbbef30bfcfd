"""A right port whose roundings lose a constant in every row, beside wrong ones of the same size."""

import nvtripy as tp
import pytest
import torch

import parity

WIDTH, ROWS = 8, 900


class Model(torch.nn.Module):
    """Small biases beside large sums, and differences behind them that multiply the biases' errors."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.outer = torch.nn.Linear(WIDTH, 1)
        self.requires_grad_(False)
        # Sums of about 3 to 4 have a step of 2^-6 in bf16, and the biases are less than half of it.
        self.inner.weight.copy_(torch.rand(WIDTH, WIDTH, generator=generator) / WIDTH + 0.4)
        self.outer.weight.copy_(torch.rand(1, WIDTH, generator=generator) + 0.5)
        self.outer.weight[0, ::2] *= -1.0
        self.inner.bias.copy_(0.003 * self.outer.weight[0].sign())
        self.outer.bias.copy_(torch.tensor([1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))


class Apart(tp.Module):
    """A linear layer that rounds its sum before it adds the bias."""

    def __init__(self, outputs, dtype, factor):
        super().__init__()
        self.weight = tp.zeros((outputs, WIDTH), dtype=dtype)
        self.bias = tp.zeros((outputs,), dtype=dtype)
        self.factor = factor

    def forward(self, x):
        return (x @ tp.transpose(self.weight, 0, 1)) * self.factor + self.bias


class Port(tp.Module):
    def __init__(self, dtype, factor=1.0, behind=1.0):
        super().__init__()
        self.inner = Apart(WIDTH, dtype, factor)
        self.outer = Apart(1, dtype, 1.0)
        self.behind = behind

    def forward(self, x):
        return self.outer(self.inner(x) * self.behind)


def inputs() -> torch.Tensor:
    return 0.9 + 0.2 * torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(6))


def compared(**wrong):
    x = {"x": inputs()}
    return parity.compare(Model(), lambda dtype: Port(dtype, **wrong), x, ("bf16",), initial="own")


def test_a_bias_that_rounding_loses_in_every_row_passes():
    result = compared()
    assert result.passed, str(result)


@pytest.mark.parametrize(
    ("wrong", "place"), [({"factor": 1.02}, "inner"), ({"behind": 1.02}, "outer receives")]
)
def test_a_wrong_factor_of_that_size_fails_at_its_place(wrong, place):
    result = compared(**wrong)
    assert not result.passed
    assert f"FAIL at {place.partition(' ')[0]}" in str(result)
    assert place in str(result)
