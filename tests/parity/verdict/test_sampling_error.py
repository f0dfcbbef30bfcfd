"""Errors measured on few rows: what luck may do to them, and how often it does."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from parity.base.precision import PRECISIONS
from parity.verdict.distances import Distance, Oracle
from parity.verdict.rule import judge
from parity.verdict.sampling_error import FALSE_ALARM, Drawn, Draws, expected, luck

BF16 = PRECISIONS["bf16"]
OWN = Distance(l2=0.01, largest=0.02, gain=0.001)


def test_luck_is_the_quantile_of_an_f_distribution():
    # Of one degree of freedom each: the ratio of two normal numbers, a Cauchy variable.
    assert luck(1, 1) == pytest.approx(stats.cauchy.isf(FALSE_ALARM / 2), rel=1e-6)
    # Known sizes: a normal number against its standard deviation.
    assert luck(1, 1e12) == pytest.approx(stats.norm.isf(FALSE_ALARM / 2), rel=1e-4)
    assert luck(1e6, 1e6) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize(("rows", "draws"), [(1, 0), (1, 8), (3, 0), (3, 32), (40, 0)])
def test_luck_is_exceeded_as_often_as_stated(monkeypatch, rows, draws):
    """Simulated at a share that can be counted: 1 % of 100,000 pairs of programs of the same errors."""
    monkeypatch.setattr("parity.verdict.sampling_error.FALSE_ALARM", 0.01)
    luck.cache_clear()
    rng = np.random.default_rng(7)
    port = (rng.standard_normal((100_000, rows)) ** 2).mean(axis=1)
    known = (rng.standard_normal((100_000, (draws + 1) * rows)) ** 2).mean(axis=1)
    share = np.mean(np.sqrt(port / known) > luck(rows, (draws + 1) * rows))
    luck.cache_clear()
    assert share == pytest.approx(0.01, rel=0.15)


def test_without_draws_few_rows_prove_nothing_and_many_prove_it_all():
    assert expected(OWN, 1, Drawn()).l2 > 1.0
    many = expected(OWN, 1e6, Drawn())
    assert many.l2 == pytest.approx(OWN.l2, rel=1e-2)
    assert many.largest == pytest.approx(OWN.largest, rel=1e-2)


def test_draws_take_the_place_of_a_lucky_error():
    lucky = Distance(l2=1e-9, largest=1e-9, gain=0.0)
    found = expected(lucky, 1, Drawn(count=32, l2=0.01, largest=0.01, gain=0.01))
    assert found.l2 == pytest.approx(luck(1, 33) * 0.01 * math.sqrt(32 / 33))
    assert found.gain == pytest.approx(luck(1, 33) * 0.01 * math.sqrt(32 / 33))


def test_an_error_that_no_draw_explains_counts_as_it_is():
    found = expected(OWN, 8, Drawn(count=32, l2=1e-6, largest=1e-6, gain=1e-6))
    assert found.l2 < 2 * OWN.l2
    assert found.l2 >= OWN.l2
    assert found.gain >= OWN.gain


def test_the_gain_is_bounded_by_rows_or_as_it_was_measured():
    by_rows = expected(OWN, 100, Drawn(count=32, l2=0.01, largest=0.01, gain=0.01))
    assert by_rows.gain == pytest.approx(luck(1, 3300) * 0.01 / 10)
    measured = expected(OWN, 4, Drawn(count=32, l2=0.01, largest=0.01, gain=1e-4))
    pooled = math.sqrt((OWN.gain**2 + 32 * 1e-8) / 33)
    assert measured.gain == pytest.approx(max(OWN.gain, luck(1, 33) * pooled))


def test_draws_count_only_where_elements_do():
    oracle = np.array([[1.0, 2.0], [3.0, 0.0]])
    results = torch.tensor(np.stack([oracle, oracle + 0.3, oracle]))
    results[:, 1, 1] = 1e9
    keep = np.array([[True, True], [True, False]])
    draws = Draws(results)
    found = draws.errors(Oracle(oracle[keep]), keep)
    alone = Oracle(oracle[keep]).distance(oracle[keep] + 0.3)
    assert found.count == 3
    for measure in ("l2", "largest", "gain"):
        assert getattr(found, measure) == pytest.approx(getattr(alone, measure) / math.sqrt(3))
    assert draws.errors(Oracle(oracle[keep]), keep) is found


def _chain(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Draws]:
    """A sum of products that cancels, one number a row: the oracle, two programs' results, and draws.

    The programs round what goes into the sum, so that their errors are amplified as the sum cancels.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 12, generator=generator, dtype=torch.float64)
    weight = torch.randn(12, generator=generator, dtype=torch.float64)

    def rounded() -> torch.Tensor:
        noise = torch.rand(rows, 12, generator=generator, dtype=torch.float64) * 2 - 1
        return ((hidden * (1 + BF16.unit_roundoff * noise)) @ weight).reshape(rows, 1)

    oracle = (hidden @ weight).reshape(rows, 1)
    draws = Draws(torch.stack([rounded() for _ in range(32)]))
    return oracle, rounded().bfloat16(), rounded().bfloat16(), draws


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_right_programs_pass_on_few_rows(rows):
    """1,000 pairs of right programs, many of whose references are exact by luck."""
    failed = [seed for seed in range(1000) if not _judged(*_chain(seed, rows)).passed]
    assert failed == []


def test_the_same_programs_without_luck_would_not_all_pass(monkeypatch):
    """What the test above holds against: with the reference's own error for its size, some pairs fail."""
    monkeypatch.setattr("parity.verdict.rule.expected", lambda reference, rows, draws: reference)
    failed = [seed for seed in range(1000) if not _judged(*_chain(seed, 1)).passed]
    assert len(failed) > 10


@pytest.mark.parametrize("rows", [9, 64])
def test_a_wrong_program_fails_on_few_rows(rows):
    """A tenth too much is seen wherever sums do not cancel to a tenth."""
    found = 0
    for seed in range(200):
        oracle, reference, port, draws = _chain(seed, rows)
        found += not _judged(oracle, reference, (port.double() * 1.1).bfloat16(), draws).passed
    assert found >= 190


def _judged(oracle, reference, port, draws):
    return judge(oracle, reference, port, BF16, longest_sum=12, draws=draws)
