"""Errors of the readers as errors of the harness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from datasets.errors import DataError
from parity.base.errors import UserError


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turns a `DataError` in the block into a `UserError` with the same fields and message."""
    try:
        yield
    except DataError as error:
        raise UserError(error.field, error.value, error.problem, error.fix) from error
