"""Errors that a runner raises, in words."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from pathlib import Path

from parity.base.code import is_library, shown
from parity.base.first_lines import STYLE, first_line
from parity.runners.base import FailsWithSizes

_NVTRIPYS_PLACE = re.compile(r"--> (.+):(\d+) in (\w+)")
_OURS = ("parity", "tripy_portable", "mlir_tensorrt", "tensorrt")
"""The suite's own packages, which may run from a checkout."""


def error_text(error: BaseException) -> str:
    """An error in one line: its type, its first line, and the user's code that raised it, if any did."""
    if isinstance(error, FailsWithSizes):
        return f"{error_text(error.error)}{_with_sizes(error)}"
    place = _place(error)
    return f"{type(error).__name__}: {first_line(error)}" + (f" ({place})" if place else "")


def _with_sizes(error: FailsWithSizes) -> str:
    """The line of the port, its module and the sizes that fail, with the fix; empty without a place."""
    places = _users_places(error.error)
    if not places:
        return ""
    path, number, _ = places[0]
    owners = (error.owners(path, number) for path, number, _ in places)
    owner = next(filter(None, owners), "")
    text = f": {linecache.getline(str(path), number).strip()}" + (f", in {owner}" if owner else "")
    if error.sizes:
        fix = "a size that varies is a constant there: take it from a tensor's shape"
        text = f"{text}, with {error.sizes}; {fix}"
    return text


def _place(error: BaseException) -> str:
    """File, line and function of the innermost call in the user's code; empty without one."""
    return next((f"{shown(path)}:{line} in {name}" for path, line, name in _users_places(error)), "")


def _users_places(error: BaseException) -> list[tuple[Path, int, str]]:
    """File, line and function of the calls in the user's code, the innermost one first.

    nvtripy compiles after the user's function has returned, and its message has the operation's calls, the
    innermost one first.
    """
    told = [match.groups() for match in _NVTRIPYS_PLACE.finditer(STYLE.sub("", str(error)))]
    raised = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    places = [(Path(path), int(line or 0), name) for path, line, name in [*told, *reversed(raised)]]
    return [place for place in places if _is_users(place[0])]


def _is_users(path: Path) -> bool:
    ours = [folder for name in _OURS for folder in getattr(sys.modules.get(name), "__path__", ())]
    return path.is_file() and not is_library(str(path)) and not any(map(path.is_relative_to, ours))
