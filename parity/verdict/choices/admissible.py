"""The choices that rounding explains.

A choice follows from numbers x, such as the scores of a ranking. A program of the tested precision has other
numbers, each within a limit L of the oracle's. The limit is that of `parity.verdict.rule` for one number:

    L^2 = (k * err)^2 + (floor * |x|)^2,

where err is the error of the reference or, if larger, the error of reference and rounding samples together
times the sampling factor of one number. A number that is exact on all of them has L = 0.

A reference may take float32 in a run of a half type. Where its numbers, and those of all samples, are within
errors of float32, they come from exact inputs in float32 alone. L has such an error and the reference's own.

Where no program computes anything before the choice, L is the reference's own error: the rounding of inputs.

A choice is admissible if some numbers in [x - L, x + L] give it:

* an order c_1, c_2, ... of a ranking, if x[c_i] + L[c_i] >= x[c_j] - L[c_j] for all i < j, and for all j that
  are not chosen. This is exact: numbers that fall along the order exist if and only if it holds;
* a comparison of a with b, by the number a - b: errors that both sides share do not count;
* a comparison, a rounding to integers or a count of boundaries, if it lies between the results at x - L and
  at x + L, because these operations are monotonic.

Equal numbers may be in any order, unless the reference sorts in a stable way.
"""

from __future__ import annotations

import math

import torch

from parity.runners.oracle.choice import COMPARING, RANKING, Choice
from parity.verdict.bound import Bound
from parity.verdict.sampling_error import sampling_factor

_ONE_ROUNDING = 1.0 + 2.0**-50
"""Factor that keeps a number at the end of its interval inside, however the sum with the limit is rounded."""


def admissible(choice: Choice, value: torch.Tensor, bound: Bound) -> torch.Tensor:
    """Mask of the admissible elements of a choice; a ranking is admissible along all of its axis.

    Args:
        choice: The oracle's choice, with the numbers of the samples and the reference.
        value: Another choice in its place, of its shape.
        bound: The bound of the numbers' error.
    """
    return within(choice, value, limits(choice, bound))


def within(choice: Choice, value: torch.Tensor, limits: list[torch.Tensor]) -> torch.Tensor:
    """Mask as of `admissible`, from the limits of the choice's numbers."""
    (limit,) = limits
    if choice.operation in RANKING:
        return _ranked(choice, value, limit)
    if choice.operation in COMPARING:
        return _compared(choice, value, limit)
    (numbers,) = choice.numbers
    low, high = choice.at(numbers - limit), choice.at(numbers + limit)
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    return ((low <= value) & (value <= high)) | (value == choice.own)


def limits(choice: Choice, bound: Bound) -> list[torch.Tensor]:
    """L of each of a choice's numbers."""
    return [_limit(choice, place, bound) for place in range(len(choice.numbers))]


def _limit(choice: Choice, place: int, bound: Bound) -> torch.Tensor:
    exact = choice.numbers[place].to(torch.float64)
    own = torch.zeros_like(exact)
    if choice.reference:
        reference = choice.reference[place]
        own = torch.where(reference == exact, 0.0, (reference - exact).abs())
    if not bound.longest_sum:
        # Both programs only move their inputs before the choice. The port's numbers are the reference's.
        return own * _ONE_ROUNDING
    if choice.samples:
        together = torch.sqrt((own.square() + choice.squares[place]) / (choice.samples + 1))
        factor = sampling_factor(1.0, choice.samples + 1.0)
    else:
        # No samples of so many numbers: those of a row have errors of one size.
        together = own.square().mean(-1, keepdim=True).sqrt() if own.ndim else own
        factor = sampling_factor(1.0, float(own.shape[-1] if own.ndim else 1))
    error = torch.maximum(own, factor * together)
    sizes = choice.sizes[place].to(torch.float64)
    limit = torch.hypot(bound.k * error, bound.floor * sizes)
    if choice.is_reference_float32 and math.isfinite(bound.error_in_float32):
        narrow = bound.error_in_float32 * sizes
        is_narrow = bool((torch.maximum(own, together) <= narrow).all())
        limit = torch.hypot(bound.k * own, narrow) if is_narrow else limit
    return torch.where(error == 0.0, 0.0, limit)


def _ranked(choice: Choice, value: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    numbers = choice.numbers[0].to(torch.float64)
    if not choice.is_descending:
        numbers = -numbers
    axis, shape = choice.axis, value.shape
    if axis is None:
        numbers, limit, value = numbers.reshape(-1), limit.reshape(-1), value.reshape(1)
        own = choice.own.reshape(1)
    elif value.ndim < numbers.ndim:
        value, own = value.unsqueeze(axis), choice.own.unsqueeze(axis)
    else:
        own = choice.own
    axis = 0 if axis is None else axis
    numbers, limit, value, own = (tensor.movedim(axis, -1) for tensor in (numbers, limit, value, own))
    size = numbers.shape[-1]
    ordered = value.sort(-1).values
    is_choice = (ordered[..., :1] >= 0) & (ordered[..., -1:] < size)
    if ordered.shape[-1] > 1:
        is_choice &= (ordered[..., 1:] != ordered[..., :-1]).all(-1, keepdim=True)
    index = value.clamp(0, size - 1)
    low, high = numbers - limit, (numbers + limit).gather(-1, index)
    rest = low.scatter(-1, index, -torch.inf).max(-1, keepdim=True).values
    behind = rest.expand(high.shape)
    if choice.is_ordered:
        tail = torch.cat([low.gather(-1, index), rest], -1).flip(-1).cummax(-1).values.flip(-1)
        behind = tail[..., 1:]
    right = (high >= behind).all(-1, keepdim=True) & is_choice
    if choice.is_stable:
        exact = (limit == 0.0).gather(-1, index)
        sorted_ = numbers.gather(-1, index)
        tied = exact[..., 1:] & exact[..., :-1] & (sorted_[..., 1:] == sorted_[..., :-1])
        right &= (~tied | (index[..., 1:] > index[..., :-1])).all(-1, keepdim=True)
    right |= (value == own).all(-1, keepdim=True)
    return right.expand(value.shape).movedim(-1, axis).reshape(shape)


def _compared(choice: Choice, value: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    distance = choice.distance
    if choice.operation in ("eq", "ne"):
        return (distance.abs() <= limit) & (limit > 0) | (value == choice.own)
    low, high = choice.compare(distance - limit), choice.compare(distance + limit)
    return (value == low) | (value == high)
