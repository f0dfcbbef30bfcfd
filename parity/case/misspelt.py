"""Attributes of a case that are nearly the name of one that the engine reads."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from parity.base.errors import UserError
from parity.case.model import Case

_ENGINE = "parity."
_ALIKE = 0.85
"""Least ratio of equal letters: one letter of a short name, two of a long one."""


def require_known_attributes(case: Case) -> None:
    """Refuse a public attribute that resembles one of `Case`, and that no code of the case's module reads.

    Python takes any name: a case with `batchsize` would run with the default of `batch_size`.

    Raises:
        UserError: There is such an attribute.
    """
    own = [
        cls for cls in type(case).__mro__ if issubclass(cls, Case) and not cls.__module__.startswith(_ENGINE)
    ]
    names = {name: None for cls in own for name in vars(cls)} | dict.fromkeys(vars(case))
    declared = {name for cls in Case.__mro__ for name in vars(cls).get("__annotations__", ())}
    known = {name for name in {*dir(Case), *declared} if not name.startswith("_")}
    modules = {id(module): vars(module) for cls in own if (module := sys.modules.get(cls.__module__))}
    spaces = [*map(vars, own), *modules.values()]
    read = {name for space in spaces for member in space.values() for name in _names(member)}
    for name in names:
        if name.startswith("_") or name in known or name in read:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if near:
            fix = f"did you mean {near[0]!r}? Otherwise give it a name that begins with _"
            raise UserError(type(case).__qualname__, name, "is no attribute of a Case", fix)


def _names(member: Any) -> Iterator[str]:
    """Attributes that a function of a class, or of its property, reads or writes."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    if isinstance(member, FunctionType):
        yield from _of_code(member.__code__)


def _of_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
