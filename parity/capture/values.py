"""Values that modules receive and that are no tensors, as JSON has them.

A value without an exact form there, such as a function or an object of the user's, is `Opaque`. A module that
receives one cannot run alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from parity.base.trees import Leaf, decode_tree, encode_tree, known_class

_CONSTANTS = (bool, int, float, str, type(None))
"""Types of constants."""
_VALUE = "value"
"""Key of a value that is no constant: its kind and its parts."""
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
"""Types of PyTorch whose values are attributes of its module."""


@dataclass(frozen=True)
class Opaque(Leaf):
    """Stands for a value that cannot be stored, or whose class this program does not have.

    Attributes:
        kind: Name of its class.
    """

    kind: str


@dataclass(frozen=True)
class Absent(Opaque):
    """Stands for a member of an `Enum` that this program does not have. It is stored again as it was.

    Attributes:
        module: Module of the class.
        name: Name of the member.
    """

    module: str
    name: str


class _NoForm(Exception):
    """A value has no form in JSON."""


def is_constant(leaf: Any) -> bool:
    """Whether a leaf is a number, a boolean, a text or None."""
    return isinstance(leaf, _CONSTANTS) and not isinstance(leaf, (enum.Enum, np.generic))


def storable(leaf: Any) -> Any:
    """The leaf if it has a form in JSON, else an `Opaque` in its place."""
    try:
        encode_value(leaf)
    except _NoForm:
        return Opaque(type(leaf).__name__)
    return leaf


def encode_value(leaf: Any) -> Any:
    """The JSON of a leaf that `storable` returns."""
    if isinstance(leaf, Absent):
        return _tagged("enum", leaf.module, leaf.kind, leaf.name)
    if isinstance(leaf, Opaque):
        return _tagged("opaque", leaf.kind)
    if isinstance(leaf, enum.Enum):
        return _member(leaf)
    if isinstance(leaf, np.generic) and leaf.dtype.kind in "biuf":
        return _tagged("number", leaf.dtype.str, leaf.tobytes().hex())
    if is_constant(leaf):
        return leaf
    for kind, encode in _ENCODERS.items():
        if isinstance(leaf, kind):
            return encode(leaf)
    raise _NoForm


def decode_value(value: Any) -> Any:
    """The leaf of some JSON; `NotImplemented` for JSON of no leaf.

    A member of a class that this program does not have is `Absent`. Nothing is imported.

    Raises:
        ValueError, TypeError, KeyError: The JSON is damaged.
    """
    if isinstance(value, dict):
        if set(value) != {_VALUE}:
            return NotImplemented
        kind, *parts = value[_VALUE]
        return _DECODERS[kind](*parts)
    return NotImplemented if isinstance(value, list) else value


def text_of(leaf: Any) -> str | None:
    """A short text of a leaf that is neither tensor nor constant; None without one.

    A value of PyTorch and its counterpart in Tripy, such as a type, have one text.
    """
    if isinstance(leaf, enum.Enum):
        return leaf.name
    if isinstance(leaf, (slice, range, complex, bytes)):
        return repr(leaf)
    if isinstance(leaf, torch.dtype):
        return str(leaf).removeprefix("torch.")
    name = getattr(leaf, "name", None)
    # Tripy's types are classes.
    return (
        name if isinstance(leaf, type) and type(leaf).__name__ == "dtype" and isinstance(name, str) else None
    )


def _tagged(*parts: Any) -> dict[str, list[Any]]:
    return {_VALUE: list(parts)}


def _member(leaf: enum.Enum) -> Any:
    kind = type(leaf)
    # A class of a function has no name that finds it, and a flag of several members has none of its own.
    if leaf.name is None or _find(kind.__module__, kind.__qualname__, leaf.name) is not leaf:
        raise _NoForm
    return _tagged("enum", kind.__module__, kind.__qualname__, leaf.name)


def _find(module: str, kind: str, name: str) -> Any:
    """A member of an `Enum` by names; None if this program has none."""
    found = known_class(module, kind)
    return found.__members__.get(name) if found is not None and issubclass(found, enum.Enum) else None


def _decode_member(module: str, kind: str, name: str) -> Any:
    member = _find(module, kind, name)
    return Absent(kind, module, name) if member is None else member


def _of_torch(leaf: Any) -> Any:
    return _tagged("torch", str(leaf).removeprefix("torch."))


def _decode_of_torch(name: str) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, _OF_TORCH):
        raise ValueError(f"PyTorch has no {name}")
    return value


def _in_parts(kind: str, parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Encodes a value by the JSON of its parts."""
    return lambda leaf: _tagged(kind, *(encode_tree(part, encode_value) for part in parts(leaf)))


def _of_parts(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *parts: make(*(decode_tree(part, decode_value) for part in parts))


_ENCODERS: dict[Any, Callable[[Any], Any]] = {
    _OF_TORCH: _of_torch,
    torch.device: lambda leaf: _tagged("device", str(leaf)),
    np.dtype: lambda leaf: _tagged("dtype", leaf.str),
    slice: _in_parts("slice", lambda leaf: (leaf.start, leaf.stop, leaf.step)),
    range: _in_parts("range", lambda leaf: (leaf.start, leaf.stop, leaf.step)),
    complex: _in_parts("complex", lambda leaf: (leaf.real, leaf.imag)),
    # Sorted, so that equal sets have one form.
    set: _in_parts("set", lambda leaf: sorted(leaf, key=repr)),
    frozenset: _in_parts("frozenset", lambda leaf: sorted(leaf, key=repr)),
    bytes: lambda leaf: _tagged("bytes", leaf.hex()),
    type(...): lambda leaf: _tagged("ellipsis"),
}
"""The encoder of each type, or tuple of types, whose values have a form."""
_DECODERS: dict[str, Callable[..., Any]] = {
    "opaque": Opaque,
    "enum": _decode_member,
    "number": lambda dtype, digits: np.frombuffer(bytes.fromhex(digits), dtype)[0],
    "torch": _decode_of_torch,
    "device": torch.device,
    "dtype": np.dtype,
    "slice": _of_parts(slice),
    "range": _of_parts(range),
    "complex": _of_parts(complex),
    "set": _of_parts(lambda *members: set(members)),
    "frozenset": _of_parts(lambda *members: frozenset(members)),
    "bytes": bytes.fromhex,
    "ellipsis": lambda: ...,
}
"""The decoder of each kind."""
