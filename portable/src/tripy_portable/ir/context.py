"""Contexts and locations. Entered locations lie on a stack of their thread, as in MLIR's bindings."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tripy_portable.ir.attributes import StringAttr


class _Stack(threading.local):
    def __init__(self) -> None:
        self.locations: list[Location] = []


_ENTERED = _Stack()


class Context:
    """Owner of an IR. There is no state to own here, so it only marks the scope."""

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def enable_multithreading(self, enable: bool) -> None:
        """Accepted for compatibility: building IR is single-threaded here."""


class Location:
    """Where an operation came from, spelled as MLIR prints it: `loc("...")`, `loc(fused<"...">[...])`."""

    __slots__ = ("_children", "_kind", "_metadata", "_name")

    def __init__(self, kind: str, name: str = "", children: Sequence[Location] = (), metadata: str = ""):
        self._kind = kind
        self._name = name
        self._children = children
        self._metadata = metadata

    @staticmethod
    def unknown(context: Context | None = None) -> Location:
        return _UNKNOWN

    @staticmethod
    def name(name: str, childLoc: Location | None = None, context: Context | None = None) -> Location:
        return Location("name", name=name)

    @staticmethod
    def fused(
        locations: Sequence[Location], metadata: StringAttr | None = None, context: Context | None = None
    ) -> Location:
        return Location("fused", children=locations, metadata=metadata.value if metadata is not None else "")

    def _body(self) -> str:
        if self._kind == "name":
            return _quoted(self._name)
        if self._kind == "fused":
            children = ", ".join(child._body() for child in self._children)
            return f"fused<{_quoted(self._metadata)}>[{children}]"
        return "unknown"

    @property
    def label(self) -> str:
        """The innermost name: for nvtripy, `inputs;;<out>;;outputs`."""
        if self._kind == "fused":
            return self._children[0].label if self._children else ""
        return self._name

    @property
    def origin(self) -> str:
        """The user's line, which nvtripy writes into a fused location's metadata; empty if there is none."""
        match = _STACK_FRAME.search(self._metadata)
        return match.group(1) if match else ""

    def __str__(self) -> str:
        return f"loc({self._body()})"

    def __enter__(self) -> Location:
        _ENTERED.locations.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ENTERED.locations.pop()


def _quoted(text: str) -> str:
    """A string literal as MLIR prints it: quotes and backslashes in hexadecimal, newlines too."""
    if '"' in text or "\\" in text or "\n" in text:
        text = text.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
    return f'"{text}"'


# In a location of nvtripy, an arrow precedes each stack frame, the user's own first.
_STACK_FRAME = re.compile(r"--> (\S+:\d+ in \S+)")

_UNKNOWN = Location("unknown")


def current_location() -> Location:
    """The innermost entered location, or the unknown one."""
    return _ENTERED.locations[-1] if _ENTERED.locations else _UNKNOWN
