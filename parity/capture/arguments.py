"""The arguments of the calls of one run: the tensors and constants that modules receive.

An argument often is a tensor that exists already: the result of another module, an input of the entry, a
parameter of the model, or an argument of an earlier call. Its origin names that tensor, and no run copies or
returns it twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.base.trees import dotted, leaves
from parity.capture.values import is_constant, text_of


@dataclass(frozen=True)
class Argument:
    """One leaf of a call's arguments.

    Attributes:
        name: Path of the leaf, its parameter first, such as `query` or `payloads.timestamps`.
        parameter: Place of the parameter in the signature.
        tensor: Key of the tensor in `Capture.argument`; empty for another leaf.
        origin: Name of the tensor that this argument is: a tap, an input of the entry, a parameter, or an
            earlier argument; empty for a tensor of its own.
        constant: Value of a constant; a short text of another value, if it has one.
        other: Class of a leaf that is neither a tensor nor a constant, else empty.
        is_default: Whether the caller leaves the argument out.
    """

    name: str
    parameter: int
    tensor: str = ""
    origin: str = ""
    constant: bool | int | float | str | None = None
    other: str = ""
    is_default: bool = False


@dataclass(frozen=True)
class Received:
    """The arguments of one call.

    Attributes:
        parent: Path of the module whose code makes the call; empty for the code of the entry.
        finished: Number of taps that exist when the call begins.
        longest_sum_before: Terms of the longest sum of all operations before the call; 0 if not counted.
        arguments: The leaves in the order of the signature.
        source: File and line of the code that makes the call, in the user's files; empty if unknown.
    """

    parent: str
    finished: int
    longest_sum_before: int
    arguments: tuple[Argument, ...]
    source: str = ""


def named_arguments(
    function: Callable[..., Any], args: tuple, kwargs: dict
) -> Iterator[tuple[Argument, Any]]:
    """Yield every leaf of a call, defaults included, as an argument without its value, and the value.

    Args:
        function: The called function, bound to its module.
        args, kwargs: Its arguments.

    Raises:
        TypeError: The function does not take these arguments.
    """
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    passed = set(bound.arguments)
    bound.apply_defaults()
    for place, (name, value) in enumerate(bound.arguments.items()):
        is_extra = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        for path, leaf in leaves(value, () if is_extra else (name,)):
            yield Argument(dotted(path), place, is_default=name not in passed), leaf


def with_value(argument: Argument, leaf: Any) -> Argument:
    """The argument of a leaf that is no tensor."""
    if isinstance(leaf, np.generic):
        leaf = leaf.item()
    if is_constant(leaf):
        return replace(argument, constant=leaf)
    return replace(argument, constant=text_of(leaf), other=type(leaf).__name__)
