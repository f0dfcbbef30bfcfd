"""Nested arguments and results: dictionaries, lists, tuples and dataclasses with leaves of any type.

Order is that of the containers themselves, since names of tensors follow it. This is why optree is not used:
it sorts the keys of dictionaries unless a setting of the whole process changes.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

TreePath = tuple[Any, ...]
"""Keys and indices on the way to a leaf, the outermost first."""

_CLASS, _KEYS, _PARTS = "class", "keys", "parts"
"""Keys of a container in the JSON of `encode_tree`: its class, its parts, and keys that are no strings."""


class Leaf:
    """Base of dataclasses that are leaves themselves, not containers of their fields."""


def map_tree(value: Any, convert: Callable[[Any], Any]) -> Any:
    """The same tree, of the same classes, with `convert` of every leaf."""
    parts = parts_of(value)
    if isinstance(parts, dict):
        return _with_parts(value, {key: map_tree(item, convert) for key, item in parts.items()})
    if parts is not None:
        return _with_parts(value, [map_tree(item, convert) for item in parts])
    return convert(value)


def leaves(value: Any, path: TreePath = ()) -> Iterator[tuple[TreePath, Any]]:
    """Yield `(path, leaf)` for every leaf. A value that is no container is a leaf with an empty path."""
    parts = parts_of(value)
    if parts is None:
        yield path, value
        return
    for key, item in list(parts.items() if isinstance(parts, dict) else enumerate(parts)):
        yield from leaves(item, (*path, key))


def dotted(path: TreePath) -> str:
    """A path in one string, such as `past_payloads.timestamps` or `lS_i.3`."""
    return ".".join(map(str, path))


def plain_tree(value: Any) -> Any:
    """The tree with dictionaries, lists and tuples in place of containers of other classes."""
    parts = parts_of(value)
    if isinstance(parts, dict):
        return {key: plain_tree(item) for key, item in parts.items()}
    if parts is None:
        return value
    return tuple(map(plain_tree, parts)) if isinstance(parts, tuple) else list(map(plain_tree, parts))


def with_leaves(value: Any, source: Any) -> Any:
    """The containers of `value` with the leaves of `source`, a tree of as many leaves, in their order."""
    in_order = (leaf for _, leaf in leaves(source))
    return map_tree(value, lambda _: next(in_order))


def encode_tree(value: Any, encode: Callable[[Any], Any]) -> Any:
    """The tree as JSON has it, with `encode` of every leaf and key that is no string.

    Containers keep their classes.
    """
    parts = parts_of(value)
    if parts is None:
        return encode(value)
    if type(value) is list:
        return [encode_tree(item, encode) for item in value]
    kind = type(value)
    described = {_CLASS: [kind.__module__, kind.__qualname__, list(getattr(value, "_fields", ()))]}
    if not isinstance(parts, dict):
        return {**described, _PARTS: [encode_tree(item, encode) for item in parts]}
    if all(type(key) is str for key in parts):
        return {**described, _PARTS: {key: encode_tree(item, encode) for key, item in parts.items()}}
    keys = [encode_tree(key, encode) for key in parts]
    return {**described, _KEYS: keys, _PARTS: [encode_tree(item, encode) for item in parts.values()]}


def decode_tree(value: Any, decode: Callable[[Any], Any]) -> Any:
    """The tree that `encode_tree` wrote.

    Args:
        value: Its JSON.
        decode: From a leaf's JSON to the leaf; `NotImplemented` for JSON that is no leaf.

    A class that this program does not have, such as one of a function, is replaced by one with the same
    attributes.

    Raises:
        ValueError: The JSON is none of `encode_tree`.
    """
    leaf = decode(value)
    if leaf is not NotImplemented:
        return leaf
    if isinstance(value, list):
        return [decode_tree(item, decode) for item in value]
    if not (isinstance(value, dict) and {_CLASS, _PARTS} <= set(value) <= {_CLASS, _KEYS, _PARTS}):
        raise ValueError(f"{value!r} is no container")
    parts = value[_PARTS]
    if _KEYS in value:
        keys = (decode_tree(key, decode) for key in value[_KEYS])
        items = (decode_tree(item, decode) for item in parts)
        return _of_class(*value[_CLASS], dict(zip(keys, items, strict=True)))
    if isinstance(parts, dict):
        return _of_class(*value[_CLASS], {key: decode_tree(item, decode) for key, item in parts.items()})
    return _of_class(*value[_CLASS], [decode_tree(item, decode) for item in parts])


def known_class(module: str, name: str) -> Any:
    """The class of this name; None if this program has none. Nothing is imported: a file may be another's."""
    try:
        kind = reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None
    return kind if isinstance(kind, type) else None


class _Record(dict):  # type: ignore[type-arg]
    """A dictionary whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def parts_of(value: Any) -> dict[Any, Any] | list[Any] | tuple[Any, ...] | None:
    """The items of a container by key or in order; None for a leaf."""
    if isinstance(value, enum.Enum):
        return None
    # The class first: Tripy's tensors take long to say that they lack an attribute.
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (dict, list, tuple)):
        return value
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, (type, Leaf))
    return {part.name: getattr(value, part.name) for part in dataclasses.fields(value)} if is_record else None


def _with_parts(value: Any, parts: Any) -> Any:
    """A container like `value` with other items under the same keys."""
    kind = type(value)
    if isinstance(value, (list, tuple)):
        return kind(*parts.values()) if isinstance(parts, dict) else _sequence(kind, parts)
    return parts if kind is dict else _filled(copy.copy(value), parts)


def _filled(container: Any, parts: dict[Any, Any]) -> Any:
    """The container with these items: those of a dictionary, or fields, also frozen ones."""
    for key, item in parts.items():
        if isinstance(container, dict):
            container[key] = item
        else:
            object.__setattr__(container, key, item)
    return container


def _sequence(kind: Any, parts: Any) -> Any:
    """A list or tuple of a class; a plain one where the class refuses these items, as `torch.Size` may."""
    try:
        return kind(parts)
    except TypeError:
        return tuple(parts) if issubclass(kind, tuple) else list(parts)


def _of_class(module: str, name: str, fields: list[str], parts: Any) -> Any:
    """A container of the class of this name, or of one with the same attributes."""
    kind: Any = known_class(module, name)
    if isinstance(parts, list):
        if kind is not None and issubclass(kind, (list, tuple)):
            return _sequence(kind, parts)
        return tuple(parts)
    if fields:
        is_known = (
            kind is not None and issubclass(kind, tuple) and list(getattr(kind, "_fields", ())) == fields
        )
        named: Any = kind if is_known else collections.namedtuple("Fields", fields)  # type: ignore[misc]  # noqa: PYI024
        return named(*parts.values())
    if kind is dict:
        return parts
    if kind is None or not (issubclass(kind, dict) or dataclasses.is_dataclass(kind)):
        kind = _Record
    # Not by the constructor: it may take other arguments, and compute.
    return _filled(kind.__new__(kind), parts)
