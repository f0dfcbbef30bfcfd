"""Changes of one operation that take an earlier tensor of the run in the place of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from parity.verdict.causes.operations import Change, Operation, Source
from parity.verdict.causes.signs_and_places import SPLITS

MOST_EARLIER = 4
"""Largest number of earlier tensors of one shape and type that are tried, the last ones."""
_TERMS = frozenset({"add", "sub", "mul"})
"""Operations of two tensors that may take another one."""
_JOINS = frozenset({"cat", "constant_pad_nd"})
"""Operations that a port may leave out where an earlier tensor has their shape, such as a shift."""


class EarlierTensors:
    """The last floating-point tensors of a run, by shape and type."""

    def __init__(self) -> None:
        self._seen: dict[tuple[torch.Size, torch.dtype], deque[tuple[torch.Tensor, Source, str]]] = {}

    def changes_of(self, operation: Operation, result: Any) -> Iterator[Change]:
        """The changes of an operation that take an earlier tensor."""
        named = operation.named()
        if operation.name in _TERMS:
            own = {name: named.get(name) for name in ("self", "other")}
            if not all(isinstance(tensor, torch.Tensor) and tensor.ndim for tensor in own.values()):
                return
            kind = "factor" if operation.name == "mul" else "term"
            for (name, tensor), place in zip(own.items(), ("first", "second"), strict=True):
                for source, words in self._others(tensor, list(own.values())):
                    text = f"with {words} in place of the {place} {kind} in {operation.words}"
                    yield Change(text, lambda o, name=name: o.run({name: o.source}), source=source)
        elif operation.name in _JOINS and isinstance(result, torch.Tensor):
            for source, words in self._others(result, []):
                yield Change(
                    f"with {words} in place of the result of {operation.words}",
                    lambda o: o.source,
                    source=source,
                )

    def _others(self, tensor: torch.Tensor, own: list[torch.Tensor]) -> Iterator[tuple[Source, str]]:
        """Earlier tensors with other values than a tensor, and than those of the operation."""
        known = [tensor, *own]
        for earlier, source, words in self._seen.get((tensor.shape, tensor.dtype), ()):
            if not any(earlier.shape == other.shape and torch.equal(earlier, other) for other in known):
                known.append(earlier)
                yield source, words

    def add(self, number: int, operation: Operation, result: Any, line: str) -> None:
        """Add the arguments and the result of an operation.

        Args:
            number: Its number in the run.
            operation: The operation.
            result: Its result.
            line: Its line in words.
        """
        for name, value in operation.named().items():
            if isinstance(value, torch.Tensor):
                self._add(value, (number, name), f"the {name} of {operation.words} in {line}")
        results = result if isinstance(result, (tuple, list)) else (result,)
        for place, tensor in enumerate(results):
            if isinstance(tensor, torch.Tensor):
                # Norms and maxima have their result first, and what they know about it behind.
                what = f"part {place} of" if operation.name in SPLITS else "the result of"
                self._add(tensor, (number, place), f"{what} {operation.words} in {line}")
                if operation.name not in SPLITS:
                    break

    def _add(self, tensor: torch.Tensor, source: Source, words: str) -> None:
        if not tensor.dtype.is_floating_point or not tensor.ndim:
            return
        seen = self._seen.setdefault((tensor.shape, tensor.dtype), deque(maxlen=MOST_EARLIER))
        if all(_place(tensor) != _place(earlier) for earlier, *_ in seen):
            seen.append((_held(tensor), source, words))


def tensor_at(source: Source, operation: Operation, result: Any) -> torch.Tensor:
    """The argument or the result of an operation at a source, to hold."""
    place = source[1]
    if isinstance(place, str):
        return _held(operation.named()[place])
    return _held(result if isinstance(result, torch.Tensor) else result[place])


def _held(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same numbers, to hold behind the operation that returns one.

    PyTorch makes another operation of one that creates a tensor, if the tensor itself is held.
    """
    return torch.ops.aten.alias.default(tensor)


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.stride()
