"""Distances from the oracle, the crossing of a limit, and rows that carry a result, by hand."""

import math

import numpy as np
import pytest

from parity.verdict.distances import (
    Distance,
    Oracle,
    _keys,
    carrying_rows,
    compared_rows,
    error_rows,
    row_starts,
    sums_by_row,
)

INF = math.inf


def _array(*values):
    return np.array(values, dtype=np.float64)


def test_the_three_measures_of_a_distance():
    oracle = Oracle(_array(3.0, -4.0))
    assert oracle.largest == 4.0
    assert oracle.distance(_array(3.0, -4.0)) == Distance(0.0, 0.0, 0.0)
    assert oracle.distance(_array(3.0, -2.0)) == Distance(2 / 5, 2 / 4, pytest.approx(-8 / 25))
    assert oracle.distance(_array(9.0, -12.0)) == Distance(2.0, pytest.approx(2.0), pytest.approx(2.0))
    assert oracle.distance(_array(2.0, -4.0)) == Distance(1 / 5, 1 / 4, pytest.approx(-3 / 25))


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_a_distance_neither_overflows_nor_underflows(scale):
    distance = Oracle(_array(3.0, 4.0) * scale).distance(_array(3.0, 2.0) * scale)
    assert [distance.l2, distance.largest, distance.scale_error] == pytest.approx([2 / 5, 2 / 4, -8 / 25])


def test_an_oracle_of_zeros_is_infinitely_far_from_everything_else():
    zeros = Oracle(_array(0.0, 0.0))
    assert zeros.largest == 0.0
    assert zeros.distance(_array(0.0, 0.0)) == Distance(0.0, 0.0, 0.0)
    assert zeros.distance(_array(0.0, 1e-300)) == Distance(INF, INF, 0.0)
    assert zeros.distance(_array(0.0, math.ulp(0.0))) == Distance(INF, INF, 0.0)


def test_the_larger_one_of_each_measure():
    one, other = Distance(1.0, 5.0, 3.0), Distance(4.0, 2.0, 6.0)
    assert one.largest_of(other) == other.largest_of(one) == Distance(4.0, 5.0, 6.0)


@pytest.mark.parametrize(
    ("distance", "exceeds"),
    [
        (Distance(1.0, 2.0, 3.0), False),
        (Distance(1.0, 2.0, -3.0), False),
        (Distance(1.1, 0.0, 0.0), True),
        (Distance(0.0, 2.1, 0.0), True),
        (Distance(0.0, 0.0, 3.1), True),
        (Distance(0.0, 0.0, -3.1), True),
    ],
)
def test_a_distance_exceeds_a_limit_in_any_measure_and_not_at_the_limit(distance, exceeds):
    assert distance.exceeds(Distance(1.0, 2.0, 3.0)) is exceeds


@pytest.mark.parametrize(
    ("result", "added", "limit", "factor"),
    [
        # The oracle is (3, 4), of norm 5 and largest element 4.
        ((3, 4), (0, 2), Distance(INF, 0.5, INF), 1.0),
        ((3, 4), (0, -2), Distance(INF, 0.5, INF), 1.0),
        ((3, 5), (0, 2), Distance(INF, 0.5, INF), 0.5),
        ((3, 5), (0, -2), Distance(INF, 0.5, INF), 1.5),
        ((3, 5), (0.1, -2), Distance(INF, 0.5, INF), 1.5),
        ((3, 4), (4, 2), Distance(INF, 0.5, INF), 0.5),
        ((3, 4), (3, 4), Distance(0.5, INF, INF), 0.5),
        ((3, 5), (0, 2), Distance(0.8, INF, INF), 1.5),
        ((3, 5), (0, -2), Distance(0.8, INF, INF), 2.5),
        ((4, 4), (0, 2), Distance(math.sqrt(5) / 5, INF, INF), 1.0),
        ((3, 4), (3, 4), Distance(INF, INF, 0.5), 0.5),
        ((3, 4), (-3, -4), Distance(INF, INF, 0.5), 0.5),
        ((3.3, 4.4), (3, 4), Distance(INF, INF, 0.5), 0.4),
        ((3.3, 4.4), (-3, -4), Distance(INF, INF, 0.5), 0.6),
        ((3, 4), (4, -3), Distance(INF, INF, 0.5), INF),
        ((3, 4), (3, 4), Distance(0.5, 0.4, 0.3), 0.3),
        ((3, 4), (3, 4), Distance(0.3, 0.4, 0.5), 0.3),
        ((3, 4), (3, 4), Distance(0.4, 0.3, 0.5), 0.3),
        ((3, 4), (0, 0), Distance(0.5, 0.5, 0.5), INF),
        # One element meets its limit before the norm does.
        ((3, 4), (0, 8), Distance(0.5, 0.5, INF), 0.25),
        ((4, 4), (0, 4), Distance(0.52, 0.5, INF), 0.5),
        # An element that does not move may be at its limit.
        ((5, 4), (0, 2), Distance(INF, 0.5, INF), 1.0),
    ],
)
def test_the_factor_at_which_a_limit_is_met(result, added, limit, factor):
    oracle = Oracle(_array(3.0, 4.0))
    error, scaled = oracle.scaled(_array(*result) - oracle.values), oracle.scaled(_array(*added))
    assert oracle.crossings(error, scaled, limit)[0] == pytest.approx(factor, rel=1e-12)
    assert oracle.crossings(error, -scaled, limit)[1] == pytest.approx(factor, rel=1e-12)


