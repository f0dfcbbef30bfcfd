"""Construction-time checks shared by the port's modules, equal to the reference's."""

from __future__ import annotations

from collections.abc import Collection


def require(condition: bool, field: str, value: object, fix: str) -> None:
    """Raise ``ValueError("field=value: fix")`` unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{field}={value!r}: {fix}")


def require_positive(**fields: int) -> None:
    """Raise ``ValueError`` naming the first field that is not an integer of at least 1."""
    for field, value in fields.items():
        is_positive_int = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(is_positive_int, field, value, "must be an integer of at least 1")


def require_choice(field: str, value: str, choices: Collection[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    require(value in choices, field, value, f"choose one of {', '.join(repr(c) for c in choices)}")


def require_rate(**fields: float) -> None:
    """Raise ``ValueError`` naming the first dropout rate outside [0, 1)."""
    for field, value in fields.items():
        require(0.0 <= value < 1.0, field, value, "a dropout rate lies in [0, 1)")
