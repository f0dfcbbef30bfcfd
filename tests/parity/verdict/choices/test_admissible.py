"""Choices that rounding explains, by operation."""

import math
from dataclasses import replace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.runners.oracle.choices import Choices
from parity.verdict.bound import bound_for
from parity.verdict.choices.admissible import admissible, limits
from tests.parity.verdict.choices.searches import BOUND, ERROR, measure

T1, T4, T33 = 6366.198, 15.5441, 4.42246
"""Quantiles of Student's t at 1 - 1e-4 / 2, with so many degrees of freedom: roots of those of F."""


def chosen(run, *numbers: list[float], error: float = ERROR):
    """The first choice of `run` on numbers that all have one error."""
    tensors = [torch.tensor(values, dtype=torch.float64) for values in numbers]
    with Choices() as recorded:
        run(*tensors)
    choice = recorded.choices[0]
    measure(choice, error)
    return choice


def right(choice, value: list) -> list:
    return admissible(choice, torch.tensor(value), BOUND).tolist()


def test_the_limit_of_a_number():
    choice = chosen(lambda x: x.argmax(), [1.0, 2.0])
    (limit,) = limits(choice, BOUND)
    # The root of the F distribution's quantile with 1 and 33 degrees of freedom at 1e-4 is T33.
    assert limit.tolist() == pytest.approx([2 * T33 * ERROR] * 2, rel=1e-4)
    floor = replace(BOUND, floor=0.5)
    (limit,) = limits(choice, floor)
    assert limit.tolist() == pytest.approx([math.hypot(2 * T33 * ERROR, x) for x in (0.5, 1.0)], rel=1e-4)
    # Numbers without any error have no floor either, an error of 1 has its limit.
    exact = chosen(lambda x: x.argmax(), [1.0, 2.0], error=0.0)
    assert limits(exact, floor)[0].tolist() == [0.0, 0.0]
    assert limits(chosen(lambda x: x.argmax(), [1.0], error=1.0), BOUND)[0].item() > 2.0


def test_the_limit_of_a_number_that_only_moves_is_the_references_own_error():
    """Just beyond it, so that the reference's number is inside however the sum is rounded."""
    choice = chosen(lambda x: x.argmax(), [1.0, 2.0])
    (limit,) = limits(choice, replace(BOUND, longest_sum=0))
    own = (choice.reference[0] - choice.numbers[0]).abs()
    assert bool((own < limit).all())
    assert limit.tolist() == pytest.approx(own.tolist(), rel=1e-12)


def test_an_order_follows_from_numbers_within_their_limits():
    # L is 0.088: neighbours 0.1 apart may change places, numbers 0.2 apart may not.
    choice = chosen(lambda x: x.topk(3, -1), [1.0, 0.9, 0.8, 0.7, 0.0])
    assert right(choice, [0, 1, 2]) == [True] * 3
    assert right(choice, [1, 0, 2]) == [True] * 3
    assert right(choice, [0, 1, 3]) == [True] * 3
    for wrong in ([2, 1, 0], [0, 1, 4], [0, 3, 2], [0, 0, 1], [0, 1, 5], [-1, 0, 1]):
        assert right(choice, wrong) == [False] * 3


def test_an_order_from_the_smallest_number_and_along_another_axis():
    choice = chosen(lambda x: x.sort(0), [[0.0, 1.0], [0.1, 0.0], [0.5, 0.5]])
    assert right(choice, [[1, 1], [0, 2], [2, 0]]) == [[True, True]] * 3
    assert right(choice, [[2, 1], [0, 0], [1, 2]]) == [[False, False]] * 3


@pytest.mark.parametrize("operation", ["argmax", "max"])
def test_the_largest_number(operation):
    choice = chosen(lambda x: getattr(x, operation)(-1), [[1.0, 0.9, 0.0], [0.0, 1.0, 0.9]])
    assert right(choice, [1, 2]) == [True, True]
    assert right(choice, [2, 0]) == [False, False]
    whole = chosen(lambda x: x.argmin(), [[1.0, 0.0], [0.1, 0.5]])
    assert right(whole, 2) is True
    assert right(whole, 3) is False


