"""Possible values of a choice: around the oracle's number, and around the reference's."""

import pytest
import torch

from parity.runners.oracle.choices import Choices
from parity.verdict.choices.candidates import AROUND, candidate, count


def chosen(model, *numbers):
    """The only choice of a model."""
    with Choices() as recorded:
        model(*map(torch.tensor, numbers))
    (choice,) = recorded.choices
    return choice


STEPS = list(range(-AROUND, AROUND + 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounded_numbers_are_tried_around_the_oracles_and_the_references(dtype):
    choice = chosen(lambda x: x.to(dtype).round(), [0.3, 7.0])
    assert count(choice) == len(STEPS)
    tried = [candidate(choice, number) for number in range(count(choice))]
    assert [values.tolist() for values in tried] == [[step, 7.0 + step] for step in STEPS]
    # Before rounding, as a scale of few bits gives them.
    choice.reference = [torch.tensor([40.4, 6.6], dtype=torch.float64)]
    assert count(choice) == 2 * len(STEPS)
    tried = [candidate(choice, number) for number in range(count(choice))]
    assert [values.tolist() for values in tried[len(STEPS) :]] == [
        [40.0 + step, 7.0 + step] for step in STEPS
    ]
    assert [values.tolist() for values in tried[: len(STEPS)]] == [[step, 7.0 + step] for step in STEPS]
    assert {values.dtype for values in tried} == {dtype}
    # One number for each element.
    assert candidate(choice, torch.tensor([0, 9])).tolist() == [-2.0, 9.0]


@pytest.mark.parametrize("reference", [False, True])
def test_integers_keep_their_type(reference):
    choice = chosen(lambda x: x.to(torch.int32), [0.3, 7.0])
    if reference:
        choice.reference = [torch.tensor([40.4, 6.6], dtype=torch.float64)]
    assert {candidate(choice, number).dtype for number in range(count(choice))} == {torch.int32}


def test_the_references_numbers_add_no_values_of_another_kind():
    choice = chosen(lambda x: x > 0.5, [0.3, 7.0])
    choice.reference = [torch.tensor([1.0, -1.0], dtype=torch.float64)]
    assert count(choice) == 2
    assert candidate(choice, 1).tolist() == [True, True]
