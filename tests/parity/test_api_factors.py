"""`parity.compare` on ports that multiply at another place: what a module around undoes is a form."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

WIDTH, RANK, FACTOR = 12, 3, 4.0
RNG = np.random.default_rng(0)
ROWS = {"x": RNG.standard_normal((48, WIDTH)).astype(np.float32)}


class Adapter(torch.nn.Module):
    """A product of low rank times a factor, beside its input."""

    def __init__(self, bias):
        super().__init__()
        self.down = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, WIDTH, bias=bias)

    def forward(self, x):
        return x + self.up(self.down(x)) * FACTOR


class Model(torch.nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.adapter = Adapter(bias)
        self.head = torch.nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.adapter(x)))


class AdapterPort(tp.Module):
    """Multiplies the input of `first` by `before`, and the result of `up` by `behind`."""

    def __init__(self, dtype, bias, first, before, behind):
        super().__init__()
        self.down = tp.Linear(WIDTH, RANK, bias=False, dtype=dtype)
        self.up = tp.Linear(RANK, WIDTH, bias=bias, dtype=dtype)
        self.first, self.before, self.behind = first, before, behind

    def forward(self, x):
        low = self.down(x * self.before if self.first == "down" else x)
        return x + self.up(low * self.before if self.first == "up" else low) * self.behind


class Port(tp.Module):
    def __init__(self, dtype, bias=False, first="up", before=FACTOR, behind=1.0):
        super().__init__()
        self.adapter = AdapterPort(dtype, bias, first, before, behind)
        self.head = tp.Linear(WIDTH, 4, dtype=dtype)

    def forward(self, x):
        return self.head(tp.tanh(self.adapter(x)))


def judged(precisions, bias=False, **options):
    torch.manual_seed(0)
    return parity.compare(Model(bias), lambda dtype: Port(dtype, bias, **options), ROWS, precisions)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"adapter.up": 4}),
        ({"first": "down"}, {"adapter.down": 4, "adapter.up": 4}),
        ({"first": "down", "before": -8.0, "behind": -0.5}, {"adapter.down": -8, "adapter.up": -8}),
        ({"before": 1.0, "behind": FACTOR}, {}),
    ],
)
def test_a_factor_that_the_module_around_undoes_is_a_form(options, expected):
    result = judged(("fp32", "fp16", "bf16"), **options)
    assert result.passed, result
    for tap, own in modules(result).items():
        factors = [note for note in own.notes if "times the numbers" in note]
        assert len(factors) == (tap in expected)
        if factors:
            number = float(factors[0].split()[3])
            assert number == pytest.approx(expected[tap], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"before": 1.0}, "FAIL at adapter"),
        ({"before": FACTOR, "behind": FACTOR}, "adapter.up receives another"),
        ({"before": 2.0}, "adapter.up receives another"),
        ({"first": "down", "before": FACTOR, "behind": 1.0 + 1e-4}, "adapter"),
        ({"first": "down", "before": 1.0}, "FAIL at adapter"),
        # A bias is no longer right behind a factor.
        ({"bias": True}, "adapter.up receives another"),
        ({"bias": True, "first": "down"}, "adapter.down receives another"),
    ],
)
def test_a_factor_that_stays_is_a_fault_where_it_begins(options, text):
    result = judged(("fp32",), **options)
    assert not result.passed
    assert text in str(result)


class Drowned(torch.nn.Module):
    """A product that is a part of the sum around it, too small for half types."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + 1e-4 * self.layer(x)


class DrownedModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Drowned()

    def forward(self, x):
        return self.inner(x)


class DrownedPort(tp.Module):
    def __init__(self, dtype, factor):
        super().__init__()
        self.layer = tp.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)
        self.factor = factor

    def forward(self, x):
        return x + self.layer(x * self.factor) * 1e-4


class DrownedModelPort(tp.Module):
    def __init__(self, dtype, factor):
        super().__init__()
        self.inner = DrownedPort(dtype, factor)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(("precision", "factor"), [("bf16", 1.01), ("fp32", 4.0), ("fp32", -1.0)])
def test_a_factor_that_nothing_undoes_is_a_fault_in_a_small_part_of_a_sum(precision, factor):
    """The sum's check in bf16 is as coarse as the smallest factor. In fp32 it shows the part itself."""
    result = parity.compare(DrownedModel(), lambda dtype: DrownedModelPort(dtype, factor), ROWS, (precision,))
    assert not result.passed
    assert "inner" in str(result)
