"""Patterns of dotted names: `*` stands for any text without a dot, `**` for any text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_STARS = re.compile(r"\*\*|\*")


def matched(pattern: str, name: str) -> tuple[str, ...] | None:
    """The texts that the stars of a pattern stand for in a name; None if it does not match."""
    match = re.fullmatch(_expression(pattern), name)
    return None if match is None else match.groups()


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the patterns matches a name."""
    return any(matched(pattern, name) is not None for pattern in patterns)


def filled(pattern: str, texts: Iterable[str]) -> str:
    """A pattern with the texts in the places of its stars, in order."""
    remaining = iter(texts)
    return _STARS.sub(lambda star: next(remaining, star.group()), pattern)


def stars(pattern: str) -> int:
    """Number of stars of a pattern."""
    return len(_STARS.findall(pattern))


def pattern_of(name: str) -> str:
    """The pattern of a dotted name with a star for each number."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def in_groups(names: Iterable[str]) -> str:
    """Names of tensors in a line; names that differ in numbers alone are one pattern with their count."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(pattern_of(name), []).append(name)
    return ", ".join(
        f"{pattern} ({len(group)} tensors)" if len(group) > 1 else group[0]
        for pattern, group in groups.items()
    )


def renamed(rules: Mapping[str, str], path: str) -> str:
    """A dotted path under rules from patterns to patterns.

    A rule holds for the path that it matches, and for all paths inside it. The rule that matches most of
    the path decides.
    """
    parts = path.split(".") if path else []
    for length in range(len(parts), 0, -1):
        head, rest = ".".join(parts[:length]), parts[length:]
        for pattern, target in rules.items():
            texts = matched(pattern, head)
            if texts is not None:
                return ".".join([part for part in (filled(target, texts),) if part] + rest)
    return path


def _expression(pattern: str) -> str:
    parts, place = [], 0
    for star in _STARS.finditer(pattern):
        parts += [re.escape(pattern[place : star.start()]), "(.*)" if star.group() == "**" else r"([^.]*)"]
        place = star.end()
    return "".join([*parts, re.escape(pattern[place:])])
