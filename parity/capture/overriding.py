"""Modules whose classes override `__call__`: frameworks' hooks do not see their calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def calling(module: Any, function: Callable[..., Any]) -> Iterator[None]:
    """In the body, calls of a module go to a function. The module's class is then a subclass of its own.

    Python looks `__call__` up in the class: an attribute of the module has no effect.
    """
    cls = type(module)
    names = {"__call__": lambda _, *args, **kwargs: function(*args, **kwargs)}
    names |= {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    module.__class__ = type(cls.__name__, (cls,), names)
    try:
        yield
    finally:
        module.__class__ = cls
