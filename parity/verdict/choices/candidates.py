"""Possible values in the place of a choice."""

from __future__ import annotations

import torch

from parity.runners.oracle.choice import COMPARING, COUNTING, RANKING, Choice

MOST_VALUES = 1 << 26
"""Most elements that a search puts through code, over all possible values of a choice."""
AROUND = 2
"""Largest step from the oracle's rounded number that a search tries."""


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
    return 2 * AROUND + 1


def candidate(choice: Choice, number: int | torch.Tensor) -> torch.Tensor:
    """The possible values of these numbers, one for all elements of a choice or one for each."""
    numbers = torch.as_tensor(number).expand(choice.value.shape)
    if choice.operation in RANKING or choice.operation in COMPARING or choice.operation in COUNTING:
        return numbers.to(choice.value.dtype)
    return choice.value + (numbers - AROUND).to(choice.value.dtype)


def unshown(choice: Choice) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle's values of a choice, and the mask of none that a result shows; both may be written to."""
    return choice.value.clone(), torch.zeros(choice.value.shape, dtype=torch.bool)
