"""The port's choices in a changed program: the next choice of the reference's, where rounding explains it."""

import math

import pytest
import torch

from parity.base.dispatch import EachOperation
from parity.verdict.choices.other_programs import ChoicesOfRun, _on_cpu, largest_limits
from tests.parity.verdict.choices.searches import shown_choices

SCORES = torch.tensor([[1.0, 0.95, 0.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.95]], dtype=torch.float64)
"""The first two items of row 0, and the last two of row 2, are a tie: the limit of a number is 0.088."""
PORT = torch.tensor([1, 1, 2])
ALL = torch.ones(3, dtype=torch.bool)


class Run(EachOperation):
    """Runs a program, with the port's choices in its operations, or in others in the place of some.

    Args:
        choices: The choices.
        others: Operations in the place of others, by name.
    """

    def __init__(self, choices, others=None):
        super().__init__()
        self.choices, self.others = choices, others or {}

    def operation(self, func, args, kwargs):
        other = self.others.get(func.overloadpacket.__name__, func)
        with self.choices.of(func, args, kwargs):
            return other(*args, **kwargs)


def best(x):
    return x.argmax(-1)


def choices_of(model, values=PORT, numbers=SCORES, number=0, mask=ALL, taken=None):
    """The port's choices in a model, which are those of the verdict by another mask."""
    return shown_choices(model, values, numbers, number, mask, mask if taken is None else taken)


def ran(model, choices, numbers=SCORES, is_changed=True, others=None):
    with Run(ChoicesOfRun(choices, is_changed), others):
        return model(numbers)


def test_another_program_takes_the_choices_that_its_own_numbers_explain():
    choices = choices_of(best)
    assert ran(best, choices).tolist() == [1, 0, 2]
    # The ties are others: row 0 has none, rows 1 and 2 have.
    moved = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.95, 0.0], [0.0, 1.0, 0.95]], dtype=torch.float64)
    assert ran(best, choices, moved).tolist() == [0, 1, 2]


def test_only_choices_that_results_show_are_taken():
    mask = torch.tensor([False, True, True])
    assert ran(best, choices_of(best, mask=mask)).tolist() == [0, 0, 2]


def test_the_program_of_the_reference_takes_the_choices_of_the_verdict():
    """Whatever the numbers say: the verdict looked at them."""
    choices = choices_of(best, taken=torch.tensor([False, True, False]))
    assert ran(best, choices, is_changed=False).tolist() == [0, 1, 1]


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_run_without_choices_of_the_port_makes_its_own(is_changed):
    assert ran(best, None, is_changed=is_changed).tolist() == [0, 0, 1]


def test_another_operation_in_the_place_of_a_choice_makes_the_ports_choice_by_its_own_rule():
    """The smallest of the numbers in place of the largest."""
    other = {"argmax": torch.argmin}
    numbers = torch.tensor([[0.05, 0.0, 1.0], [0.5, 0.0, 1.0], [0.0, 1.0, 0.05]], dtype=torch.float64)
    values = torch.tensor([0, 0, 2])
    assert ran(best, choices_of(best, values), numbers, others=other).tolist() == [0, 1, 2]
    # Without a choice, or with one of another shape, there is none to make.
    without = {"argmax": lambda x, dim: x.sum(dim)}
    assert torch.equal(ran(best, choices_of(best), others=without), SCORES.sum(-1))
    across = {"argmax": lambda x, dim: torch.argmax(x[:, :2], 0)}
    assert ran(best, choices_of(best), others=across).tolist() == [0, 2]


def test_choices_count_as_in_the_reference():
    """An operation in the place of one that chooses counts, and those that it runs do not."""

    def model(x):
        return x.floor().sum(-1) + x.argmax(-1)

    choices = choices_of(model, number=1)
    rounded = {"floor": lambda x: x.ceil().floor()}
    assert ran(model, choices, others=rounded).tolist() == [3.0, 2.0, 4.0]
    assert ran(model, choices, others={"floor": lambda x: x}).tolist() == pytest.approx([2.95, 1.5, 3.95])
    assert ran(model, choices).tolist() == [2.0, 1.0, 3.0]


def test_a_ranking_takes_the_numbers_of_its_choice():
    def model(x):
        return x.topk(2, -1)

    values = torch.tensor([[1, 0], [1, 0], [2, 1]])
    choices = choices_of(model, values, mask=torch.ones(3, 2, dtype=torch.bool))
    top, index = ran(model, choices)
    assert index.tolist() == [[1, 0], [0, 1], [2, 1]]
    assert top.tolist() == [[0.95, 1.0], [1.0, 0.5], [0.95, 1.0]]


