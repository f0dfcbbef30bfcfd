"""Bounds and comparisons of the reference that inputs should meet from both sides.

A port that leaves out a clamp has no place for it, and nothing to ask. The reference has. Where no input is
beyond a bound of the reference, a port without it gives the same numbers.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from parity.base.dispatch import EachOperation
from parity.capture.terms.call import Call
from parity.case.users_code import users_frame
from parity.coverage.questions import OF_NUMBERS, OUTCOMES, Coverage, Kind, Question

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_JOINTS = dict.fromkeys(("relu", "abs", "elu", "celu", "leaky_relu", "_prelu_kernel"), (0,)) | dict.fromkeys(
    ("hardswish", "hardsigmoid"), (-3, 3)
)
"""Where functions of several pieces go from one to the next: on one side alone, another function is equal."""


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
            self._answer(text, OF_NUMBERS, value < bound, value > bound)
        result = func(*args, **kwargs)
        if name in _COMPARISONS and isinstance(result, torch.Tensor) and result.dtype is torch.bool:
            self._answer(name, OUTCOMES, ~result, result)
        return result

    def _answer(self, operation: str, answers: tuple[str, ...], *elements: torch.Tensor) -> None:
        """Add a question on an operation; an answer is seen where one of its `elements` is true."""
        frame = users_frame()
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
        met = zip(answers, elements, strict=True)
        self.coverage.add(question, [answer for answer, is_met in met if is_met.any()])

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
    elif name in _JOINTS and not args[0].is_complex():
        shown = name.removeprefix("_").removesuffix("_kernel")
        for bound in _JOINTS[name]:
            yield args[0], bound, f"{shown}({bound})" if bound else shown
    elif name in ("clamp", "clamp_min", "clamp_max", "hardtanh", "threshold"):
        call = Call(func, args, kwargs, ())
        for bound in ("min", "max", "min_val", "max_val", "threshold"):
            if call.get(bound) is not None:
                yield args[0], call[bound], f"{name}({bound})"


def _name_of(frame: FrameType) -> str:
    """The function of a frame, with its class where it is a method."""
    # Python 3.10 has no qualified name in a code object.
    name, owner = frame.f_code.co_name, type(frame.f_locals.get("self"))
    methods = (kind for kind in owner.__mro__ if name in vars(kind) and "self" in frame.f_locals)
    of = next((f"{kind.__qualname__.replace('<locals>.', '')}." for kind in methods), "")
    return f"{of}{name}"