def test_equal_exact_numbers_have_any_order_unless_it_is_stable():
    equal = [0.0, 1.0, 1.0, 0.0]
    choice = chosen(lambda x: x.sort(-1), equal, error=0.0)
    assert right(choice, [3, 0, 2, 1]) == [True] * 4
    assert right(choice, [3, 2, 0, 1]) == [False] * 4
    stable = chosen(lambda x: x.sort(dim=-1, stable=True), equal, error=0.0)
    assert right(stable, [3, 0, 2, 1]) == [False] * 4
    assert right(stable, [0, 3, 1, 2]) == [True] * 4


def test_comparisons():
    choice = chosen(lambda x, y: x > y, [1.0, 1.0, 1.0], [0.95, 0.8, 1.05])
    # The distance of the sides has a limit.
    assert right(choice, [False, False, True]) == [True, False, True]
    equal = chosen(lambda x: x == 1.0, [1.0, 1.05, 2.0])
    assert right(equal, [False, True, True]) == [True, True, False]


def test_an_error_that_both_sides_of_a_comparison_share_explains_nothing():
    numbers = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    with Choices() as recorded:
        torch.lt(numbers, numbers[:1])
    for error in (0.01, -0.02):
        moved = numbers + error
        with Choices(earlier=recorded):
            torch.lt(moved, moved[:1])
    assert recorded.choices[0].samples == 2
    assert right(recorded.choices[0], [True, False, False]) == [False, True, True]
    # An error of its own explains another result.
    with Choices(earlier=recorded):
        torch.lt(torch.tensor([0.99, 1.0, 2.0], dtype=torch.float64), numbers[:1])
    assert right(recorded.choices[0], [True, True, True]) == [True, False, False]


def test_equality_at_the_limit_is_explained():
    """Numbers that only move: the distance of the sides is as far from 0 as the reference's may be."""
    end = 1.0 + 2.0**-50
    choice = chosen(lambda x, y: x == y, [end, end + 2.0**-52], [0.0, 0.0])
    choice.reference = [torch.full_like(choice.numbers[0], 2.0**-50)]
    choice.reference[0][1] += 2.0**-52
    moves = replace(BOUND, longest_sum=0)
    assert limits(choice, moves)[0].tolist() == [end, end]
    assert admissible(choice, torch.tensor([True, True]), moves).tolist() == [True, False]


def test_roundings_and_boundaries():
    floor = chosen(torch.floor, [1.05, 1.5, 1.95])
    assert right(floor, [0.0, 1.0, 2.0]) == [True, True, True]
    assert right(floor, [2.0, 2.0, 0.0]) == [False, False, False]
    whole = chosen(lambda x: x.to(torch.int64), [1.05, 1.5])
    assert right(whole, [0, 0]) == [True, False]
    edges = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    count = chosen(lambda x: torch.bucketize(x, edges), [1.05, 1.5])
    assert right(count, [1, 1]) == [True, False]
    assert right(count, [2, 3]) == [True, False]


def test_a_ranking_names_every_item_once():
    choice = chosen(lambda x: x.topk(3, -1), [1.0, 0.95, 0.94, 0.93])
    assert right(choice, [2, 3, 1]) == [True] * 3
    # All items are ties: only the repeated item, and the one beyond the last, are wrong.
    for wrong in ([0, 1, 1], [0, 1, 4], [-1, 0, 1]):
        assert right(choice, wrong) == [False] * 3
    rows = chosen(lambda x: x.topk(2, -1), [[1.0, 0.95, 0.0], [1.0, 0.95, 0.0]])
    assert right(rows, [[1, 1], [1, 0]]) == [[False] * 2, [True] * 2]


def test_a_set_of_the_largest_has_any_order():
    choice = chosen(lambda x: x.topk(3, -1, sorted=False), [1.0, 0.9, 0.8, 0.75, 0.0])
    assert right(choice, [2, 1, 0]) == [True] * 3
    assert right(choice, [3, 0, 1]) == [True] * 3
    assert right(choice, [0, 1, 4]) == [False] * 3


def test_the_own_choice_is_right_row_by_row_even_where_numbers_say_nothing():
    choice = chosen(lambda x: x.argmax(-1), [[math.nan, 0.0], [1.0, 0.0]])
    assert right(choice, [0, 1]) == [True, False]
    ranks = chosen(lambda x: x.sort(-1), [[math.nan, 0.0], [0.0, 1.0]])
    own = ranks.own[0].tolist()
    assert right(ranks, [own, [1, 0]]) == [[True] * 2, [False] * 2]


