"""Errors measured on few rows: the size of their sampling error, and how often it is exceeded."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from parity.base.precision import PRECISIONS
from parity.verdict.distances import Distance, Oracle, carrying_rows
from parity.verdict.rule import judge
from parity.verdict.sampling_error import (
    FALSE_ALARM,
    RoundingSamples,
    SampledErrors,
    expected_error,
    sampling_factor,
)

BF16, FP32 = PRECISIONS["bf16"], PRECISIONS["fp32"]
OWN = Distance(l2=0.01, largest=0.02, scale_error=0.001)


def test_the_scale_error_is_that_of_the_samples_where_rows_allow_more():
    samples = SampledErrors(8, OWN.l2, OWN.largest, OWN.scale_error, 1.0, 1.0)
    # One error against eight samples and the reference's own.
    expected = sampling_factor(1.0, 9.0) * OWN.scale_error
    assert expected_error(OWN, 1.0, samples).scale_error == pytest.approx(expected, rel=1e-12)


def test_the_sampling_factor_is_the_quantile_of_an_f_distribution():
    # Of one degree of freedom each: the ratio of two normal numbers, a Cauchy variable.
    assert sampling_factor(1, 1) == pytest.approx(stats.cauchy.isf(FALSE_ALARM / 2), rel=1e-6)
    # Known sizes: a normal number against its standard deviation.
    assert sampling_factor(1, 1e12) == pytest.approx(stats.norm.isf(FALSE_ALARM / 2), rel=1e-4)
    assert sampling_factor(1e6, 1e6) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize(("rows", "count"), [(1, 0), (1, 8), (3, 0), (3, 32), (40, 0)])
def test_the_sampling_factor_is_exceeded_as_often_as_stated(monkeypatch, rows, count):
    """Simulated at a share that can be counted: 1 % of 100,000 pairs of programs of the same errors."""
    monkeypatch.setattr("parity.verdict.sampling_error.FALSE_ALARM", 0.01)
    sampling_factor.cache_clear()
    rng = np.random.default_rng(7)
    port = (rng.standard_normal((100_000, rows)) ** 2).mean(axis=1)
    known = (rng.standard_normal((100_000, (count + 1) * rows)) ** 2).mean(axis=1)
    share = np.mean(np.sqrt(port / known) > sampling_factor(rows, (count + 1) * rows))
    sampling_factor.cache_clear()
    assert share == pytest.approx(0.01, rel=0.15)


def test_without_samples_few_rows_prove_nothing_and_many_prove_it_all():
    assert expected_error(OWN, 1, SampledErrors()).l2 > 1.0
    many = expected_error(OWN, 1e6, SampledErrors())
    assert many.l2 == pytest.approx(OWN.l2, rel=1e-2)
    assert many.largest == pytest.approx(OWN.largest, rel=1e-2)


def test_samples_replace_an_error_that_is_small_by_chance():
    small = Distance(l2=1e-9, largest=1e-9, scale_error=0.0)
    error = expected_error(small, 1, SampledErrors(count=32, l2=0.01, largest=0.01, scale_error=0.01))
    assert error.l2 == pytest.approx(sampling_factor(1, 33) * 0.01 * math.sqrt(32 / 33))
    assert error.scale_error == pytest.approx(sampling_factor(1, 33) * 0.01 * math.sqrt(32 / 33))


def test_an_error_above_all_samples_counts_as_it_is():
    error = expected_error(OWN, 8, SampledErrors(count=32, l2=1e-6, largest=1e-6, scale_error=1e-6))
    assert error.l2 < 2 * OWN.l2
    assert error.l2 >= OWN.l2
    assert error.scale_error >= OWN.scale_error


def test_the_scale_error_is_bounded_by_rows_or_by_its_samples():
    by_rows = expected_error(OWN, 100, SampledErrors(count=32, l2=0.01, largest=0.01, scale_error=0.01))
    assert by_rows.scale_error == pytest.approx(sampling_factor(1, 3300) * 0.01 / 10)
    measured = expected_error(OWN, 4, SampledErrors(count=32, l2=0.01, largest=0.01, scale_error=1e-4))
    pooled = math.sqrt((OWN.scale_error**2 + 32 * 1e-8) / 33)
    assert measured.scale_error == pytest.approx(max(OWN.scale_error, sampling_factor(1, 33) * pooled))


def test_samples_count_only_compared_elements():
    oracle = np.array([[1.0, 2.0], [3.0, 0.0]])
    results = torch.tensor(np.stack([oracle, oracle + 0.3, oracle]))
    results[:, 1, 1] = 1e9
    counted = np.array([[True, True], [True, False]])
    samples = RoundingSamples(results)
    errors = samples.errors(Oracle(oracle[counted]), counted)
    alone = Oracle(oracle[counted]).distance(oracle[counted] + 0.3)
    assert errors.count == 3
    for measure in ("l2", "largest", "scale_error"):
        assert getattr(errors, measure) == pytest.approx(getattr(alone, measure) / math.sqrt(3))
    assert samples.errors(Oracle(oracle[counted]), counted) is errors


@pytest.mark.parametrize("shape", [(), (3,), (7, 5), (4, 6, 9)])
def test_samples_together_have_the_errors_of_one_by_one(monkeypatch, shape):
    """The same bits: sums over samples and over elements are in one order."""
    rng = np.random.default_rng(0)
    oracle, counted = rng.standard_normal(shape), np.asarray(rng.random(shape) > 0.0)
    results = torch.from_numpy(oracle + 1e-6 * rng.standard_normal((32, *shape)))
    truth = Oracle(oracle[counted])
    errors = []
    for together in (0, results.numel()):
        monkeypatch.setattr("parity.verdict.sampling_error.MOST_TOGETHER", together)
        errors.append(RoundingSamples(results).errors(truth, counted))
    assert errors[0] == errors[1]
    alone = [truth.distance(result.numpy()[counted]) for result in results]
    assert errors[0].l2 == math.sqrt(sum(distance.l2 * distance.l2 for distance in alone) / 32)
    assert errors[0].largest == math.sqrt(sum(distance.largest**2 for distance in alone) / 32)


def test_equal_rows_share_the_errors_that_samples_draw_for_each():
    errors = SampledErrors(count=32, l2=0.01, largest=0.02, scale_error=0.001)
    assert errors.of_equal_rows(16.0) == SampledErrors(32, 0.01, 0.02, 0.004)
    assert errors.of_equal_rows(1.0) == errors


@pytest.mark.parametrize("copies", [1, 4, 100])
def test_right_programs_pass_on_equal_rows(copies):
    """Copies of a row have the same errors in each program, and other ones in each sample."""
    failed = []
    for seed in range(100):
        oracle, reference, port, samples = _chain(seed, 1)
        rows = torch.from_numpy(samples._results)
        drawn = rows[torch.randint(len(rows), (32, copies), generator=torch.Generator().manual_seed(seed)), 0]
        repeated = (tensor.repeat(copies, 1) for tensor in (oracle, reference, port))
        failed += [seed] if not _judged(*repeated, RoundingSamples(drawn)).passed else []
    assert failed == []


def _chain(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, RoundingSamples]:
    """A sum of products that cancels, one number a row: the oracle, two programs' results, and samples.

    The programs round what goes into the sum, so that their errors are amplified as the sum cancels.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 12, generator=generator, dtype=torch.float64)
    weight = torch.randn(12, generator=generator, dtype=torch.float64)

    def rounded() -> torch.Tensor:
        noise = torch.rand(rows, 12, generator=generator, dtype=torch.float64) * 2 - 1
        return ((hidden * (1 + BF16.unit_roundoff * noise)) @ weight).reshape(rows, 1)

    oracle = (hidden @ weight).reshape(rows, 1)
    samples = RoundingSamples(torch.stack([rounded() for _ in range(32)]))
    return oracle, rounded().bfloat16(), rounded().bfloat16(), samples


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_right_programs_pass_on_few_rows(rows):
    """1,000 pairs of right programs; many references are exact by chance."""
    failed = [seed for seed in range(1000) if not _judged(*_chain(seed, rows)).passed]
    assert failed == []


