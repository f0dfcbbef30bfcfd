"""The smallest detected error, of an exact port and at the ends of the search."""

import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import bound_for
from parity.verdict.distances import Distance, Oracle
from parity.verdict.rule import Standard
from parity.verdict.sensitivity import (
    ENOUGH_ROWS,
    LARGEST,
    MOST_ROWS,
    NEEDED_ROWS,
    ROUNDING_MARGIN,
    SMALLEST,
    Rows,
    batches_needed,
    error_text,
    min_detectable_error,
    most_further,
    multiples,
    why_by_nature,
)

INF = math.inf
VALUES = np.array([1.0, -2.0, 3.0])


def _detected(scale, port=VALUES, l2=INF):
    """The smallest error that a limit of the scale error detects, or of the norm."""
    oracle = Oracle(VALUES)
    return min_detectable_error(oracle, port, oracle.scaled(port - VALUES), Distance(l2, INF, scale))


@pytest.mark.parametrize("scale", [1e-6, 3e-4, 0.01, 0.3, 0.9])
def test_of_an_exact_port_it_is_the_limit(scale):
    assert _detected(scale) == pytest.approx(scale * ROUNDING_MARGIN, rel=1e-9)
    assert _detected(INF, l2=scale) == pytest.approx(scale * ROUNDING_MARGIN, rel=1e-9)


def test_an_error_of_the_result_s_own_size_is_detected_at_last():
    oracle, nothing = Oracle(np.array([3.0, 4.0])), np.zeros(2)
    limits = Distance(LARGEST, INF, INF), Distance(1.001 * LARGEST, INF, INF)
    assert [min_detectable_error(oracle, oracle.values, nothing, limit) for limit in limits] == [LARGEST, INF]


@pytest.mark.parametrize("offset", [0.2, -0.2])
def test_the_sign_that_is_harder_to_detect_counts(offset):
    """A port that is 0.2 off is as far from one limit as 0.8 and from the other as 1.2, of its own size."""
    port = VALUES * (1 + offset * 0.01)
    assert _detected(0.01, port) == pytest.approx(0.012 / (1 + offset * 0.01) * ROUNDING_MARGIN, rel=1e-6)


def test_the_ends_of_the_search():
    assert _detected(INF) == INF
    assert _detected(1.0 + 1e-9) == INF
    assert _detected(0.999) == LARGEST
    assert _detected(1e-12) == SMALLEST * ROUNDING_MARGIN
    assert _detected(SMALLEST) == SMALLEST * ROUNDING_MARGIN


@pytest.mark.parametrize("seed", range(20))
def test_measurement_confirms_the_smallest_detected_error(seed):
    """Limits of any proportion, beside errors that are independent and errors along the result."""
    rng = np.random.default_rng(seed)
    oracle = Oracle(rng.standard_normal(2000) * rng.choice([1e-3, 1.0], size=2000))
    size = 10.0 ** rng.uniform(-7, -3)
    port = oracle.values * (1 + size * (rng.standard_normal(2000) + rng.uniform(-2, 2)))
    own = oracle.distance(port)
    limit = Distance(
        *(abs(value) * 10.0 ** rng.uniform(0.01, 1.5) for value in (own.l2, own.largest, own.scale_error))
    )
    smallest = min_detectable_error(oracle, port, oracle.scaled(port - oracle.values), limit)

    def detected(error):
        return all(oracle.distance(port * (1 + sign * error)).exceeds(limit) for sign in (1, -1))

    assert detected(smallest)
    assert not detected(smallest / ROUNDING_MARGIN**2)


def test_more_rows_help_up_to_half_of_the_threshold():
    reasons = [why_by_nature(lasting, Rows(), 1) for lasting in (0.0, 0.005, 0.00501)]
    assert [bool(reason) for reason in reasons] == [False, False, True]
    assert reasons[2] == (
        "all rows share roundings of up to 0.005, and those of a correct port may hide twice as much"
    )


def test_a_result_of_zeros_is_no_chance_in_many_rows():
    assert why_by_nature(0.0, Rows(4, ENOUGH_ROWS - 1, 0.0), 1) == ""
    assert why_by_nature(0.0, Rows(4, ENOUGH_ROWS, 0.0), 1) == f"the result is 0 in all {ENOUGH_ROWS} rows"
    assert why_by_nature(0.0, Rows(ENOUGH_ROWS, ENOUGH_ROWS, 0.0))