def stable(*rows: list[float]):
    """A stable ranking from the smallest of four numbers, of which the first two have an error."""
    choice = chosen(lambda x: x.sort(dim=-1, stable=True), list(rows))
    errors = torch.tensor([ERROR, ERROR, 0.0, 0.0], dtype=torch.float64).expand(len(rows), 4)
    choice.squares, choice.reference = [32 * errors.square()], [choice.numbers[0] + errors]
    return choice


def test_a_stable_ranking_holds_the_order_of_exact_ties_alone():
    ties = [0.5, 0.55, 1.0, 1.0]
    choice = stable(ties, ties)
    assert right(choice, [[1, 0, 2, 3], [1, 0, 3, 2]]) == [[True] * 4, [False] * 4]
    assert right(choice, [[0, 1, 3, 2], [2, 3, 0, 1]]) == [[False] * 4] * 2
    # Exact numbers that differ come in the order of their size, in which an index may fall.
    assert right(stable([0.5, 0.55, 0.1, 0.0]), [[3, 2, 1, 0]]) == [[True] * 4]
    # A tie of two numbers with an error is none of exact ones.
    assert right(stable([0.5, 0.5, 1.0, 1.0]), [[1, 0, 2, 3]]) == [[True] * 4]


def test_equality_and_its_opposite():
    numbers = [1.0, 1.05, 2.0]
    for run, own in ((lambda x: x == 1.0, [True, False, False]), (lambda x: x != 1.0, [False, True, True])):
        choice = chosen(run, numbers)
        assert right(choice, own) == [True] * 3
        assert right(choice, [not value for value in own]) == [True, True, False]
        # Exact numbers are equal, or they are not.
        assert right(chosen(run, numbers, error=0.0), [not value for value in own]) == [False] * 3


def test_numbers_without_samples_have_the_root_mean_square_of_their_row():
    errors = torch.tensor([[[1, 2, 2, 4], [1, 1, 1, 1]], [[0, 0, 0, 2], [3, 3, 3, 3]]]).double() / 100
    choice = chosen(lambda x: x.argmax(-1), torch.zeros(2, 2, 4).tolist())
    choice.samples, choice.squares, choice.reference = 0, [], [choice.numbers[0] + errors]
    (limit,) = limits(choice, BOUND)
    # The factor of one number among four.
    expected = [[0.025, 0.01], [0.01, 0.03]]
    for row, values in zip(limit, expected, strict=True):
        for own, value in zip(row, values, strict=True):
            assert own.tolist() == pytest.approx([2 * T4 * value] * 4, rel=1e-4)
    single = chosen(lambda x: torch.floor(x.sum()), [0.5])
    single.samples, single.squares = 0, []
    assert limits(single, BOUND)[0].item() == pytest.approx(2 * T1 * ERROR, rel=1e-4)


def test_numbers_without_samples_share_the_error_of_their_row():
    choice = chosen(lambda x: x.argmax(-1), [[1.0, 0.9, 0.0, 0.0]])
    choice.samples, choice.squares = 0, []
    (limit,) = limits(choice, BOUND)
    assert len(set(limit[0].tolist())) == 1
    assert limit[0, 0] > 0.0


@pytest.mark.parametrize(
    ("precision", "sampled", "wide"),
    [("bf16", 0.5, False), ("fp16", 0.5, False), ("bf16", 1000.0, True), ("fp32", 0.5, True)],
)
def test_numbers_that_the_reference_computes_in_float32(precision, sampled, wide):
    """Errors of a half type explain no other choice where reference and samples have those of float32."""
    bound = bound_for(PRECISIONS[precision], 1)
    error = PRECISIONS[precision].unit_roundoff
    # A number that is exactly zero has no error in any type.
    choice = chosen(lambda x: x.round(), [60.6, 60.25, 0.0], error=60.0 * sampled * 2.0**-24)
    choice.squares[0][-1] = 0.0
    choice.reference = [choice.numbers[0] * (1 + 2.0**-24)]
    choice.is_reference_float32 = True
    (limit,) = limits(choice, bound)
    assert limit.tolist()[-1] == 0.0
    assert bool((limit[:-1] > 10 * error).all()) == wide
    # Nor does another type have the errors of float32, however small they happen to be.
    other = replace(choice, is_reference_float32=False)
    assert bool((limits(other, bound)[0] >= limit).all())
    assert bool((limits(other, bound)[0][:-1] > 10 * error).all())
    # A reference with another error has not computed in float32 from the start.
    choice.reference = [choice.numbers[0] * (1 + error)]
    assert bool((limits(choice, bound)[0][:-1] > 10 * error).all())
