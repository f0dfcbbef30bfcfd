"""The movement of a result, against the sum of both limits."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from parity.verdict.bound import Bound
from parity.verdict.distances import Distance
from parity.verdict.movement import NONE, UNKNOWN, Side, limit_of, movement, ratio_of, without_numbers
from parity.verdict.rule import failure

ORACLE = torch.tensor([3.0, -4.0, 1.0], dtype=torch.float64)
LIMIT = Distance(0.1, 0.1, 0.1)


def side(values, oracle=ORACLE, limit=LIMIT, counted=None, error=UNKNOWN, dtype=torch.float32):
    result = None if values is None else torch.tensor(values, dtype=dtype)
    shape = () if result is None else tuple(result.shape)
    counted = np.ones(shape, dtype=bool) if counted is None else np.array(counted)
    return Side(result, oracle, counted, limit, error)


@pytest.mark.parametrize(
    ("new", "status"),
    [
        ([3.0, -4.0, 1.0], "equal"),
        ([3.0, -4.0, 1.5], "within"),
        # The largest element is 4, and the sum of both limits is a fifth of it.
        ([3.0, -4.0, 1.799], "within"),
        ([3.0, -4.0, 1.801], "moved"),
        ([3.0, -4.0, math.nan], "moved"),
    ],
)
def test_a_result_may_move_by_both_limits(new, status):
    actual = movement(side([3.0, -4.0, 1.0]), side(new), other_oracle=False)
    assert actual.status == status
    assert (actual.ratio > 1) == (status == "moved")


def test_each_measure_can_exceed_its_limit():
    old, new = [3.0, -4.0, 1.0], [3.3, -4.4, 1.1]
    for measure in ("l2", "largest", "scale_error"):
        wide = {"l2": 9.0, "largest": 9.0, "scale_error": 9.0}
        for limit, status in ((0.051, "within"), (0.049, "moved")):
            allowed = Distance(**(wide | {measure: limit}))
            actual = movement(side(old, limit=allowed), side(new, limit=allowed), other_oracle=False)
            assert actual.status == status, measure
            assert actual.distance.scale_error == pytest.approx(0.1)
            assert getattr(actual.limit, measure) == pytest.approx(2 * limit)


def test_the_limit_is_the_sum_of_two_different_ones():
    old, new = (
        side([3.0, -4.0, 1.0], limit=Distance(0.01, 1, 1)),
        side([3.0, -4.0, 2.0], limit=Distance(0.3, 1, 1)),
    )
    assert movement(old, new, other_oracle=False).limit.l2 == pytest.approx(0.31)


def test_other_oracles_are_taken_off():
    """Both results are as far from their own oracle; only the oracles differ."""
    old, new = side([3.1, -4.0, 1.0]), side([6.1, -8.0, 2.0], oracle=2 * ORACLE)
    assert movement(old, new, other_oracle=False).status == "moved"
    actual = movement(old, new, other_oracle=True)
    assert actual.status == "within"
    assert actual.distance.l2 == pytest.approx(0, abs=1e-6)
    # The limit of the new run is relative to an oracle of twice the size.
    assert actual.limit.l2 == pytest.approx(0.3)


def test_a_scale_error_is_relative_to_its_own_oracle():
    old, new = side([3.3, -4.4, 1.1]), side([6.0, -8.0, 2.0], oracle=2 * ORACLE)
    actual = movement(old, new, other_oracle=True)
    assert actual.distance.scale_error == pytest.approx(-0.1)


def test_elements_that_do_not_count_may_differ():
    counted = [True, True, False]
    old, new = side([3.0, -4.0, 1.0], counted=counted), side([3.0, -4.0, 9.0])
    assert movement(old, new, other_oracle=False).status == "equal"
    # A part has its own scale error, and the limits of all elements.
    new = side([3.0, -4.4, 9.0])
    actual = movement(old, new, other_oracle=False)
    assert actual.limit.scale_error == math.inf
    assert actual.limit.l2 == pytest.approx(0.1 + 0.1 * math.sqrt(26) / 5)


def test_nothing_that_counts_is_no_equality():
    nothing = [False, False, False]
    old, new = side([3.0, -4.0, 1.0], counted=nothing), side([3.0, -4.0, 9.0], counted=nothing)
    actual = movement(old, new, other_oracle=False)
    assert (actual.status, actual.reason) == ("moved", "no element counts in both runs")


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (side([[3.0, -4.0, 1.0]]), "shape (1, 3) in place of (3,)"),
        (side([3.0, -4.0, 1.0], dtype=torch.float64), "torch.float64 in place of torch.float32"),
        (side(None), "no such result in the new run"),
        (side([3.0, -4.0, math.inf]), "NaN or Inf: 1 in the new run"),
        (side([3.0, -4.0, 1.5], oracle=None), "it differs, and has no oracle"),
        (side([3.0, -4.0, 1.5], limit=UNKNOWN), "it differs, and has no limit"),
    ],
)
def test_a_movement_without_numbers_has_a_reason(new, reason):
    actual = movement(side([3.0, -4.0, 1.0]), new, other_oracle=False)
    assert (actual.status, actual.reason, actual.ratio) == ("moved", reason, math.inf)


def test_the_same_infinity_in_both_runs_is_equal():
    masked = torch.tensor([3.0, -4.0, -math.inf], dtype=torch.float64)
    old, new = side([3.0, -4.0, -math.inf], oracle=masked), side([3.0, -4.1, -math.inf], oracle=masked)
    actual = movement(old, new, other_oracle=False)
    assert actual.status == "within"
    assert actual.distance.l2 == pytest.approx(0.1 / 5)


def test_integers_move_at_once_but_for_choices():
    integers = {"dtype": torch.int64}
    first, second = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    old, new = side([1, 2, 3], oracle=first, **integers), side([1, 2, 4], oracle=second, **integers)
    actual = movement(old, new, other_oracle=False)
    assert (actual.status, actual.distance.l2) == ("moved", pytest.approx(1 / 3))
    assert (actual.distance.largest, actual.distance.scale_error) == (pytest.approx(1 / 3), 0.0)
    assert (actual.limit, actual.ratio) == (NONE, math.inf)
    # Each run's oracle follows the choice.
    assert movement(old, new, other_oracle=True).status == "within"
    wrong = side([1, 2, 4], oracle=first, **integers)
    assert movement(old, wrong, other_oracle=True).status == "moved"


@pytest.mark.parametrize(
    ("old", "new", "nearer"),
    [
        (0.1, 0.2, "old"),
        (0.2, 0.1, "new"),
        (0.1, 0.1, ""),
        (math.nan, 0.1, "new"),
        (0.1, math.nan, "old"),
        (math.nan, math.nan, ""),
    ],
)
def test_the_nearer_result_has_the_smaller_error(old, new, nearer):
    errors = (Distance(error, 0.0, 0.0) for error in (old, new))
    assert without_numbers("gone", *errors).nearer == nearer


def test_a_tolerated_error_is_the_limit():
    verdict = failure("beyond", Bound(1.0, 1.0, 1, 1e-7))
    assert math.isnan(limit_of(verdict).l2)
    tolerated = dataclasses.replace(verdict, tolerated="beyond", min_detectable_error=0.25)
    assert limit_of(tolerated) == Distance(0.25, math.inf, math.inf)


def test_a_ratio_is_of_the_difference_to_its_limit():
    actual = movement(side([3.0, -4.0, 1.0]), side([3.0, -4.0, 2.6]), other_oracle=False)
    # A difference of 1.6 is 0.4 of the largest element, and the limit is 0.2.
    assert (actual.status, actual.ratio) == ("moved", pytest.approx(2.0))
    assert movement(side([3.0]), side([3.0]), other_oracle=False).ratio == 0.0
    assert [ratio_of(*pair) for pair in ((0.0, 0.0), (1.0, 0.0), (1.0, math.inf))] == [0.0, math.inf, 0.0]


def _only_nan():
    return side([math.nan], oracle=torch.tensor([math.nan], dtype=torch.float64))


def _negative(old):
    """The side with the sign of its first element changed."""
    result = old.result.clone()
    result.view(torch.int32)[0] ^= -(2**31)
    return dataclasses.replace(old, result=result)


def test_a_movement_has_the_errors_of_both_runs():
    first, second = Distance(0.01, 0.02, 0.03), Distance(0.04, 0.05, 0.06)
    integers = {"dtype": torch.int64, "oracle": torch.tensor([1, 2, 3])}
    nothing = [False, False, False]
    for old, new in (
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.0])),
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.5])),
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0])),
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.0], dtype=torch.float64)),
        (side([3.0, -4.0, 1.0], counted=nothing), side([3.0, -4.0, 1.5])),
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.5], oracle=None)),
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0, math.nan])),
        (side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.5], limit=UNKNOWN)),
        (_only_nan(), _negative(_only_nan())),
        (side([1, 2, 3], **integers), side([1, 2, 4], **integers)),
        (side(None), side([3.0, -4.0, 1.0])),
    ):
        old, new = dataclasses.replace(old, error=first), dataclasses.replace(new, error=second)
        actual = movement(old, new, other_oracle=False)
        assert (actual.old, actual.new, actual.nearer) == (first, second, "old"), actual


@pytest.mark.parametrize(
    ("old", "new", "oracle", "reason"),
    [
        (None, [1.0, 2.0], ORACLE, "no such result in the old run"),
        (None, None, ORACLE, "no such result in the old and new run"),
        ([math.nan, 2.0], [1.0, 2.0], [1.0, 2.0], "NaN or Inf: 1 in the old run"),
        ([1.0, 2.0], [math.nan, 2.0], [1.0, 2.0], "NaN or Inf: 1 in the new run"),
        (
            [math.inf, 2.0],
            [-math.inf, math.nan],
            [1.0, 2.0],
            "NaN or Inf: 1 in the old run and 2 in the new run",
        ),
        ([1.0, 2.0], [1.0, 2.5], [math.nan, 2.0], "NaN or Inf: in the oracle"),
    ],
)
def test_numbers_that_are_not_there_are_named(old, new, oracle, reason):
    oracle = torch.as_tensor(oracle, dtype=torch.float64)
    actual = movement(side(old, oracle=oracle), side(new, oracle=oracle), other_oracle=False)
    assert (actual.status, actual.reason) == ("moved", reason)
    sizes = (*dataclasses.astuple(actual.distance), *dataclasses.astuple(actual.limit))
    assert all(math.isnan(size) for size in sizes)


def test_integers_that_do_not_count_may_differ():
    oracle, counted = torch.tensor([1, 2, 3, 4]), [True, True, True, False]
    old, new = (
        side(values, oracle=oracle, counted=counted, dtype=torch.int64)
        for values in ([1, 2, 3, 4], [1, 2, 9, 9])
    )
    assert movement(old, new, other_oracle=False).distance.l2 == pytest.approx(1 / 3)


def test_an_integer_that_is_wrong_in_both_runs_has_not_moved():
    """The choice between 3 and 4 is the oracle's in each run."""
    old = side([1, 3, 9], oracle=torch.tensor([1, 3, 8]), dtype=torch.int64)
    new = side([1, 4, 9], oracle=torch.tensor([1, 4, 8]), dtype=torch.int64)
    assert movement(old, new, other_oracle=True).status == "within"


