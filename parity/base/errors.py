"""The error that a person can repair: it becomes one message and exit code 2."""

from __future__ import annotations

import reprlib


class UserError(ValueError):
    """Something given to the harness cannot be used.

    ``str(error)`` is one clear message, ``field: value problem; fix``. It may span lines where several
    findings belong to one cause.

    Attributes:
        field: What was wrong: an option, a file, an array with the index of the first bad element.
        value: The value that was found there.
        fix: What to do about it.
    """

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix
        shown = value if isinstance(value, str) else reprlib.repr(value)
        super().__init__(f"{field}: {shown} {problem}; {fix}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str, object, str, str]]:
        # Errors travel between the harness's processes; the default would pass on the message alone.
        return type(self), (self.field, self.value, self.problem, self.fix)
