"""Options of models: their choices, and the choice of a case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option of a model or of its input.

    Attributes:
        value: The choice that a case takes.
        choices: All choices.
    """

    value: str
    choices: tuple[str, ...]