def test_without_the_sampling_factor_not_all_right_programs_pass(monkeypatch):
    """With the reference's own error as the expected one, some pairs fail."""
    monkeypatch.setattr(
        "parity.verdict.expectation.expected_error", lambda reference, rows, samples: reference
    )
    failed = [seed for seed in range(1000) if not _judged(*_chain(seed, 1)).passed]
    assert len(failed) > 10


@pytest.mark.parametrize("rows", [9, 64])
def test_a_wrong_program_fails_on_few_rows(rows):
    """A factor of 1.1 is detected unless sums cancel to a tenth."""
    detected = 0
    for seed in range(200):
        oracle, reference, port, samples = _chain(seed, rows)
        detected += not _judged(oracle, reference, (port.double() * 1.1).bfloat16(), samples).passed
    assert detected >= 190


def _judged(oracle, reference, port, samples):
    return judge(oracle, reference, port, BF16, longest_sum=12, rounding_samples=samples)


ROWS = 300
SMALL, LARGE = 2e-3, 0.2
"""Errors of most rows and of the first one, against results of size 1."""


def _uneven(
    seed: int, wrong: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, RoundingSamples]:
    """Rows of which the first has nearly the whole error, as behind a norm of a row of small variance.

    Args:
        seed: Seed of results and errors.
        wrong: An error of one element of the port, in another row.
    """
    generator = torch.Generator().manual_seed(seed)
    oracle = torch.randn(ROWS, 4, generator=generator, dtype=torch.float64).clamp(-4.0, 4.0)
    oracle[1] = 4.0
    size = torch.full((ROWS, 1), SMALL, dtype=torch.float64)
    size[0] = LARGE
    direction = torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)
    direction /= direction.norm(dim=1, keepdim=True)

    def rounded() -> torch.Tensor:
        return oracle + size * direction * torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)

    samples = RoundingSamples(torch.stack([rounded() for _ in range(32)]))
    port = rounded()
    port[2, 0] += wrong
    return oracle, rounded().float(), port.float(), samples


