"""Which module every line of the port runs for, found by watching a clean run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from parity.studies.fault_injection.source import port_files

Line = tuple[str, int]
"""A file of the port, without its suffix, and the number of a line in it."""


class Watch:
    """Lines that ran, and for each the innermost modules that it ran for; "" for the model itself."""

    def __init__(self) -> None:
        self.homes: defaultdict[Line, set[str]] = defaultdict(set)
        self._files = {module.__file__: name for name, module in port_files().items()}
        self._paths: Mapping[int, str] = {}

    @contextlib.contextmanager
    def on(self, modules: Mapping[str, Any]) -> Iterator[None]:
        """Watch while the body traces the model whose modules these are, by path."""
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
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        home = self._home(frame)

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self.homes[file, frame.f_lineno].add(home)
            return line

        return line

    def _home(self, frame: FrameType | None) -> str:
        """The nearest module one of whose methods is running."""
        while frame is not None:
            path = self._paths.get(id(frame.f_locals.get("self")))
            if path is not None:
                return path
            frame = frame.f_back
        return ""

    def of(self, file: str, lines: tuple[int, int]) -> set[str]:
        """Homes of a range of lines; empty where none of them ran."""
        first, last = lines
        return set().union(*(self.homes.get((file, line), set()) for line in range(first, last + 1)))
