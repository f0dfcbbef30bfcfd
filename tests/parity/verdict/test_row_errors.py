"""A module that rounds more than the reference is noted; chance and few rows are not."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import bootstrap

from parity.base.precision import PRECISIONS
from parity.verdict.distances import row_starts, sums_by_row
from parity.verdict.row_errors import FEWEST_ROWS, NOTED, RowErrors
from parity.verdict.rule import judge

ALL = np.ones((400, 16), dtype=bool)


def row_errors(port, reference, counted=ALL):
    """Row errors of two whole tensors of errors."""
    starts = row_starts(counted)
    return RowErrors.of(*(sums_by_row(np.square(errors[counted]), starts) for errors in (port, reference)))


def drawn(factor, seed=0, counted=ALL):
    """Row errors of a port with a factor on the reference's errors."""
    random = np.random.default_rng(seed)
    scale = random.gamma(9.0, size=(counted.shape[0], *[1] * (counted.ndim - 1)))
    port, reference = (scale * random.normal(size=counted.shape) for _ in range(2))
    return row_errors(factor * port, reference, counted)


def test_the_interval_is_that_of_a_bootstrap_over_rows():
    random = np.random.default_rng(1)
    scale = random.gamma(2.0, size=(400, 1))
    port, reference = 1.3 * scale * random.normal(size=(400, 16)), scale * random.normal(size=(400, 16))
    low, high = row_errors(port, reference).interval()
    a, b = (np.square(errors).sum(axis=-1) for errors in (port, reference))
    resampled = bootstrap(
        (a, b),
        lambda a, b, axis: np.sqrt(a.sum(axis=axis) / b.sum(axis=axis)),
        paired=True,
        vectorized=True,
        n_resamples=4000,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (low, high) == pytest.approx(resampled, rel=0.01)


def test_the_interval_holds_the_factor_as_often_as_it_says():
    held = [
        low <= 1.3 <= high for low, high in (drawn(1.3, seed, ALL[:100]).interval() for seed in range(1000))
    ]
    assert 0.92 < np.mean(held) < 0.98


def test_a_larger_error_is_noted_and_chance_is_not():
    assert drawn(1.5).is_noted
    assert not any(drawn(1.0, seed).is_noted for seed in range(200))
    # Above the least factor, and not beyond chance.
    assert not drawn(1.02 * NOTED, seed=1, counted=ALL[:60]).is_noted
    assert drawn(1.5).text().startswith("rounds 1.49 times as much as the reference (1.44 to 1.53 at 95%")


def test_few_rows_have_no_interval():
    few = drawn(3.0, counted=np.ones((5, 16), dtype=bool))
    assert few.effective_rows < FEWEST_ROWS
    assert (few.interval(), few.is_noted) == (None, False)
    assert few.text().endswith("too few rows to tell")
    # One row carries the errors of many rows.
    port, reference = np.full((2, 400, 16), 1e-3)
    port[0], reference[0] = 3.0, 1.0
    assert row_errors(port, reference).interval() is None


def test_batches_add_up():
    half = ALL.copy()
    half[200:] = False
    random = np.random.default_rng(0)
    port, reference = random.normal(size=(2, 400, 16))
    first, second = (row_errors(port, reference, rows) for rows in (half, ~half))
    both = first + second
    whole = row_errors(port, reference)
    assert both.rows == whole.rows == 400
    assert both.interval() == pytest.approx(whole.interval())


def test_padding_is_in_no_row():
    counted = ALL.copy()
    counted[:, 5:] = False
    counted[7] = False
    assert drawn(1.0, counted=counted).rows == 399
    assert drawn(1.0, counted=ALL[:, 0]).rows == 400


def test_an_exact_reference_and_two_exact_sides():
    zero, one = np.zeros(ALL.shape), np.ones(ALL.shape)
    exact = row_errors(one, zero)
    assert (exact.factor, exact.is_noted) == (math.inf, True)
    assert exact.text() == "rounds where the reference is exact (400 rows)"
    both = row_errors(zero, zero)
    assert (both.factor, both.is_noted) == (1.0, False)
    assert both.effective_rows == 0.0


def test_an_interval_from_the_least_factor_on_is_noted(monkeypatch):
    for low, noted in ((NOTED, True), (0.999 * NOTED, False)):
        monkeypatch.setattr(RowErrors, "interval", lambda self, low=low: (low, 2.0))
        assert drawn(1.5).is_noted is noted


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_early_cast_passes_and_is_noted(precision):
    """A product in half precision under a sum in float32: the port casts before the sum."""
    dtype = PRECISIONS[precision].dtype
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).to(dtype) for shape in ((200, 32), (32, 32)))
    bias = torch.randn(32, generator=generator).to(dtype)
    product = x.float() @ weight.float()
    oracle = x.double() @ weight.double() + bias.double()
    reference = (product + bias.float()).to(dtype)
    early = product.to(dtype) + bias
    for port, noted in ((early, True), (reference, False)):
        verdict = judge(oracle, reference, port, PRECISIONS[precision], longest_sum=33, by_row=True)
        assert verdict.passed
        assert verdict.margin < 0.6
        assert verdict.row_errors.is_noted is noted


def test_only_a_pass_with_arithmetic_has_row_errors():
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    exact = x.double()
    assert judge(exact, x, x, PRECISIONS["fp32"], longest_sum=0, by_row=True).row_errors is None
    assert judge(exact, x, 2 * x, PRECISIONS["fp32"], longest_sum=1, by_row=True).row_errors is None
    assert judge(exact, x, x, PRECISIONS["fp32"], longest_sum=1).row_errors is None


def test_the_interval_of_few_rows_has_the_quantile_of_their_number():
    # Rows of equal weight: the ratio of their squared errors is 2 in one half, and 1 in the other.
    a, b = np.tile([2.0, 1.0], 8), np.ones(16)
    errors = RowErrors.of(a, b)
    assert errors.effective_rows == pytest.approx(a.sum() ** 2 / (a @ a))
    rows = errors.effective_rows
    deviation = math.sqrt(((a / a.sum() - b / b.sum()) ** 2).sum() * rows / (rows - 1))
    half = stats.t.ppf(0.975, rows - 1) * deviation / 2
    factor = math.sqrt(1.5)
    assert errors.interval() == pytest.approx((factor * math.exp(-half), factor * math.exp(half)))


def test_as_many_rows_as_are_needed_have_an_interval():
    ones = np.ones(int(FEWEST_ROWS))
    assert RowErrors.of(ones, ones).interval() == pytest.approx((1.0, 1.0))
    assert RowErrors.of(ones[1:], ones[1:]).interval() is None


def test_two_exact_results_round_alike():
    none = np.zeros(100)
    assert RowErrors.of(none, none).text() == "rounds as little as the reference: both are exact"
    assert "exact" not in RowErrors.of(none, none + 1.0).text()
