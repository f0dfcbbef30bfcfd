"""Errors that a runner raises, in words."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

from parity.base.code import is_library, shown

_OF_THE_COMPILER = re.compile(r"\(%\w+\) error: (.*)")
_OF_THE_SOURCE = re.compile(r"-->|\d*\s*\|")
_LOCATION = re.compile(r'loc\(.*?"\]\): ')
"""The operation's place in MLIR, with a stack of calls in one line."""
_STYLE = re.compile(r"\x1b\[[\d;]*m")
NVTRIPYS_ERROR = "TripyException"
_NVTRIPYS_PLACE = re.compile(r"--> (.+):(\d+) in (\w+)")
_OURS = ("parity", "tripy_portable", "mlir_tensorrt", "tensorrt")
"""The suite's own packages, which may run from a checkout."""


def error_text(error: BaseException) -> str:
    """An error in one line: its type, its first line, and the user's code that raised it, if any did."""
    place = _place(error)
    return f"{type(error).__name__}: {first_line(error)}" + (f" ({place})" if place else "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of nvtripy's without the source.

    nvtripy's first line names a function, and the next one says what it expects. The compiler's sentence says
    both.
    """
    text = _STYLE.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((match[1] for line in lines if (match := _OF_THE_COMPILER.match(line))), "")
    plain = [line for line in lines if not _OF_THE_SOURCE.match(line)]
    if told or not plain:
        return told or "no message"
    first, *others = plain
    details = (line for line in others if not line.endswith(":"))
    detail = next(details, "") if type(error).__name__ == NVTRIPYS_ERROR else ""
    return _LOCATION.sub("", f"{first} {detail}").rstrip()


def _place(error: BaseException) -> str:
    """File, line and function of the innermost call in the user's code; empty without one.

    nvtripy compiles after the user's function has returned, and its message has the operation's calls, the
    innermost one first.
    """
    told = [match.groups() for match in _NVTRIPYS_PLACE.finditer(_STYLE.sub("", str(error)))]
    raised = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    for path, line, name in [*told, *reversed(raised)]:
        if _is_users(Path(path)):
            return f"{shown(Path(path))}:{line} in {name}"
    return ""


def _is_users(path: Path) -> bool:
    ours = [folder for name in _OURS for folder in getattr(sys.modules.get(name), "__path__", ())]
    return path.is_file() and not is_library(str(path)) and not any(map(path.is_relative_to, ours))
