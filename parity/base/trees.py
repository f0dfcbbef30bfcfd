"""Nested arguments and results: dictionaries, lists and tuples with leaves of any type.

Order is that of the containers themselves, since names of tensors follow it. This is why optree is not used:
it sorts the keys of dictionaries unless a setting of the whole process changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

TreePath = tuple[Any, ...]
"""Keys and indices on the way to a leaf, the outermost first."""


def map_tree(value: Any, convert: Callable[[Any], Any]) -> Any:
    """The same tree with `convert` of every leaf."""
    if isinstance(value, dict):
        return {key: map_tree(item, convert) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tree(item, convert) for item in value)
    return convert(value)


def leaves(value: Any, path: TreePath = ()) -> Iterator[tuple[TreePath, Any]]:
    """Yield `(path, leaf)` for every leaf. A value that is no container is a leaf with an empty path."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        yield path, value
        return
    for key, item in items:
        yield from leaves(item, (*path, key))


def dotted(path: TreePath) -> str:
    """A path in one string, such as `past_payloads.timestamps` or `lS_i.3`."""
    return ".".join(map(str, path))
