"""The longest sum inside every module, observed while the reference runs.

The verdict rule needs, for each module, the number of terms in its longest sum, and whether it does
arithmetic at all. Both follow from the operations that PyTorch dispatches while the module runs
(`parity.capture.terms`). No model has to declare them.
"""

from __future__ import annotations

from typing import Any

from parity.base.dispatch import EachOperation, largest_bytes
from parity.capture.terms import terms

WHOLE = ""
"""The path of the whole forward, whose operations outside of all modules count too."""


class LongestSums(EachOperation):
    """Records, for each open module path, the longest sum and the largest result of what runs inside it.

    Use as a context manager around a forward pass; the tap hooks call `enter` and `leave`. Afterwards
    `lengths[path]` is 0 for a module without floating-point arithmetic and at least 1 otherwise, and
    `longest_so_far` is the same for everything that ran since the start; `largest[path]` is in bytes.
    `unknown[path]` has the operations that are not known by name, with the origin of their terms, for the
    innermost module around each; operations outside of all modules have the path "".
    """

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self.unknown: dict[str, dict[str, str]] = {}
        self.longest_so_far = 0
        self._open: list[str] = []

    def enter(self, path: str) -> None:
        self._open.append(path)
        self.lengths.setdefault(path, 0)
        self.largest.setdefault(path, 0)

    def leave(self) -> None:
        self._open.pop()

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        counted, size = terms(func, args, kwargs, result), largest_bytes(result)
        length = counted.count
        if counted.unknown:
            innermost = self._open[-1] if self._open else ""
            self.unknown.setdefault(innermost, {})[str(func.overloadpacket)] = counted.unknown
        self.longest_so_far = max(self.longest_so_far, length)
        for path in self._open:
            self.lengths[path] = max(self.lengths[path], length)
            self.largest[path] = max(self.largest[path], size)
        return result
