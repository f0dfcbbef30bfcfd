"""A user's own code: its errors in one message with file and line, and its running calls."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from parity.base.code import is_library, shown
from parity.base.errors import UserError
from parity.base.first_lines import first_line
from parity.base.interruption import raisable
from parity.base.memory import is_lack
from parity.case.model import Case

_ENGINE = str(Path(__file__).parents[1])
_FIX = "correct that code"


@contextlib.contextmanager
def users_code(field: str, value: str, work: str, *others: type[Exception]) -> Iterator[None]:
    """Turn an error in the body into bad input, with the line of the user's code.

    Args:
        field, value: As of `UserError`.
        work: Words for the call, such as `cannot be made`.
        others: Errors that the caller has words for.

    Raises:
        UserError: The body raises, or ends the program: that would end it with an exit code of its own, as if
            all were well. What the machine lacks stays as it is.
    """
    try:
        yield
    except (UserError, *others):
        raise
    except raisable() as error:
        if is_lack(error):
            raise
        raise UserError(field, value, f"{work} ({told(error)})", _FIX) from error


def of_case(case: Case, method: str) -> contextlib.AbstractContextManager[None]:
    """`users_code` of a method of a case."""
    return users_code("case", case.name, f"cannot be used: {method} fails")


def is_users(error: BaseException) -> bool:
    """Whether the user's code raises an error itself, or calls a library that does."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    innermost = next((file for file in reversed(frames) if not _is_librarys(file)), "")
    return bool(innermost) and is_users_file(innermost)


def told(error: BaseException) -> str:
    """An error with the innermost line outside of libraries and the engine, if there is one."""
    if isinstance(error, SyntaxError) and error.filename:
        places = [f"{error.filename}:{error.lineno}"]
    else:
        places = [f"{file}:{line}" for file, line in _lines(error)]
    # One line tells the mistake; the place has to remain.
    text = first_line(error) if str(error).strip() else ""
    return ", ".join([": ".join(filter(None, [type(error).__name__, text])), *places[-1:]])


def line_of(error: BaseException) -> str:
    """File and line of the innermost call in the user's code; empty without one."""
    file, line = next(iter(_lines(error)[::-1]), ("", 0))
    return f"{shown(Path(file))}:{line}" if file else ""


def _lines(error: BaseException) -> list[tuple[str, int]]:
    """The user's files and lines that an error went through, the innermost one last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0) for frame in frames if is_users_file(frame.filename)]


def is_users_file(file: str) -> bool:
    """Whether a file is neither the engine's nor a library's."""
    return not file.startswith(_ENGINE) and not _is_librarys(file)


def users_frame() -> FrameType | None:
    """The innermost running call in the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_librarys(file: str) -> bool:
    if file.startswith(_ENGINE):
        # The installed engine lies among the libraries.
        return False
    return file.startswith("<") or is_library(file)
