"""Bounds and comparisons of the reference that inputs should meet from both sides.

A port that leaves out a clamp has no place for it, and nothing to ask. The reference has. Where no input is
beyond a bound of the reference, a port without it gives the same numbers.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from parity.base.dispatch import EachOperation
from parity.case.users_code import is_users_file
from parity.coverage.questions import Coverage, Kind, Question

SIDES = ("below", "above")
OUTCOMES = ("false", "true")
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


class Bounds(EachOperation):
    """Inside, PyTorch's operations that compare or clamp are questions, with the answers of their elements.

    Attributes:
        coverage: The questions and answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coverage = Coverage()
        self._places: dict[tuple[CodeType, int, str], list[int]] = {}

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        # Before the operation, which may overwrite its arguments.
        for value, bound, text in _bounds(name, func, args, kwargs):
            sides = ((value < bound).any(), (value > bound).any())
            self._answer(text, SIDES, [side for side, is_met in zip(SIDES, sides, strict=True) if is_met])
        result = func(*args, **kwargs)
        if name in _COMPARISONS and isinstance(result, torch.Tensor) and result.dtype is torch.bool:
            outcomes = ((~result).any(), result.any())
            seen = [outcome for outcome, is_met in zip(OUTCOMES, outcomes, strict=True) if is_met]
            self._answer(name, OUTCOMES, seen)
        return result

    def _answer(self, operation: str, answers: tuple[str, ...], seen: list[str]) -> None:
        frame = _users_frame()
        if frame is None:
            return
        code, line = frame.f_code, frame.f_lineno
        text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
        question = Question(
            kind=Kind.BOUND,
            module=frame.f_globals.get("__name__", ""),
            place=_name_of(frame),
            line=line,
            text=f"{self._numbered(frame, operation)} in {text}",
            answers=answers,
        )
        self.coverage.add(question, seen)

    def _numbered(self, frame: FrameType, operation: str) -> str:
        """The operation; of several on a line, those behind the first with a number."""
        places = self._places.setdefault((frame.f_code, frame.f_lineno, operation), [])
        if frame.f_lasti not in places:
            places.append(frame.f_lasti)
        number = places.index(frame.f_lasti) + 1
        return operation if number == 1 else f"{operation} {number}"


def _bounds(name: str, func: Any, args: tuple, kwargs: dict) -> Iterator[tuple[torch.Tensor, Any, str]]:
    """The values that an operation clamps, with each bound and its words."""
    if name in ("maximum", "minimum"):
        yield args[0], args[1], name
    elif name == "relu":
        yield args[0], 0, name
    elif name in ("clamp", "clamp_min", "clamp_max", "hardtanh", "threshold"):
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        # Bounds that the call leaves out, as `relu6` does, have a value in the schema.
        for argument in func._schema.arguments[1:]:
            bound = given.get(argument.name, argument.default_value)
            if bound is not None and argument.name in ("min", "max", "min_val", "max_val", "threshold"):
                yield args[0], bound, f"{name}({argument.name})"


def _users_frame() -> FrameType | None:
    """The innermost call in the user's code, which runs the operation."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _name_of(frame: FrameType) -> str:
    """The function of a frame, with its class where it is a method."""
    # Python 3.10 has no qualified name in a code object.
    name, owner = frame.f_code.co_name, type(frame.f_locals.get("self"))
    methods = (kind for kind in owner.__mro__ if name in vars(kind) and "self" in frame.f_locals)
    of = next((f"{kind.__qualname__.replace('<locals>.', '')}." for kind in methods), "")
    return f"{of}{name}"
