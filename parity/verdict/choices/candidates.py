"""Possible values in the place of a choice."""

from __future__ import annotations

import torch

from parity.runners.oracle.choice import COMPARING, COUNTING, RANKING, ROUNDING, Choice

MOST_VALUES = 1 << 26
"""Most elements that a search puts through code, over all possible values of a choice."""
AROUND = 2
"""Largest step from a rounded number of the oracle, and of the reference, that a search tries."""
_STEPS = 2 * AROUND + 1


def count(choice: Choice) -> int:
    """Number of possible values that a search tries."""
    if choice.operation in RANKING:
        (numbers,) = choice.numbers
        return numbers.numel() if choice.axis is None else numbers.shape[choice.axis]
    if choice.operation in COMPARING:
        return 2
    if choice.operation in COUNTING:
        sequence = choice.call.args[0 if choice.operation == "searchsorted" else 1]
        return sequence.shape[-1] + 1
    return _STEPS if _of_reference(choice) is None else 2 * _STEPS


def candidate(choice: Choice, number: int | torch.Tensor) -> torch.Tensor:
    """The possible values of these numbers, one for all elements of a choice or one for each."""
    numbers = torch.as_tensor(number).expand(choice.value.shape)
    if choice.operation in RANKING or choice.operation in COMPARING or choice.operation in COUNTING:
        return numbers.to(choice.value.dtype)
    around, reference = choice.value, _of_reference(choice)
    if reference is not None:
        around = torch.where(numbers < _STEPS, around, reference.to(around.dtype))
    return around + (numbers % _STEPS - AROUND).to(choice.value.dtype)


def _of_reference(choice: Choice) -> torch.Tensor | None:
    """The reference's rounded numbers; None before it has run, and for another kind of choice.

    They are far from the oracle's where a scale is below the smallest normal number of float16.
    """
    if not choice.reference or choice.operation not in ROUNDING:
        return None
    return choice.at(choice.reference[0])


def unshown(choice: Choice) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle's values of a choice, and the mask of none that a result shows; both may be written to."""
    return choice.value.clone(), torch.zeros(choice.value.shape, dtype=torch.bool)
