"""A module with two of its weights, or two of the modules inside it, in each other's place, or with weights
of another module.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

MOST_ALIKE = 8
"""Largest number of weights, and of modules, that are exchanged in pairs."""

OF_ANOTHER = "of another module"
"""Is in the words for weights of other modules."""
Exchange = Callable[[], AbstractContextManager[None]]
"""Begins and ends an exchange."""


def exchanges(module: torch.nn.Module) -> dict[str, Exchange]:
    """All exchanges that are tried, in words: two of one shape and type, or one in both places."""
    found: dict[str, Exchange] = {}
    for what, table, kind in (
        ("weight", module._parameters, _tensor_kind),
        ("weight", module._buffers, _tensor_kind),
        ("module", module._modules, _module_kind),
    ):
        named = [(name, value) for name, value in table.items() if value is not None][:MOST_ALIKE]
        for (first, one), (second, other) in itertools.combinations(named, 2):
            if not kind(one) or kind(one) != kind(other):
                continue
            for text, new in (
                (f"with the {what}s {first} and {second} exchanged", {first: other, second: one}),
                (f"with the {what} {first} in place of {second}", {second: one}),
                (f"with the {what} {second} in place of {first}", {first: other}),
            ):
                found[text] = functools.partial(_replaced, table, new)
    return found


def taken_from_others(modules: Mapping[str, torch.nn.Module], path: str) -> dict[str, Exchange]:
    """Weights of other modules in place of a module's own, in words: one of the same name, or all of them.

    A map of weights takes a neighbour rather than a distant module: the nearest ones in the model's order are
    tried, and of several at one distance the one in front.

    Args:
        modules: All modules of the model in order, by path.
        path: Path of the module whose weights are replaced.
    """
    own, found = modules[path], dict[str, Exchange]()
    others = {other: modules[other] for other in _nearest(list(modules), path) if modules[other] is not own}
    for kind in ("_parameters", "_buffers"):
        table: dict[str, Any] = getattr(own, kind)
        names = [name for name, value in table.items() if value is not None]
        tables = {other: getattr(module, kind) for other, module in others.items()}
        if len(names) > 1:
            alike = {other: tables[other] for other in others if type(others[other]) is type(own)}
            for other, new in _first_alike(alike, table, names):
                text = f"with the weights {OF_ANOTHER}, {other}, in place of its own"
                found[text] = functools.partial(_replaced, table, new)
        for name in names[:MOST_ALIKE]:
            for other, new in _first_alike(tables, table, [name]):
                weight = f"{other}.{name}".removeprefix(".")
                text = f"with the weight {weight} {OF_ANOTHER} in place of {name}"
                found[text] = functools.partial(_replaced, table, new)
    return found


def _first_alike(
    tables: Mapping[str, Mapping[str, Any]], own: Mapping[str, Any], names: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first tables with other tensors of the same shapes and types by some names, and these tensors."""
    alike = (
        (path, {name: table.get(name) for name in names})
        for path, table in tables.items()
        if all(_is_alike(table.get(name), own[name]) for name in names)
    )
    return itertools.islice(alike, MOST_ALIKE)


def _nearest(paths: list[str], path: str) -> list[str]:
    """The paths by their distance from one of them, in their own order where it is equal."""
    place = paths.index(path)
    return [paths[number] for number in sorted(range(len(paths)), key=lambda number: abs(number - place))]


def _is_alike(weight: torch.Tensor | None, own: torch.Tensor) -> bool:
    return weight is not None and weight is not own and _tensor_kind(weight) == _tensor_kind(own)


def _tensor_kind(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.dtype


def _module_kind(module: torch.nn.Module) -> tuple:
    """The class, and the shapes of the weights; empty without weights, where an exchange changes nothing."""
    shapes = [(name, _tensor_kind(tensor)) for name, tensor in module.state_dict(keep_vars=True).items()]
    return (type(module), tuple(shapes)) if shapes else ()


@contextlib.contextmanager
def _replaced(table: dict[str, Any], new: dict[str, Any]) -> Iterator[None]:
    """Inside, some entries of a module's table have other values."""
    own = {name: table[name] for name in new}
    table.update(new)
    try:
        yield
    finally:
        table.update(own)
