"""A model may keep tensors of one call for later ones, such as a table in a cache of Python's."""

import functools

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners import make_runner
from parity.runners.oracle.rounding import Errors, Roundings
from parity.runners.oracle.sampling import NotBatchable, RoundingSamples, rounding_samples

FP32 = PRECISIONS["fp32"]
EXACT = torch.arange(1, 6, dtype=torch.float64) / 3.0


class Keeper:
    """Keeps the table of its first call."""

    def __init__(self):
        self.table = None

    def __call__(self, x):
        if self.table is None:
            self.table = torch.arange(1, 6, dtype=torch.float64) / 3.0
        return x * self.table


def sampled(function, *arguments, count):
    with torch.inference_mode(), RoundingSamples(Errors(FP32, 0), count):
        return function(*arguments)


@pytest.fixture
def keeper():
    """With a table of three samples."""
    keeper = Keeper()
    sampled(keeper, torch.ones(5, dtype=torch.float64), count=3)
    assert len(keeper.table.values) == 3
    return keeper


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_later_pass_takes_as_many_samples_as_it_needs(keeper, count):
    kept = keeper.table.values.clone()
    # No rounding: moved numbers are the same ones.
    result = sampled(keeper.table.flip, 0, count=count)
    assert torch.equal(result.values, kept.flip(1)[torch.arange(count) % 3])


def test_outside_of_a_pass_it_is_one_sample(keeper):
    kept = keeper.table.values.clone()
    with torch.inference_mode():
        result = keeper(torch.full((5,), 2.0, dtype=torch.float64))
    assert type(result) is torch.Tensor
    assert torch.equal(result, 2.0 * kept[0])
    assert not torch.equal(result, 2.0 * EXACT)


def test_samples_one_by_one_have_one_sample_of_it_and_errors_of_their_own(keeper):
    x = torch.full((5,), 1.7, dtype=torch.float64)
    with torch.inference_mode(), Roundings(Errors(FP32, 1)):
        result = keeper(x)
    assert 0.0 < float((result - x * EXACT).norm()) < 4 * FP32.unit_roundoff * float((x * EXACT).norm())


def test_a_result_that_is_the_kept_tensor_has_the_samples_of_its_pass(keeper):
    taken = rounding_samples(dict, lambda _: {"table": keeper.table}, ["table"], FP32, 7, 8)["table"]
    assert torch.equal(taken, keeper.table.values[torch.arange(7) % 3])


def test_lists_of_kept_tensors_are_taken_too(keeper):
    both = sampled(lambda: torch.cat([keeper.table, keeper.table]), count=2)
    assert torch.equal(both.values, keeper.table.values[:2].repeat(1, 2))


def test_a_write_into_one_is_refused_in_a_pass(keeper):
    with pytest.raises(NotBatchable, match="keeps from another call"):
        sampled(keeper.table.mul_, 2.0, count=2)


def test_code_that_leaves_the_pass_inside_it_is_refused(keeper):
    def leave():
        with torch.utils._python_dispatch._disable_current_modes():
            return keeper.table * 2.0

    with pytest.raises(NotBatchable, match="outside of the pass"):
        sampled(leave, count=3)


@functools.cache
def angles(count, dtype):
    return torch.arange(count, dtype=torch.float64).mul(0.37).sin().to(dtype)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(12, 12)
        self.head = torch.nn.Linear(12, 8_000)

    def forward(self, x):
        wide = self.linear(x).float()
        return self.head((wide * angles(12, wide.dtype)).to(x.dtype))


class Cached(Case):
    name = "cached"
    batch_size = 40

    def build_reference(self):
        return Scale()

    def build_port(self, dtype):
        raise AssertionError("the oracle has no port")

    def make_inputs(self):
        return {"x": torch.randn(self.batch_size, 12, generator=torch.Generator().manual_seed(1)).numpy()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_oracle_samples_a_model_with_a_cache_by_type(precision, caplog):
    # The oracle's first pass asks for the table in float64, its samples in float32,
    # in passes of six and one of two.
    angles.cache_clear()
    case, oracle = Cached(), make_runner("oracle")
    oracle.load(case, PRECISIONS[precision], case_weights(case)[0])
    taps = oracle.run_tapped(make_inputs(case).typical.arrays).tensors
    assert {len(tap) for name, tap in taps.items() if name.startswith("rounding_samples:")} == {26}
    assert "takes longer" not in caplog.text
