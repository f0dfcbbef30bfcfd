"""The longest sum inside every module, and the type that it rounds to, observed while the reference runs.

The verdict rule needs, for each module, the number of terms in its longest sum, whether it does arithmetic at
all, and the coarsest type that results have there. All follow from the operations that PyTorch dispatches
while the module runs (`parity.capture.terms`). No model has to declare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from parity.base.dispatch import EachOperation, largest_bytes, tensors_in
from parity.base.precision import coarser
from parity.capture.indices import index_outside
from parity.capture.terms import terms

WHOLE = ""
"""The path of the whole forward, whose operations outside of all modules count too."""


class LongestSums(EachOperation):
    """Records, for each open module path, the longest sum and the largest result of what runs inside it.

    Use as a context manager around a forward pass; the tap hooks call `enter` and `leave`. Afterwards
    `lengths[path]` is 0 for a module without floating-point arithmetic and at least 1 otherwise, and
    `longest_so_far` is the same for everything that ran since the start; `largest[path]` is in bytes.
    `coarsest[path]` is the type with the largest round-off of all floating-point results with a rounding; a
    module without one has none.
    `unknown[path]` has the operations that are not known by name, with the origin of their terms, for the
    innermost module around each; operations outside of all modules have the path "".

    Raises:
        IndexOutside: An operation has an index outside of its axis.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self.coarsest: dict[str, torch.dtype] = {}
        self.unknown: dict[str, dict[str, str]] = {}
        self.longest_so_far = 0
        self._open: list[str] = []

    def enter(self, path: str) -> None:
        self._open.append(path)
        self.lengths.setdefault(path, 0)
        self.largest.setdefault(path, 0)

    def leave(self) -> None:
        self._open.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        # In front of the operation: a GPU would tell of an index outside later, and then run nothing more.
        outside = index_outside(func, args, kwargs or {}, self._open[-1] if self._open else "")
        if outside is not None:
            raise outside
        return super().__torch_dispatch__(func, types, args, kwargs)

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        counted, size = terms(func, args, kwargs, result), largest_bytes(result)
        length = counted.count
        if counted.unknown:
            innermost = self._open[-1] if self._open else ""
            self.unknown.setdefault(innermost, {})[str(func.overloadpacket)] = counted.unknown
        self.longest_so_far = max(self.longest_so_far, length)
        rounded = [*_rounded_types((*args, *kwargs.values()), result, bool(length))]
        for path in self._open:
            self.lengths[path] = max(self.lengths[path], length)
            self.largest[path] = max(self.largest[path], size)
            for dtype in rounded:
                self.coarsest[path] = coarser(dtype, self.coarsest.get(path, dtype))
        return result


def _rounded_types(arguments: tuple, result: Any, has_arithmetic: bool) -> Iterator[torch.dtype]:
    """Types of the results that are rounded: by arithmetic, or by a cast from a finer type."""
    received = [*_floating_types(arguments)]
    for dtype in _floating_types((result,)):
        if has_arithmetic or any(coarser(dtype, other) is not other for other in received):
            yield dtype


def _floating_types(values: Iterable[Any]) -> Iterator[torch.dtype]:
    types = (tensor.dtype.to_real() for tensor in tensors_in(values))
    return (dtype for dtype in types if dtype.is_floating_point)
