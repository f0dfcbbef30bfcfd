"""The line of an error's message that tells the mistake."""

from __future__ import annotations

import re

_OF_THE_COMPILER = re.compile(r"\(%\w+\) error: (.*)")
_OF_THE_SOURCE = re.compile(r"-->|\d*\s*\|")
_LOCATION = re.compile(r'loc\(.*?"\]\): ')
"""The operation's place in MLIR, with a stack of calls in one line."""
STYLE = re.compile(r"\x1b\[[\d;]*m")
"""Colours of a terminal."""
NVTRIPYS_ERROR = "TripyException"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of nvtripy's without the source.

    nvtripy's first line names a function, and the next one says what it expects. The compiler's sentence says
    both.
    """
    text = STYLE.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((match[1] for line in lines if (match := _OF_THE_COMPILER.match(line))), "")
    plain = [line for line in lines if not _OF_THE_SOURCE.match(line)]
    if told or not plain:
        return told or "no message"
    first, *others = plain
    details = (line for line in others if not line.endswith(":"))
    detail = next(details, "") if type(error).__name__ == NVTRIPYS_ERROR else ""
    return _LOCATION.sub("", f"{first} {detail}").rstrip()