def _of_uneven_rows(seed: int, wrong: float = 0.0):
    oracle, reference, port, samples = _uneven(seed, wrong)
    return judge(oracle, reference, port, FP32, longest_sum=1, rounding_samples=samples)


def test_right_programs_pass_where_one_row_carries_the_error():
    """1,000 pairs. In a few of them, the port's first row is three times as wrong as it usually is."""
    assert [seed for seed in range(1000) if not _of_uneven_rows(seed).passed] == []


def test_with_all_rows_as_degrees_of_freedom_not_all_of_them_pass(monkeypatch):
    monkeypatch.setattr("parity.verdict.sampling_error.error_rows", lambda *_: (math.inf, math.inf))
    assert len([seed for seed in range(1000) if not _of_uneven_rows(seed).passed]) > 3


def test_an_error_of_another_row_is_still_detected():
    assert not any(_of_uneven_rows(seed, wrong=10 * LARGE).passed for seed in range(50))


@pytest.mark.parametrize("count", [1, 32])
def test_rows_of_equal_errors_keep_their_degrees_of_freedom(count):
    """Of the norm nearly all; of the largest element enough for a factor below 1.6."""
    rows = 1024
    noise = torch.randn(count, rows, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    oracle = np.ones((rows, 8))
    counted = np.ones((rows, 8), bool)
    sampled = RoundingSamples(torch.from_numpy(oracle) + 1e-3 * noise).errors(
        Oracle(oracle[counted]), counted
    )
    assert rows / 1.5 < sampled.l2_rows <= rows
    assert sampling_factor(sampled.largest_rows, (count + 1) * sampled.largest_rows) < 1.6


def test_the_rows_that_carry_the_samples_errors_are_those_of_all_samples_in_each_mask():
    results = torch.ones(2, 3, 2, dtype=torch.float64)
    results[0, 0] += 0.1
    results[1, 1] += 0.2
    samples, counted = RoundingSamples(results), np.ones((3, 2), bool)
    both = (0.02 + 0.08) ** 2 / (0.02**2 + 0.08**2)
    assert samples.errors(Oracle(np.ones(6)), counted).l2_rows == pytest.approx(both)
    without = counted.copy()
    without[1] = False
    assert samples.errors(Oracle(np.ones(4)), without).l2_rows == pytest.approx(1.0)
    zero = RoundingSamples(results - 1.0).errors(Oracle(np.zeros(6)), counted)
    assert zero.l2_rows == pytest.approx(both)


def test_an_error_of_many_rows_without_samples():
    """Where one row carries the reference's error, another program may have a larger one by chance."""
    rng = np.random.default_rng(7)
    exact = rng.normal(size=(10_000, 6))
    oracle = Oracle(exact.ravel())
    counted = np.ones(exact.shape, bool)
    alike = exact + 1e-6 * rng.normal(size=exact.shape)
    one_row = alike.copy()
    one_row[17] += 1e-3
    limits = {}
    for name, reference in {"alike": alike, "one row": one_row}.items():
        error = oracle.distance(reference.ravel())
        samples = SampledErrors.of_reference(oracle, reference.ravel(), counted)
        assert samples.count == 0
        expected = expected_error(error, 10_000, samples)
        by_chance = error.l2 / 100.0
        limits[name] = (
            expected.largest / error.largest,
            expected.l2 / error.l2,
            expected.scale_error / by_chance,
        )
    assert limits["alike"][0] < 1.3
    assert limits["alike"][1] == pytest.approx(sampling_factor(10_000, 10_000), rel=0.01)
    assert limits["alike"][2] == pytest.approx(sampling_factor(1, 10_000), rel=0.01)
    of_one = sampling_factor(1.0, 9.0)
    assert limits["one row"] == pytest.approx((of_one, of_one, of_one))


def test_equal_rows_without_samples_may_carry_a_larger_error_of_another_program():
    """200 equal rows have the errors of one row: programs differ in it by more than in all others."""
    rng = np.random.default_rng(7)
    row = rng.normal(size=(1, 6))
    exact = np.concatenate([np.repeat(row, 200, axis=0), rng.normal(size=(2_000, 6))])
    size = np.concatenate([np.full(200, 1e-1), np.full(2_000, 1e-2)])[:, None]
    counted = np.ones(exact.shape, bool)

    def program() -> torch.Tensor:
        noise = rng.normal(size=(2_001, 6))
        return torch.from_numpy(exact + size * np.concatenate([np.repeat(noise[:1], 200, axis=0), noise[1:]]))

    programs = [program() for _ in range(32)]
    pairs = [(one, other) for one in programs for other in programs if one is not other]
    refused = [pair for pair in pairs if not judge(torch.from_numpy(exact), *pair, BF16, 1).passed]
    assert refused == []
    one_row = SampledErrors.of_reference(
        Oracle(exact.ravel()), programs[0].numpy().ravel(), counted, carrying_rows(exact, counted).numbers
    )
    assert one_row.l2_rows < 5.0


def test_samples_in_bfloat16_have_the_errors_of_their_numbers():
    oracle = np.random.default_rng(3).normal(size=(40, 6))
    results = torch.from_numpy(np.stack([oracle, 1.01 * oracle])).bfloat16()
    counted = np.ones((40, 6), bool)
    own, wide = (
        RoundingSamples(given).errors(Oracle(oracle.ravel()), counted)
        for given in (results, results.double())
    )
    assert own == wide
    assert own.l2 > 1e-3
