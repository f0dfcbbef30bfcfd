"""Changes of one operation that read right numbers at wrong places, or with the other sign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import torch

from parity.verdict.causes.operations import Change, Operation, changed

_WITH_SLOPE = {"leaky_relu": "negative_slope", "_prelu_kernel": "weight"}
"""Activations with slopes, by the name of these arguments."""
_RUNNING: dict[str, tuple[str, float]] = {"cumsum": ("sum", 0.0), "cumprod": ("product", 1.0)}
"""Running operations, with their words and their value of no element."""
_LOOKUPS = {
    "embedding": ("weight", "indices"),
    "index_select": ("self", "index"),
    "gather": ("self", "index"),
}
"""Operations that look up rows of a table by one tensor of indices."""
_GATES = "unsafe_split"
"""The operation that splits the gates of PyTorch's recurrent modules."""
SPLITS = frozenset({"split", "split_with_sizes", "unbind", "chunk", _GATES})
"""Operations that return parts of a tensor."""
_MOST_PARTS = 4
"""Largest number of parts whose orders are tried."""


def signs_and_places_of(operation: Operation) -> Iterator[Change]:
    """All signs, places and orders of an operation that are tried."""
    for kind in (_signs, _running, _slices, _lookups, _parts):
        yield from kind(operation)


def _signs(operation: Operation) -> Iterator[Change]:
    """A slope, a factor or a divisor with the other sign."""
    name = _WITH_SLOPE.get(operation.name, "other" if operation.name in ("mul", "div") else "")
    value = operation.named().get(name)
    # A factor with axes has signs of its own.
    is_weight = name == "weight"
    if isinstance(value, torch.Tensor) and (is_weight or not value.ndim):
        words = "the slopes" if is_weight else f"{value.item():.6g}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value:
        words = f"{value:.6g}"
    else:
        return
    yield changed(f"with the other sign of {words} in {operation.words}", {name: -value})


def _running(operation: Operation) -> Iterator[Change]:
    """A running sum or product up to the element before, in place of up to the element itself."""
    if operation.name not in _RUNNING:
        return
    words, none = _RUNNING[operation.name]

    def exclusive(own: Operation) -> torch.Tensor:
        result, dim = own.run(), own.named()["dim"]
        if not result.ndim:
            return torch.full_like(result, none)
        before = result.roll(1, dim)
        before.select(dim, 0).fill_(none)
        return before

    yield Change(f"with an exclusive running {words} in place of an inclusive one", exclusive)


def _slices(operation: Operation) -> Iterator[Change]:
    """As many elements, one place before or behind."""
    named = operation.named()
    if operation.name != "slice" or named["step"] != 1:
        return
    dim, size = named["dim"], named["self"].shape[named["dim"]]
    start, end, _ = slice(named["start"], named["end"]).indices(size)
    for step in (1, -1):
        if start < end and start + step >= 0 and end + step <= size:
            text = f"with elements {start + step}:{end + step} in place of {start}:{end} of axis {dim}"
            yield changed(text, {"start": start + step, "end": end + step})


def _lookups(operation: Operation) -> Iterator[Change]:
    """A lookup left out: the first row, the rows in their order, or the mean of all, in place of its rows."""
    named = operation.named()
    for axis, table, index, replaced in _tables(operation):
        rows = f"the rows that {operation.words} looks up"
        size = named[table].shape[axis]
        if index.numel() == 0 or size < 2:
            continue
        yield changed(f"with row 0 in place of {rows}", replaced(torch.zeros_like(index)))
        along = axis if operation.name == "gather" else -1
        if index.ndim and index.shape[along] <= size:
            order = torch.arange(index.shape[along], device=index.device, dtype=index.dtype)
            shape = [1] * index.ndim
            shape[along] = -1
            in_order = order.reshape(shape).expand(index.shape)
            if not torch.equal(in_order, index):
                yield changed(f"with rows in their order in place of {rows}", replaced(in_order))
        if named[table].dtype.is_floating_point:
            mean = named[table].mean(axis, keepdim=True).expand(named[table].shape)
            yield changed(f"with the mean of all rows in place of {rows}", {table: mean})


def _tables(
    operation: Operation,
) -> Iterator[tuple[int, str, torch.Tensor, Callable[[torch.Tensor], dict[str, Any]]]]:
    """The axis of a table, its name, the tensor of indices, and the arguments with other indices."""
    named = operation.named()
    if operation.name in _LOOKUPS:
        table, name = _LOOKUPS[operation.name]
        axis = named.get("dim", 0) % max(1, named[table].ndim)
        yield axis, table, named[name], lambda index: {name: index}
    elif operation.name == "index":
        for axis, index in enumerate(named["indices"]):
            if index is not None and not index.dtype.is_floating_point and index.dtype is not torch.bool:
                own = list(named["indices"])

                def replaced(other: torch.Tensor, axis: int = axis, own: list = own) -> dict[str, Any]:
                    return {"indices": [*own[:axis], other, *own[axis + 1 :]]}

                yield axis, "self", index, replaced


def _parts(operation: Operation) -> Iterator[Change]:
    """Parts in another order, such as that of gates. Of two parts in each other's place, see `_order`."""
    if operation.name not in SPLITS:
        return
    parts = operation.run()
    if not 2 < len(parts) <= _MOST_PARTS or len({part.shape for part in parts}) > 1:
        return
    own = tuple(range(len(parts)))
    for order in permutations(own):
        moved = sum(place != part for place, part in enumerate(order))
        # Three parts that change places in turn. Two that do have other words, unless gates share a change.
        if moved == 3 or (moved == 2 and operation.name == _GATES):
            words = f"parts in the order {', '.join(map(str, order))}"
            yield Change(
                f"with {words} in {operation.words}",
                lambda o, order=order: tuple(o.run()[place] for place in order),
                f"splits of gates with {words}" if operation.name == _GATES else "",
                takes_few=False,
            )
