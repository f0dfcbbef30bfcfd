"""The error that a person can repair: it becomes one message and exit code 2."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input to the suite.

    ``str(error)`` is one message, ``field: value problem; fix``. It has several lines if one cause has
    several problems.

    Attributes:
        field: Name of the bad input: an option, a file, an array with the index of the first bad element.
        value: Its value.
        fix: The remedy.
    """

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix
        shown = value if isinstance(value, str) else reprlib.repr(value)
        super().__init__(f"{field}: {shown} {problem}; {fix}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str, object, str, str]]:
        # Errors travel between processes. The default passes on the message alone.
        return type(self), (self.field, self.value, self.problem, self.fix)


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Names without duplicates, in the same order. Raises `UserError` for an unknown one."""
    known = tuple(known)
    unique = tuple(dict.fromkeys(names))
    for name in unique:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? known: " if near else "use "
            raise UserError(kind, name, "is not known", hint + ", ".join(known))
    return unique