def test_an_oracle_that_nothing_is_compared_with_may_be_infinite():
    infinite = torch.tensor([3.0, -4.0, math.inf], dtype=torch.float64)
    old, new = side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.5], oracle=infinite)
    assert movement(old, new, other_oracle=False).status == "within"
    assert movement(old, new, other_oracle=True).reason == "NaN or Inf: in the oracle"


def test_scale_errors_of_different_oracles_are_subtracted():
    old, new = side([3.0, -4.0, 1.0]), side([6.6, -8.8, 2.2], oracle=2 * ORACLE)
    actual = movement(old, new, other_oracle=True)
    assert actual.distance.scale_error == pytest.approx(0.1)
    assert actual.distance.l2 == pytest.approx(0.2)


def test_limits_are_of_the_elements_that_count_in_their_run():
    oracle = torch.tensor([1.0, 2.0, 8.0], dtype=torch.float64)
    counted = [True, True, False]
    old, new = side([1.0, 2.0, 8.0], oracle=oracle, counted=counted), side([1.0, 2.1, 8.0], oracle=oracle)
    limit = movement(old, new, other_oracle=False).limit
    assert limit.largest == pytest.approx(0.1 + 0.1 * 8 / 2)
    assert limit.l2 == pytest.approx(0.1 + 0.1 * math.sqrt(69 / 5))


