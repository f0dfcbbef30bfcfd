"""Indices of the reference that are outside of the axis that they look up: bad input, with its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError

_BY_AXIS = frozenset(
    """
    gather index_add index_copy index_fill index_reduce index_select scatter scatter_add scatter_reduce
    _unsafe_index_put
    """.split()
)
"""Operations of a tensor, an axis and a tensor of indices."""
_ROWS = frozenset("embedding _embedding_bag _embedding_bag_forward_only embedding_renorm".split())
"""Operations of a table and a tensor of its rows."""


class IndexOutside(UserError):
    """An operation of the reference has an index outside of its axis.

    Args:
        operation: Its name.
        path: Path of the innermost module around it; empty for the code of the entry.
        indices: Its tensor of indices.
        low, high: The smallest and the largest index that it takes.
    """

    def __init__(self, operation: str, path: str, indices: np.ndarray, low: int, high: int) -> None:
        self._outside = (indices < low) | (indices > high)
        self._indices = indices
        self._range = f"{low} to {high}"
        self._does = f"{operation} in {path or 'the code of the entry'} takes {low} to {high}"
        value = indices[self._outside][0].item()
        problem = f"is outside of what the reference looks up: {self._does}, and its indices are computed"
        super().__init__(
            f"an index of {operation}", value, problem, "correct the case's inputs, or the model"
        )

    def __reduce__(self) -> tuple[type[UserError], tuple[str, object, str, str]]:
        return UserError, (self.field, self.value, self.problem, self.fix)

    def of_inputs(self, arrays: Mapping[str, np.ndarray]) -> UserError:
        """The error with the input that the indices are, or a part of; itself if they are none."""
        for name, array in arrays.items():
            if array.dtype.kind in "iu" and (place := self._place(array)) is not None:
                count = int(self._outside.sum())
                others = f" ({count} such elements)" if count > 1 else ""
                return UserError(
                    f"inputs.{name}[{', '.join(map(str, place))}]",
                    array[place].item(),
                    f"is outside of what the reference looks up: {self._does}{others}",
                    f"give {self._range} in the case's inputs",
                )
        return self

    def _place(self, array: np.ndarray) -> tuple[int, ...] | None:
        """The place in an input of the first index outside; None if the indices are no part of the input."""
        for part, places in _parts(array, self._indices):
            if part.size == self._indices.size and np.array_equal(part.ravel(), self._indices.ravel()):
                flat = places.ravel()[int(np.argmax(self._outside.ravel()))]
                return tuple(int(axis) for axis in np.unravel_index(flat, array.shape))
        return None


def _parts(array: np.ndarray, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The parts of an input that a model looks up: all of it, one place of an axis, a beginning, an end.

    Each comes with the places of its elements in the flat input.
    """
    places = np.arange(array.size).reshape(array.shape)
    yield array, places
    if array.ndim == 2:
        yield array.T, places.T
    for axis in range(array.ndim):
        if array.size // max(1, array.shape[axis]) == indices.size:
            for place in range(array.shape[axis]):
                yield array.take(place, axis), places.take(place, axis)
    if array.ndim == indices.ndim and all(np.less_equal(indices.shape, array.shape)):
        for ends in (
            tuple(slice(0, size) for size in indices.shape),
            tuple(slice(own - size, own) for own, size in zip(array.shape, indices.shape, strict=True)),
        ):
            yield array[ends], places[ends]


def index_outside(func: Any, args: tuple, kwargs: Mapping[str, Any], path: str) -> IndexOutside | None:
    """The error of an operation that has an index outside; None if it has none, or looks nothing up.

    Args:
        func: The operation.
        args, kwargs: Its arguments.
        path: Path of the innermost module around it.
    """
    name = func.overloadpacket.__name__
    for size, indices, wraps in _looked_up(name.removesuffix("_"), args, kwargs):
        if _has_whole_numbers(indices):
            values = indices.detach().cpu().numpy()
            low, high = (-size if wraps else 0), size - 1
            if bool(((values < low) | (values > high)).any()):
                return IndexOutside(name, path, values, low, high)
    return None


def _along(own: torch.Tensor, axis: int, indices: Any) -> Iterator[tuple[int, Any, bool]]:
    """The look-up along an axis; none if the tensor lacks it, which the operation itself tells."""
    sizes = own.shape or (1,)
    if -len(sizes) <= axis < len(sizes):
        yield sizes[axis], indices, False


def _has_whole_numbers(indices: Any) -> bool:
    """Whether indices are a tensor with elements of an integer type; a mask and a fake tensor have none."""
    if type(indices) not in (torch.Tensor, torch.nn.Parameter) or not indices.numel():
        return False
    return not (indices.dtype.is_floating_point or indices.dtype.is_complex or indices.dtype is torch.bool)


def _looked_up(name: str, args: tuple, kwargs: Mapping[str, Any]) -> Iterator[tuple[int, Any, bool]]:
    """Size of the axis, indices into it, and whether negative ones count from its end."""
    if name in _ROWS and len(args) > 1:
        yield from _along(args[0], 0, args[1])
    elif name in _BY_AXIS and len(args) > 2:
        yield from _along(*args[:3])
    elif name == "take" and len(args) > 1:
        yield args[0].numel(), args[1], True
    elif name == "one_hot":
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        if classes > 0:
            yield classes, args[0], False
    elif name in ("index", "index_put", "_unsafe_index") and len(args) > 1:
        axis = 0
        for indices in args[1]:
            if axis < args[0].ndim:
                yield args[0].shape[axis], indices, True
            # A mask stands for as many axes as it has.
            axis += indices.ndim if indices is not None and indices.dtype is torch.bool else 1
