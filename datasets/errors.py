"""The error of the readers: data that cannot be used."""

from __future__ import annotations

import reprlib


class DataError(ValueError):
    """Data, or an option of a reader, that cannot be used.

    ``str(error)`` is one message: ``field: value problem; fix``.

    Attributes:
        field: the name of the option or of the column.
        value: the value of the field.
        problem: the reason why the value cannot be used.
        fix: the action that repairs it.
    """

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        self.field, self.value, self.problem, self.fix = field, value, problem, fix
        shown = value if isinstance(value, str) else reprlib.repr(value)
        super().__init__(f"{field}: {shown} {problem}; {fix}")
