"""The types that a reference computes in by itself, operation by operation.

A reference may ask for float32 in a run of a half type:

    wide = torch.promote_types(x.dtype, torch.float32)

In the float64 oracle `wide` is float64, so that nothing tells such an operation from one of the tested
precision. A run of the same module in the tested precision does. Both have the same operations, but for
casts.

A result that is cast to the tested precision behind its operation has that rounding, too: its type is the
half one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from parity.base.dispatch import EachOperation, tensors_in
from parity.capture.terms import terms

OwnResults = Sequence[tuple[str, torch.Size, torch.dtype]]
"""Operation, shape and type of each result with a rounding."""


class OwnTypes(EachOperation):
    """Inside, each floating-point result with a rounding is recorded: its operation, shape and type.

    Attributes:
        results: In order of the operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: list[tuple[str, torch.Size, torch.dtype]] = []
        self._made: dict[int, frozenset[int]] = {}
        # Addresses name the tensors: none of them is freed and used again inside.
        self._kept: list[torch.Tensor] = []

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = func.overloadpacket.__name__
        operands = [*filter(is_floating, tensors_in((*args, *kwargs.values())))]
        before = [(operand.dtype, self._made.get(_address(operand), frozenset())) for operand in operands]
        result = func(*args, **kwargs)
        outputs = [*filter(is_floating, tensors_in((result,)))]
        is_rounded = bool(terms(func, args, kwargs, result).count)
        for output in outputs:
            for dtype, made in before:
                if dtype.itemsize > output.dtype.itemsize:
                    self._narrow(made, output.dtype)
            made = frozenset().union(*(made for _, made in before))
            if is_rounded:
                made = frozenset((len(self.results),))
                self.results.append((name, output.shape, output.dtype))
            self._made[_address(output)] = made
            self._kept.append(output)
        return result

    def _narrow(self, made: frozenset[int], dtype: torch.dtype) -> None:
        """Results of some operations are rounded to another type."""
        for place in made:
            name, shape, own = self.results[place]
            self.results[place] = name, shape, dtype if dtype.itemsize < own.itemsize else own


def is_floating(value: Any) -> bool:
    """Whether a value is a dense tensor of floating-point numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