def test_a_result_beyond_its_limit_by_rounding_meets_it_at_once():
    oracle = Oracle(_array(3.0, 4.0))
    # The difference is across the direction: no factor reaches the limit again.
    limit = Distance(0.9, INF, INF)
    crossings = oracle.crossings(oracle.scaled(_array(4.0, -3.0)), oracle.scaled(_array(3.0, 4.0)), limit)
    assert crossings == pytest.approx((0.0, 0.0))


def test_no_measure_is_a_negative_zero():
    """Which a report would show as `-0`."""
    assert str(Oracle(_array(-0.0)).largest) == "0.0"
    oracle = Oracle(_array(3.0, -4.0))
    for error in ((0.0, 0.0), (-0.0, -0.0), (0.0, -0.0)):
        assert str(oracle.size(_array(*error)).largest) == "0.0"


def test_an_oracle_of_zeros_has_the_scale_of_its_unit():
    zeros = Oracle(_array(0.0, 0.0), unit=_array(3e-8, -4e-8))
    assert zeros.distance(_array(3e-8, -4e-8)) == Distance(1.0, 1.0, 0.0)
    far = zeros.distance(_array(0.0, 10.0))
    assert (far.l2, far.largest) == (pytest.approx(2e8), pytest.approx(2.5e8))
    # A unit of zeros is none, and other oracles have their own scale.
    assert Oracle(_array(0.0), unit=_array(0.0)).distance(_array(1e-300)) == Distance(INF, INF, 0.0)
    assert Oracle(_array(2.0), unit=_array(7.0)).distance(_array(3.0)) == Distance(0.5, 0.5, 0.5)


def test_no_factor_meets_a_limit_of_an_oracle_of_zeros():
    zeros = Oracle(_array(0.0, 0.0))
    assert zeros.crossings(_array(0.0, 0.0), _array(1.0, 1.0), Distance(0.1, 0.1, 0.1)) == (INF, INF)


def test_rows_carry_by_the_squares_of_their_norms():
    values = np.array([[3.0, 0.0], [0.0, 4.0], [np.nan, np.nan]])
    counted = np.array([[True, True], [True, True], [False, False]])
    assert carrying_rows(values, counted).count == pytest.approx(25**2 / (81 + 256), rel=1e-12)
    # An element that does not count carries nothing, in a row that does.
    values[0, 1] = np.nan
    counted[0, 1] = False
    assert carrying_rows(values, counted).count == pytest.approx(25**2 / (81 + 256), rel=1e-12)
    assert carrying_rows(values[:2].ravel(), counted[:2].ravel()).count == pytest.approx(25**2 / (81 + 256))
    # The last axis is a row, however many axes stand before it.
    rows = np.array([3.0, 4.0]).reshape(2, 1, 1) * np.eye(5)[:3]
    assert carrying_rows(rows, np.ones(rows.shape, bool)).count == pytest.approx(75**2 / (3 * (81 + 256)))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_fourth_powers_neither_overflow_nor_underflow(scale):
    values = np.array([[3.0], [-4.0]]) * scale
    assert carrying_rows(values, np.ones((2, 1), bool)).count == pytest.approx(25**2 / (81 + 256))


