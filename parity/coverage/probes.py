"""Values that reach the places of a port's source: of Python while it is traced, of tensors when it runs.

A traced tensor has no values yet. Its probe keeps the tensor, which becomes an output of a graph for this
measurement alone. No judged graph has probes. The values of the output are answers as Python's are:

* An outcome is true or false; a tensor may have both.
* The sides of a threshold are those of the difference of the operands. Integer tensors have to be just below
  the threshold (by one), at it, and just above. Other numbers have to be below and above. For a number in
  Python that is compared, "at" takes the place of the side with the same outcome: many sizes cannot be less.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any

import numpy as np
import torch

from parity.capture.tripy_hooks import is_tripy_tensor
from parity.coverage.places import PROBE, Form, Place, with_probes
from parity.coverage.questions import OF_NUMBERS, OUTCOMES, Coverage, Kind, Question
from parity.coverage.source import codes_of, exchanged, functions, source_of

OF_INTEGERS = ("just below", "at", "just above")
_WITH_OUTCOMES = (Form.COMPARISON, Form.CONDITION, Form.SELECTION)
_OF_COMPARED_NUMBERS = {
    "lt": ("below", "at"),
    "ge": ("below", "at"),
    "le": ("at", "above"),
    "gt": ("at", "above"),
}
_PIECE = 1 << 24
"""Elements of a tensor that are looked at together."""
MOST_CALLS = 4
"""Largest number of tensors of one place in one graph. Later calls are of other blocks on the same masks."""


class Probes:
    """The probes of one module, by the name that the source with probes calls them by.

    Args:
        module: Import path of the module.
        places: Its places.
        coverage: Receives the questions and their answers.
    """

    def __init__(self, module: str, places: Sequence[Place], coverage: Coverage) -> None:
        self.tensors: dict[str, Any] = {}
        self._module = module
        self._places = places
        self._coverage = coverage
        self._pending: dict[str, tuple[int, int]] = {}
        self._constants: dict[tuple[int, int], list[Any]] = {}
        self._calls: dict[int, int] = {}

    # Probes, by `Form`

    def compare(self, number: int, left: Any, right: Any) -> Any:
        """The comparison of two operands."""
        self._record(number, left, right)
        return getattr(operator, self._places[number].operator)(left, right)

    def condition(self, number: int, value: Any) -> Any:
        """A condition."""
        if not is_tripy_tensor(value):
            self._answer_outcome(number, [bool(value)])
        return value

    def clamp(self, number: int, function: Callable, left: Any, right: Any) -> Any:
        """The larger or the smaller of two operands."""
        self._record(number, left, right)
        return function(left, right)

    def select(self, number: int, function: Callable, condition: Any, *choices: Any) -> Any:
        """One of two operands by a condition."""
        self._record(number, condition)
        return function(condition, *choices)

    def rectify(self, number: int, function: Callable, value: Any) -> Any:
        """The larger of an operand and 0."""
        self._record(number, value, 0.0)
        return function(value)

    def _record(self, number: int, *operands: Any) -> None:
        if not any(map(is_tripy_tensor, operands)):
            self._answer_python(number, *operands)
            return
        call = self._calls[number] = self._calls.get(number, 0) + 1
        if call > MOST_CALLS:
            return
        self._constants[number, call] = list(operands)
        for position, operand in enumerate(operands):
            if is_tripy_tensor(operand):
                name = f"{self._module}#{number}#{call}#{position}"
                self.tensors[name] = operand

    # Answers

    def answer(self, values: Mapping[str, torch.Tensor]) -> None:
        """Take the values of `tensors`, by their names, from one run of the graph."""
        operands = {key: list(constants) for key, constants in self._constants.items()}
        for name, value in values.items():
            module, number, call, position = name.split("#")
            if module == self._module:
                operands[int(number), int(call)][int(position)] = value.detach().cpu()
        for (number, _), sides in operands.items():
            if not any(map(is_tripy_tensor, sides)):
                self._answer_tensors(number, *sides)

    def _answer_tensors(self, number: int, *operands: Any) -> None:
        place = self._places[number]
        arrays = [_array(operand) for operand in operands]
        if place.form is Form.SELECTION:
            self._answer_outcome(number, _seen(_truths, arrays, 2))
            return
        if place.form is Form.COMPARISON:
            compare = getattr(operator, place.operator)
            self._answer_outcome(number, _seen(lambda *piece: _truths(compare(*piece)), arrays, 2))
        if place.operator in ("eq", "ne") or any(array.dtype == bool for array in arrays):
            return
        integers = all(array.dtype.kind in "iu" for array in arrays)
        # int64 keeps differences of timestamps exact.
        wide = np.int64 if integers else np.float64
        sides = [array.astype(wide) for array in arrays]
        if integers:
            seen = _seen(lambda left, right: _steps(left - right), sides, 3)
            self._answer(number, Kind.THRESHOLD, OF_INTEGERS, [OF_INTEGERS[step + 1] for step in seen])
        else:
            seen = _seen(_orders, sides, 2)
            self._answer(number, Kind.THRESHOLD, OF_NUMBERS, [OF_NUMBERS[is_above] for is_above in seen])

    def _answer_python(self, number: int, *operands: Any) -> None:
        place = self._places[number]
        if place.form is Form.SELECTION:
            self._answer_outcome(number, [bool(operands[0])])
            return
        if place.form is Form.COMPARISON:
            self._answer_outcome(number, [bool(getattr(operator, place.operator)(*operands))])
        if place.operator in ("eq", "ne") or not all(map(_is_number, operands)):
            return
        left, right = operands
        side = "below" if left < right else "above" if left > right else "at"
        needed = _OF_COMPARED_NUMBERS.get(place.operator, OF_NUMBERS)
        self._answer(number, Kind.THRESHOLD, needed, [side])

    def _answer_outcome(self, number: int, outcomes: Any) -> None:
        if not self._places[number].branches:
            self._answer(number, Kind.OUTCOME, OUTCOMES, [OUTCOMES[bool(outcome)] for outcome in outcomes])

    def _answer(self, number: int, kind: Kind, answers: tuple[str, ...], seen: Sequence[str]) -> None:
        question = _question(self._module, self._places[number], kind, answers)
        self._coverage.add(question, [side for side in seen if side in answers])


def _seen(answers: Callable[..., set[Any]], operands: Sequence[np.ndarray], most: int) -> list[Any]:
    """All different answers of the elements of operands that broadcast, ascending.

    A mask of long sequences has hundreds of millions of elements: they come piece by piece, until there are
    `most` answers.
    """
    whole = np.broadcast_arrays(*operands)
    shape = whole[0].shape
    axis = int(np.argmax(shape)) if shape else 0
    step = max(1, shape[axis] * _PIECE // max(1, whole[0].size)) if shape else 1
    seen: set[Any] = set()
    for start in range(0, shape[axis] if shape else 1, step):
        place = (slice(None),) * axis + (slice(start, start + step),)
        seen |= answers(*((side[place] for side in whole) if shape else whole))
        if len(seen) == most:
            break
    return sorted(seen)


def _truths(values: np.ndarray) -> set[bool]:
    is_true = values.astype(bool)
    return {truth for truth, is_there in ((True, is_true.any()), (False, not is_true.all())) if is_there}


def _steps(differences: np.ndarray) -> set[int]:
    return {step for step in (-1, 0, 1) if (differences == step).any()}


def _orders(left: np.ndarray, right: np.ndarray) -> set[int]:
    """0 where an element is below its counterpart, 1 where one is above."""
    return {number for number, is_there in enumerate(((left < right), (left > right))) if is_there.any()}


def _question(module: str, place: Place, kind: Kind, answers: tuple[str, ...]) -> Question:
    return Question(
        kind=kind, module=module, place=place.function, line=place.line, text=place.text, answers=answers
    )


def _array(operand: Any) -> np.ndarray:
    if isinstance(operand, torch.Tensor):
        # NumPy has no bfloat16.
        return operand.to(torch.float32).numpy() if operand.is_floating_point() else operand.numpy()
    return np.asarray(operand)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@cache
def instrumented(module: str) -> tuple[Mapping[str, CodeType], Sequence[Place]]:
    """Code of a module's functions with a probe in each of their places, and the places."""
    tree, places = with_probes(source_of(module))
    probed = {place.function for place in places}
    return {name: code for name, code in codes_of(module, tree).items() if name in probed}, places


class Probing:
    """Probes in all modules of a port.

    Args:
        sources: Import paths of the modules.
        coverage: Receives the questions and their answers.
    """

    def __init__(self, sources: Sequence[str], coverage: Coverage) -> None:
        self._sources = sources
        self._coverage = coverage
        for module in sources:
            for place in instrumented(module)[1]:
                if place.form in _WITH_OUTCOMES and not place.branches:
                    coverage.add(_question(module, place, Kind.OUTCOME, OUTCOMES))

    @contextlib.contextmanager
    def on(self) -> Iterator[list[Probes]]:
        """Inside, the port runs with probes."""
        probes = []
        with contextlib.ExitStack() as stack:
            for module in self._sources:
                codes, places = instrumented(module)
                own = Probes(module, places, self._coverage)
                probes.append(own)
                # A script that still runs defines functions behind a comparison.
                if not codes.keys() & functions(module).keys():
                    continue
                namespace = vars(importlib.import_module(module))
                namespace[PROBE] = own
                stack.callback(namespace.pop, PROBE)
                stack.enter_context(exchanged(module, codes))
            yield probes