def test_limits_of_compared_zeros_are_those_of_both_runs():
    oracle = torch.tensor([0.0, 2.0, 8.0], dtype=torch.float64)
    old = side([0.0, 2.0, 8.0], oracle=oracle, counted=[True, True, False])
    new = side([0.1, 2.0, 8.0], oracle=oracle, counted=[True, False, True])
    actual = movement(old, new, other_oracle=False)
    assert (actual.status, actual.distance.l2) == ("moved", math.inf)
    assert actual.limit == Distance(pytest.approx(0.2), pytest.approx(0.2), math.inf)


def test_an_oracle_without_a_finite_element_allows_nothing():
    nothing = torch.full((3,), math.nan, dtype=torch.float64)
    old, new = side([3.0, -4.0, 1.0]), side([3.0, -4.0, 1.2], oracle=nothing)
    limit = movement(old, new, other_oracle=False).limit
    assert (limit.l2, limit.largest) == (pytest.approx(0.1), pytest.approx(0.1))


@pytest.mark.parametrize("others", [[], [math.inf]])
def test_nan_of_another_sign_has_not_moved(others):
    oracle = torch.tensor([math.nan, *others], dtype=torch.float64)
    old = side([math.nan, *others], oracle=oracle)
    actual = movement(old, _negative(old), other_oracle=False)
    assert (actual.status, actual.reason, actual.ratio) == ("within", "", 0.0)
    assert (actual.distance, actual.limit) == (NONE, NONE)