def test_a_result_that_few_of_many_rows_carry_is_no_chance():
    share = NEEDED_ROWS / MOST_ROWS
    few = Rows(4, ENOUGH_ROWS, share * ENOUGH_ROWS * 0.99)
    text = f"16 of {ENOUGH_ROWS} rows carry the result, equal ones counted once"
    assert why_by_nature(0.0, few, 1) == text
    assert why_by_nature(0.0, Rows(4, ENOUGH_ROWS, share * ENOUGH_ROWS), 1) == ""
    assert why_by_nature(0.0, Rows(4, ENOUGH_ROWS - 1, 1.0), 1) == ""


def test_a_result_of_one_size_does_not_grow_with_the_batch():
    assert why_by_nature(0.0, Rows(5, 9, 9.0), 1) == "the result has 9 rows in a batch of any size"
    assert why_by_nature(0.0, Rows(5, 10, 9.0), 1) == ""
    assert why_by_nature(0.0, Rows(5, 9, 9.0)) == ""


def test_the_largest_batch_of_a_run_is_the_bound_of_what_rows_can_show():
    rows = Rows(8, 8192, 791.0)
    assert most_further(8) == 5  # 32, 128, 512, 2048, 8192
    assert why_by_nature(0.0, rows, 4, 5) == why_by_nature(0.0, rows, 5) == ""
    text = "a run draws no more than 8192 rows, of which 791 carry the result"
    assert why_by_nature(0.0, rows, 5, 5) == text


def test_the_growth_of_carrying_rows_needs_as_many_as_a_check_of_1_percent():
    few, enough = (
        Rows(8, 4096, carrying, fewer=(1024, carrying)) for carrying in (NEEDED_ROWS - 1, NEEDED_ROWS)
    )
    assert (few.carrying_growth(4), enough.carrying_growth(4)) == (4, 1.0)


def test_a_check_whose_rows_repeat_asks_for_no_batch_that_would_not_do():
    """Four times the rows have 2.5 times the carrying ones, so the next four times do not halve the error."""
    rows = Rows(8, 2048, 581.0, fewer=(512, 229.0))
    text = (
        "229 of 512 and 581 of 2048 rows carry the result, so that no batch of up to 8192 rows, the "
        "most that a run draws, is expected to be enough"
    )
    assert why_by_nature(0.0, rows, 4, 5, detected=0.0161) == text
    # 581 / 229 carrying rows halve its square by more than that.
    assert why_by_nature(0.0, rows, 4, 5, detected=0.0159) == ""
    assert why_by_nature(0.004, rows, 4, 5, detected=0.0135) == text
    # A check for which the most rows are just enough asks for them.
    doubling = Rows(8, 4096, 128.0, fewer=(1024, 64.0))
    assert why_by_nature(0.0, doubling, 3, 5, detected=0.02) == ""
    assert why_by_nature(0.0, doubling, 3, 5, detected=0.0201) != ""
    # With enough left, or an unknown bound or error, nothing is foreseen.
    assert why_by_nature(0.0, rows, 3, 5, detected=0.0161) == ""
    assert why_by_nature(0.0, rows, 4, 0, detected=0.0161) == ""
    assert why_by_nature(0.0, rows, 4, 5) == ""
    # A check that detects nothing is known to detect nothing.
    assert why_by_nature(0.0, rows, 4, 5, detected=math.inf) == text


def test_carrying_rows_are_expected_to_grow_as_they_did():
    assert Rows(8, 2048, 400.0, fewer=(512, 200.0)).carrying_growth(16.0) == pytest.approx(4.0)
    assert Rows(8, 2048, 900.0, fewer=(512, 200.0)).carrying_growth(16.0) == 16.0
    assert Rows(8, 2048, 150.0, fewer=(512, 200.0)).carrying_growth(16.0) == 1.0
    # Few rows show no trend.
    for rows in (Rows(8, 2048, 400.0), Rows(8, 2048, 70.0, fewer=(512, NEEDED_ROWS - 1.0))):
        assert rows.carrying_growth(16.0) == 16.0
    assert Rows(8, 2048, NEEDED_ROWS - 1.0, fewer=(512, 70.0)).carrying_growth(16.0) == 16.0


