"""The port's choices in another program than the reference's, such as one with an error of the port.

Numbers before a choice are others there, and their errors are not known. The port's choice takes the place
of the program's own where rounding explains it, see `parity.verdict.choices.admissible`. The limit of a
number is the largest one of the reference's numbers that are no larger, relative to the size of all numbers.
"""

from __future__ import annotations

import contextlib
import itertools
from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.base.dispatch import EachOperation, mapped
from parity.capture.terms.call import Call
from parity.runners.oracle.choice import Choice, is_choice, result_of
from parity.verdict.choices.admissible import within
from parity.verdict.port_choices import Limits, PortChoices


class ChoicesOfRun:
    """The port's choices in one run.

    Args:
        port: The choices; None for a run with its own ones.
        is_changed: Whether the run is another program than the reference's.
    """

    def __init__(self, port: PortChoices | None, is_changed: bool) -> None:
        self._port, self._is_changed = port, is_changed
        self._numbers = itertools.count()

    def of(self, func: Any, args: tuple, kwargs: dict) -> AbstractContextManager[Any]:
        """Inside, the reference's next operation, or another one in its place, makes the port's choice."""
        if self._port is None or not is_choice(func, func.overloadpacket.__name__, args, kwargs):
            return contextlib.nullcontext()
        number = next(self._numbers)
        if number not in self._port.shown:
            return contextlib.nullcontext()
        if not self._is_changed:
            return _Taking(*self._port.taken[number])
        return _Taking(*self._port.shown[number], self._port.limits[number])


class _Taking(EachOperation):
    """Inside, an operation makes a prescribed choice, in other programs where rounding explains it.

    Args:
        values, mask: The choice and the mask of its prescribed elements.
        known: The limits of the reference's numbers; None in the reference's program.
    """

    def __init__(self, values: torch.Tensor, mask: torch.Tensor, known: Limits | None = None) -> None:
        super().__init__()
        self._values, self._mask, self._known = values, mask, known

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **kwargs)
        if not is_choice(func, name, args, kwargs):
            return result
        natural = result[1] if isinstance(result, (tuple, list)) else result
        if natural.shape != self._values.shape:
            return result
        values, mask = self._values.to(natural), self._mask.to(natural.device)
        if self._known is not None:
            call = Call(func, mapped(_on_cpu, args), mapped(_on_cpu, kwargs), ())
            choice = Choice(call, name, natural.cpu(), natural.cpu())
            allowed = [largest_limits(sizes, *self._known) for sizes in choice.sizes]
            mask = mask & within(choice, values.cpu(), allowed).to(mask.device)
        return result_of(Call(func, args, kwargs, ()), name, torch.where(mask, values, natural))


def largest_limits(sizes: torch.Tensor, known: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """For each size, the largest limit of known numbers that are no larger, relative to all sizes.

    Args:
        sizes: Sizes of numbers.
        known: Sizes of other numbers.
        limits: The limits of those.
    """
    if not known.numel():
        return torch.zeros(sizes.shape, dtype=torch.float64)
    ratio = _size(sizes) / _size(known)
    ordered, order = known.to(torch.float64).reshape(-1).sort()
    largest = limits.reshape(-1)[order].nan_to_num(0.0).cummax(0).values
    place = torch.searchsorted(ordered, (sizes / ratio).to(torch.float64).reshape(-1), right=True) - 1
    return ratio * largest[place.clamp(min=0)].reshape(sizes.shape)


def _on_cpu(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def _size(sizes: torch.Tensor) -> float:
    """The norm of finite numbers in the mean; 1 where all are 0."""
    finite = sizes[torch.isfinite(sizes)].to(torch.float64)
    return float(finite.square().mean().sqrt()) if finite.any() else 1.0