def test_comparisons_and_roundings_are_choices_too():
    numbers = torch.tensor([0.95, 0.5, 1.05], dtype=torch.float64)
    above = choices_of(lambda x: x > 1.0, torch.tensor([True, True, False]), numbers)
    assert ran(lambda x: x > 1.0, above, numbers).tolist() == [True, False, False]
    steps = choices_of(torch.floor, torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), numbers)
    assert ran(torch.floor, steps, numbers).tolist() == [1.0, 0.0, 0.0]


def test_a_choice_has_the_type_of_its_operation():
    numbers = torch.tensor([0.95, 0.5, 1.05], dtype=torch.float64)
    choices = choices_of(lambda x: x > 1.0, torch.tensor([1, 1, 0]), numbers)
    chosen = ran(lambda x: x > 1.0, choices, numbers)
    assert (chosen.dtype, chosen.tolist()) == (torch.bool, [True, False, False])


def test_limits_grow_with_the_size_of_all_numbers():
    """Twice the numbers have twice the errors."""
    assert ran(best, choices_of(best), 2 * SCORES).tolist() == [1, 0, 2]
    gap = torch.tensor([[1.0, 0.7, 0.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.95]], dtype=torch.float64)
    assert ran(best, choices_of(best), gap).tolist() == [0, 0, 2]


KNOWN = [4.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("sizes", "known", "own", "largest"),
    [
        ([1.0, 2.0, 4.0], KNOWN, [0.3, 0.1, 0.2], [0.1, 0.2, 0.3]),
        # A large number may have a small limit, and a small one has none of the large ones.
        ([1.0, 2.0, 4.0], KNOWN, [0.1, 0.2, 0.3], [0.2, 0.3, 0.3]),
        # Between two numbers, and below all of them.
        ([0.0, 5.0**0.5, 4.0], KNOWN, [0.3, 0.1, 0.2], [0.1, 0.2, 0.3]),
        # Relative to the size of all numbers that are finite.
        ([2.0, 4.0, 8.0], KNOWN, [0.3, 0.1, 0.2], [0.2, 0.4, 0.6]),
        ([1.0, 2.0, 4.0], [*KNOWN, math.inf], [0.3, 0.1, 0.2, math.nan], [0.1, 0.2, 0.3]),
        ([0.0, 0.0], [0.0], [0.5], [0.5, 0.5]),
        # Numbers that are all 0 have a size of 1.
        ([0.0, 0.0], KNOWN, [0.3, 0.1, 0.2], [0.1 / 7**0.5, 0.1 / 7**0.5]),
        ([1.0, 7.0**0.5], [0.0, 0.0], [0.3, 0.1], [0.6, 0.6]),
        # A limit that is not known is none.
        ([1.0, 2.0, 4.0], KNOWN, [0.3, math.nan, 0.2], [0.0, 0.2, 0.3]),
        ([1.0, 2.0], [], [], [0.0, 0.0]),
    ],
)
def test_the_limit_of_a_number_is_the_largest_of_those_no_larger(sizes, known, own, largest):
    tensors = (torch.tensor(values, dtype=torch.float64) for values in (sizes, known, own))
    assert largest_limits(*tensors).tolist() == pytest.approx(largest)


def test_limits_have_the_shape_of_the_numbers():
    sizes = torch.tensor([[1.0, 2.0], [4.0, 0.0]])
    assert largest_limits(sizes, torch.tensor(KNOWN), torch.tensor([0.3, 0.1, 0.2])).shape == (2, 2)


def test_limits_of_numbers_of_any_type_are_in_float64():
    wide = torch.tensor(KNOWN, dtype=torch.float64)
    own = torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64)
    for sizes, known in ((wide.float(), wide), (wide, wide.float()), (wide.float(), wide[:0])):
        limits = largest_limits(sizes, known, own[: len(known)])
        assert limits.dtype == torch.float64
        assert limits.tolist() == (pytest.approx(own.tolist()) if len(known) else [0.0] * 3)
    # Their squares are 0 in float32.
    tiny = 1e-30 * wide.float()
    assert largest_limits(tiny, tiny, own).tolist() == pytest.approx(own.tolist())


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_choice_may_be_told_by_a_keyword(is_changed):
    """A type of integers rounds, and one of other numbers does not."""

    def model(x):
        return x.to(device="cpu", dtype=torch.int64)

    numbers = torch.tensor([0.95, 0.5, 1.05], dtype=torch.float64)
    choices = choices_of(model, torch.tensor([1, 0, 1]), numbers)
    assert ran(model, choices, numbers, is_changed).tolist() == [1, 0, 1]
    without = ran(lambda x: model(x.to(torch.float32)), choices, numbers, is_changed)
    assert without.tolist() == [1, 0, 1]


def test_a_recorded_device_is_none_of_a_comparison():
    assert _on_cpu(torch.device("meta")) == torch.device("cpu")
    assert _on_cpu("meta") == "meta"
