"""A case as plain data, for reports, saved runs and other processes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class CaseReference(BaseModel):
    """Import path and arguments of a case; `load_case` makes the case.

    The attribute is a `Case`, or a class or function that makes one of the keyword arguments `values`. A
    function that takes values declares the class of its result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    target: str
    """Import path, `package.module:attribute`; empty for a case of live objects, which cannot be loaded."""
    values: dict[str, Any] = {}
    """Arguments of the attribute: JSON's types only."""
    seed: int | None = None
    """Seed in place of the case's own."""
    batch_size: int | None = None
    """Batch size in place of the case's own."""
    name: str = ""
    """The loaded case's name."""
    description: str = ""
    """The loaded case's description."""