def test_equal_rows_carry_a_result_together():
    """Rows 3, 4 and 3, 4 have the square 50 in place of 25 each; row 5, 12 has 169."""
    values = np.array([[3.0, 4.0], [5.0, 12.0], [3.0, 4.0]])
    rows = carrying_rows(values, np.ones(values.shape, bool))
    assert rows.count == pytest.approx(219**2 / (50**2 + 169**2))
    assert rows.repeats == pytest.approx((50**2 + 169**2) / (2 * 25**2 + 169**2))
    column = np.array([2.0, -2.0, 2.0])
    rows = carrying_rows(column, np.ones(3, bool))
    assert rows[:2] == pytest.approx((81 * 16 / 9 / 80, 80 / 48))
    assert rows.numbers.tolist() == [1, 0, 1]


def test_different_rows_are_told_apart_and_equal_ones_are_not():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((100_003, 7))
    # No BLAS: its sums of equal rows may have another order.
    values = np.concatenate([values, values[:999]])
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    assert len(np.unique(_keys(values))) == len(np.unique(values, axis=0)) == 100_003


def test_a_result_of_zeros_has_no_carrying_row():
    assert carrying_rows(np.zeros((4, 3)), np.ones((4, 3), bool))[:2] == (0.0, 1.0)
    assert carrying_rows(np.ones((4, 3)), np.zeros((4, 3), bool))[:2] == (0.0, 1.0)
    assert carrying_rows(np.ones(4), np.zeros(4, bool))[:2] == (0.0, 1.0)


def test_compared_rows():
    counted = np.array([[True, False], [False, False], [True, True]])
    assert compared_rows(counted) == 2
    assert compared_rows(counted[0]) == 1
    assert compared_rows(np.array(True)) == 1


def test_the_rows_that_carry_an_error():
    """Squared errors of 4, 4 and 2 by row, and of 1 in padding that does not count."""
    counted = np.array([[True, True], [True, False], [False, False], [False, True]])
    norm, largest = error_rows(np.array([1.0, 3.0, 4.0, 2.0]), counted)
    assert norm == pytest.approx(100 / 36)
    assert largest == pytest.approx((2 * 256 + 16) ** 2 / (2 * 256**2 + 16**2))
    assert error_rows(np.zeros(4), counted) == (0.0, 0.0)
    tiny = error_rows(np.array([1.0, 3.0, 4.0, 2.0]) * 1e-300, counted)
    assert tiny == pytest.approx((norm, largest))


def test_equal_rows_carry_an_error_together():
    """Squared errors of 4, 4 and 2 by row, of which the first and the last row are equal."""
    squares, counted = np.array([4.0, 4.0, 2.0]), np.ones((3, 1), bool)
    norm, largest = error_rows(squares, counted, np.array([1, 0, 1]))
    assert norm == pytest.approx(100 / (36 + 16))
    assert largest == pytest.approx((3**4 + 4**4) ** 2 / (3**8 + 4**8))


def test_sums_by_row_of_numbers_are_the_numbers():
    numbers = np.array([1.0, 2.0])
    assert sums_by_row(numbers, row_starts(np.array([True, False, True]))) is numbers
    assert sums_by_row(numbers, row_starts(np.array([[True], [False], [True]]))).tolist() == [1.0, 2.0]


def test_rows_are_the_last_axis_and_elements_of_a_tensor_with_one_axis():
    counted = np.ones((2, 3, 4), bool)
    assert compared_rows(counted) == 6
    assert row_starts(counted).tolist() == [0, 4, 8, 12, 16, 20]
    counted[0, 1] = False
    counted[1, 2, :3] = False
    assert compared_rows(counted) == 5
    assert row_starts(counted).tolist() == [0, 4, 8, 12, 16]
    assert (compared_rows(np.array([True, False, True])), row_starts(np.ones(3, bool))) == (2, None)
    assert compared_rows(np.array(True)) == 1


def test_without_compared_elements_there_are_no_rows():
    rows = carrying_rows(np.ones((2, 3)), np.zeros((2, 3), bool))
    assert (rows.count, rows.repeats, rows.numbers.tolist()) == (0.0, 1.0, [])
    assert np.bincount(rows.numbers).tolist() == []
