"""Patterns of modules' paths: one grammar for precisions of modules and for what a configuration quantises.

A pattern is a module's path, in which `*` stands for any text within one name; `*` alone is the whole model,
whose path is empty. A pattern covers the modules that it matches and all modules inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

MODEL = "*"
"""The pattern of the whole model, whose path is empty."""


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a module itself."""
    if pattern == MODEL:
        return path == ""
    names, parts = path.split("."), pattern.split(".")
    return len(names) == len(parts) and all(map(_fits, parts, names))


def _fits(part: str, name: str) -> bool:
    """Whether one name fits: the texts between stars occur in order. A regular expression may take years."""
    first, *middle = part.split("*")
    if not middle:
        return name == part
    *middle, last = middle
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for text in middle:
        at = name.find(text, at, end)
        if at < 0:
            return False
        at += len(text)
    return True


def covers(pattern: str, path: str) -> bool:
    """Whether a pattern matches a module or a module around it."""
    return any(matches(pattern, outer) for outer in outwards(path))


def outwards(path: str) -> Iterable[str]:
    """A path and all outer paths, the empty one last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def innermost(patterns: Mapping[str, Value], path: str) -> Value | None:
    """The value of the innermost pattern that covers a module; of equals the first, None without one."""
    for outer in outwards(path):
        for pattern, value in patterns.items():
            if matches(pattern, outer):
                return value
    return None
