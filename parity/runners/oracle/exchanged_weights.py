"""A module with two of its weights, or two of the modules inside it, in each other's place."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

MOST_ALIKE = 8
"""Largest number of weights, and of modules, that are exchanged in pairs."""

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
