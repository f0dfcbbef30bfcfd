"""The places of a model's code in the user's files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.base.code import is_library, shown
from parity.capture.captures import METHODS
from parity.capture.names import TapName
from parity.case.pairing import overrides_call
from parity.case.users_code import users_frame

_APPENDING = ("extend", *METHODS)
"""Methods that run in appends in place of `forward` and of the entry."""


def sources(modules: Mapping[str, Any], entry: str) -> dict[str, str]:
    """File and line of the function that each module runs, by path; installed libraries are left out.

    A module with another function in appends has that one as well, by the name of its tap there.

    Args:
        modules: The model's modules by path, the model under "".
        entry: Name of the model's entry, which runs in place of `forward`.
    """
    places = {
        path: _place(_function(module, "forward" if path else entry)) for path, module in modules.items()
    }
    appending = {
        str(TapName(path).appending()): _place(getattr(type(module), name))
        for path, module in modules.items()
        for name in _APPENDING
        if hasattr(type(module), name)
    }
    return {path: place for path, place in (places | appending).items() if place}


def _function(module: Any, entry: str) -> Any:
    """The function of a module's class that a call runs, or None."""
    name = "__call__" if entry == "forward" and overrides_call(module) else entry
    return getattr(type(module), name, None)


def calling_line() -> str:
    """File and line of the innermost call in the user's code that is running; empty without one."""
    frame = users_frame()
    return "" if frame is None else _shown(frame.f_code.co_filename, frame.f_lineno)


def _place(function: Any) -> str:
    """The file and the line of a function; empty for a library's."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None or is_library(code.co_filename):
        return ""
    return _shown(code.co_filename, code.co_firstlineno)


def _shown(file: str, line: int) -> str:
    """A file, relative to the working folder if it is inside, and a line; empty for code without a file."""
    return f"{shown(Path(file))}:{line}" if Path(file).exists() else ""
