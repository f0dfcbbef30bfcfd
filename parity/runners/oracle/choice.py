"""Choices: results that jump where rounding moves a number across a boundary.

A choice is the result of an operation that ranks numbers (top-k, sort, argmax), compares them, rounds them to
integers, or counts the boundaries below them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from parity.capture.terms.call import Call
from parity.runners.oracle.sampling import Samples

RANKING = frozenset({"topk", "sort", "argmax", "argmin", "max", "min"})
"""Operations that rank numbers along an axis."""
COMPARING = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
ROUNDING = frozenset({"floor", "ceil", "round", "trunc", "sign", "_to_copy"})
COUNTING = frozenset({"bucketize", "searchsorted"})


@dataclass
class Choice:
    """One choice of one pass.

    Attributes:
        call: The operation with its arguments.
        operation: Its name.
        value: The choice: indices, integers, booleans, or rounded numbers.
        own: The choice that the pass's own numbers give.
        squares: Sums of the squared deviations of rounding samples from each number, as in `numbers`.
        samples: Number of these samples.
        reference: The reference's numbers.
        is_reference_float32: Whether the reference computes them in float32.
    """

    call: Call
    operation: str
    value: torch.Tensor
    own: torch.Tensor
    squares: list[torch.Tensor] = field(default_factory=list)
    samples: int = 0
    reference: list[torch.Tensor] = field(default_factory=list)
    is_reference_float32: bool = False

    @property
    def operands(self) -> list[torch.Tensor]:
        """The floating-point operands: one, or the two sides of a comparison."""
        return operands_of(self.call, self.operation)

    @property
    def numbers(self) -> list[torch.Tensor]:
        """The numbers that decide, of a comparison the distance of its sides: they may share an error."""
        return [self.distance] if self.operation in COMPARING else self.operands

    @property
    def sizes(self) -> list[torch.Tensor]:
        """The sizes of the numbers that decide, of a comparison the size of its larger side."""
        if self.operation not in COMPARING:
            return [tensor.abs() for tensor in self.operands]
        left, right = (torch.as_tensor(side).abs() for side in self.call.args[:2])
        return [torch.maximum(left, right)]

    @property
    def axis(self) -> int | None:
        """The axis of a ranking; None for all elements."""
        axis = self.call.get("dim")
        return None if axis is None else int(axis)

    @property
    def is_descending(self) -> bool:
        """Whether a ranking begins with the largest number."""
        if self.operation in ("topk", "sort"):
            return bool(self.call["largest" if self.operation == "topk" else "descending"])
        return self.operation in ("argmax", "max")

    @property
    def is_ordered(self) -> bool:
        """Whether the order of a ranking counts."""
        return self.operation != "topk" or bool(self.call["sorted"])

    @property
    def is_stable(self) -> bool:
        """Whether a ranking keeps the order of equal numbers."""
        return bool(self.call.get("stable"))

    @property
    def distance(self) -> torch.Tensor:
        """The left side of a comparison less the right one."""
        return _distance(*(_values(side, self.value.ndim) for side in self.call.args[:2]))[0]

    def compare(self, distance: torch.Tensor) -> torch.Tensor:
        """The comparison of sides with another distance."""
        return getattr(torch, self.operation)(distance, 0.0)

    def at(self, numbers: torch.Tensor) -> torch.Tensor:
        """The result of other numbers, of a rounding or a count of boundaries."""
        place = 1 if self.operation == "searchsorted" else 0
        args = [numbers if at == place else arg for at, arg in enumerate(self.call.args)]
        return self.call.func(*args, **self.call.kwargs)

    def take(self, call: Call, is_reference: bool) -> None:
        """Add the numbers of another pass.

        Args:
            call: The operation in that pass.
            is_reference: Whether it is the reference's; else it is one of rounding samples.
        """
        operands = operands_of(call, self.operation)
        if self.operation in COMPARING:
            values = [_distance(*(_values(side, self.value.ndim) for side in call.args[:2]))]
        else:
            values = [_values(tensor, tensor.ndim) for tensor in operands]
        if is_reference:
            self.reference = [tensor[0] for tensor in values]
            self.is_reference_float32 = all(operand.dtype is torch.float32 for operand in operands)
            return
        pairs = zip(values, self.numbers, strict=True)
        squares = [torch.where(own == exact, 0.0, own - exact).square().sum(0) for own, exact in pairs]
        count = max(map(len, values))
        known = self.squares or [0.0] * len(squares)
        self.squares = [sums + others for sums, others in zip(known, squares, strict=True)]
        self.samples += count


def _values(side: Any, axes: int) -> torch.Tensor:
    """(S, ...) The float64 values of an operand in all samples, with so many axes behind these."""
    values = side.values if isinstance(side, Samples) else torch.as_tensor(side).detach()[None]
    shape = values.shape
    return values.to("cpu", torch.float64).reshape(shape[:1] + (1,) * (axes - len(shape) + 1) + shape[1:])


def _distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.where(left == right, 0.0, left - right)


def is_fractional(tensor: torch.Tensor) -> bool:
    """Whether a tensor has numbers that are no rounded ones, as far as its values show."""
    return tensor.dtype.is_floating_point and not torch.equal(tensor, tensor.trunc())


def is_choice(func: Any, name: str, args: tuple, kwargs: dict) -> bool:
    """Whether an operation chooses by floating-point numbers: its result jumps where they change."""
    if not args or not isinstance(args[0], torch.Tensor) or func._schema.is_mutable:
        return False
    if name in RANKING:
        # Without an axis, `max` and `min` return numbers alone, and of two tensors the larger numbers.
        is_ranking = name not in ("max", "min") or func._overloadname == "dim"
        return is_ranking and args[0].dtype.is_floating_point
    if name == "_to_copy":
        dtype = kwargs.get("dtype")
        return args[0].dtype.is_floating_point and dtype is not None and not dtype.is_floating_point
    if name == "searchsorted":
        return isinstance(args[1], torch.Tensor) and args[1].dtype.is_floating_point
    if name in COMPARING:
        return any(isinstance(arg, torch.Tensor) and arg.dtype.is_floating_point for arg in args[:2])
    return (name in ROUNDING or name in COUNTING) and args[0].dtype.is_floating_point


def operands_of(call: Call, name: str) -> list[torch.Tensor]:
    """The floating-point tensors by which an operation chooses."""
    if name == "searchsorted":
        return [call.args[1]]
    operands = call.args[:2] if name in COMPARING else call.args[:1]
    return [arg for arg in operands if isinstance(arg, torch.Tensor) and arg.dtype.is_floating_point]


def result_of(call: Call, name: str, value: torch.Tensor) -> Any:
    """The result of an operation whose choice is `value`, in a copy: code behind it may overwrite it."""
    value = value.to(call.args[0].dtype) if value.dtype.is_floating_point else value.clone()
    if name not in ("topk", "sort", "max", "min"):
        return value
    numbers, axis = call.args[0], int(call["dim"])
    index = value if name in ("topk", "sort") or call["keepdim"] else value.unsqueeze(axis)
    values = torch.gather(numbers, axis, index)
    return (values if index is value else values.squeeze(axis)), value