@pytest.mark.parametrize(
    ("detected", "lasting", "number"),
    [
        (0.0101, 0.0, 1),
        (0.0246, 0.0039, 2),
        (0.03, 0.0, 2),
        (0.06, 0.0, 3),
        (0.009, 0.0, 1),
        (0.02, 0.005, 1),
        (math.inf, 0.0, 1),
    ],
)
def test_the_detected_error_calls_for_a_number_of_batches(detected, lasting, number):
    assert batches_needed(detected, lasting) == number


def test_the_rows_of_several_batches():
    batches = [Rows.of(4, 2.5), Rows.of(1, 1.0), Rows.of(16, 3.5), Rows.of(16, 9.0), Rows.of(8, 3.0)]
    merged = batches[0]
    for later in batches[1:4]:
        merged = merged.and_later(later)
    assert merged == Rows(4, 16, 3.5, fewer=(4, 2.5))
    assert merged.and_later(batches[4]).fewer == (8, 3.0)
    assert batches[4].and_later(merged).fewer == (8, 3.0)
    assert Rows().and_later(batches[0]) == batches[0]
    assert merged.and_later(batches[1]) == merged


@pytest.mark.parametrize(
    ("rows", "times"),
    [(1, [4**n for n in range(1, 8)]), (4, [4**n for n in range(1, 7)]), (9, [4, 16, 64, 256, 1024])],
)
def test_small_batches_grow_to_the_most_rows(rows, times):
    assert list(multiples(rows)) == times
    assert times[-1] * rows <= MOST_ROWS < 4 * times[-1] * rows


@pytest.mark.parametrize("rows", [256, 257, 100_000])
def test_large_batches_grow_as_far_as_before(rows):
    assert list(multiples(rows)) == [4, 16, 64]


def test_one_number_of_a_batch_has_the_whole_floor_for_good():
    """A loss has its own roundings in a batch of any size: 2 u in bf16, of which a right port may use all."""
    for name, by_nature in (("bf16", True), ("fp16", False), ("fp32", False)):
        bound = bound_for(PRECISIONS[name], 8)
        assert (bound.lasting(0.0), bound.lasting(0.0, is_of_batch=True)) == (bound.floor / 2, bound.floor)
        reason = why_by_nature(bound.lasting(0.0, is_of_batch=True), Rows(1, 1, 1.0, is_of_batch=True))
        assert bool(reason) == by_nature
        assert (
            reason.startswith("one number of the whole batch has roundings of up to 0.0078, ")
            or not by_nature
        )


@pytest.mark.parametrize(
    ("shape", "batch_size", "is_of_batch"),
    [
        ((), 1, True),
        ((1,), 1, False),
        ((1,), 2, True),
        ((2,), 2, False),
        ((1, 8), 4, True),
        ((4, 1), 4, False),
        ((1, 5, 3), 4, False),
        ((1, 1, 3), 4, True),
    ],
)
def test_one_row_where_the_batch_has_several_is_of_the_batch(shape, batch_size, is_of_batch):
    values = torch.ones(shape, dtype=torch.float64)
    verdict = Standard(values, values.float(), bound_for(PRECISIONS["fp32"], 8), batch_size=batch_size).judge(
        values.float()
    )
    assert verdict.rows.is_of_batch == is_of_batch
    assert verdict.lasting_limit == verdict.bound.lasting(0.0, is_of_batch=is_of_batch)
    later = Rows(1, 1, 1.0, is_of_batch=True)
    assert verdict.rows.and_later(later).is_of_batch
    assert later.and_later(verdict.rows).is_of_batch


@pytest.mark.parametrize(
    ("error", "digits", "text"),
    [
        (0.256, 2, "0.26"),
        (0.0104, 2, "0.0104"),
        (0.0104, 1, "0.0104"),
        (0.01000001, 2, "0.01000001"),
        (0.01, 2, "0.01"),
        (0.00996, 1, "0.01"),
        (math.nextafter(0.01, 1), 1, "0.010000000000000002"),
        (0.00213, 1, "0.002"),
        (0.0, 1, "0"),
        (math.inf, 2, "inf"),
    ],
)
def test_the_text_of_an_error_tells_it_from_one_percent(error, digits, text):
    assert error_text(error, digits) == text
