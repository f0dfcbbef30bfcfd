"""Shared by the schemas of all families: strictness, common types, errors of several problems."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_WHOLE = 2**63 - 1
"""Largest whole number in a file: an int64, as in every array of indices."""
Count = Annotated[int, Field(ge=1, le=MAX_WHOLE)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Strict(BaseModel):
    """A frozen model with strict types: text is no number, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def raise_problems(problems: list[str]) -> None:
    """Raise one ``ValueError`` for all problems, a line each: ``field: value problem; fix``."""
    if problems:
        raise ValueError("\n".join(problems))
