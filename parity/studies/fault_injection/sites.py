"""The module that every line of the port runs for, recorded in a clean run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from parity.coverage.source import path_of

Line = tuple[str, int]
"""A module of the port and the number of a line in it."""


class Watch:
    """Lines that ran, each with the innermost modules of the model that it ran for; "" is the model itself.

    Args:
        sources: Import paths of the port's Python modules.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self.homes: defaultdict[Line, set[str]] = defaultdict(set)
        self._sources = {path_of(name): name for name in sources}
        self._paths: Mapping[int, str] = {}

    @contextlib.contextmanager
    def on(self, modules: Mapping[str, Any]) -> Iterator[None]:
        """Watch while the body traces the model with these modules, by path."""
        self._paths = {id(module): path for path, module in modules.items()}
        before = sys.gettrace()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]  # None ends it

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        source = self._sources.get(frame.f_code.co_filename)
        if source is None:
            return None
        home = self._home(frame)

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self.homes[source, frame.f_lineno].add(home)
            return line

        return line

    def _home(self, frame: FrameType | None) -> str:
        """The nearest module with a running method."""
        while frame is not None:
            path = self._paths.get(id(frame.f_locals.get("self")))
            if path is not None:
                return path
            frame = frame.f_back
        return ""

    def of(self, module: str, lines: tuple[int, int]) -> set[str]:
        """Homes of a range of lines of a Python module; empty where none of them ran."""
        first, last = lines
        return set().union(*(self.homes.get((module, line), set()) for line in range(first, last + 1)))
