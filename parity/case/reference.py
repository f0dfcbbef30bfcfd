"""A case as plain data, for reports, saved runs and other processes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from parity.base.errors import UserError


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

    def __init__(self, *unnamed: object, **fields: Any) -> None:
        if unnamed:
            fix = "name it, as in target='package.module:attribute'"
            raise UserError("CaseReference", unnamed[0], "has no name", fix)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise self._bad_field(error, fields) from None

    @classmethod
    def _bad_field(cls, error: ValidationError, fields: dict[str, Any]) -> UserError:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if name not in cls.model_fields:
            fix = "give " + ", ".join(cls.model_fields)
            return UserError(f"CaseReference.{name}", fields[name], "is no field", fix)
        fix = _WANTED.get(name, "give a text")
        if name not in fields:
            return UserError(f"CaseReference.{name}", "", "is missing", fix)
        return UserError(f"CaseReference.{name}", repr(fields[name]), "is of another type", fix)


_WANTED = {
    "target": "give an import path, such as target='package.module:attribute'",
    "values": "give a dictionary of arguments by name",
    "seed": "give a whole number, or None for the case's own",
    "batch_size": "give a whole number, or None for the case's own",
}
