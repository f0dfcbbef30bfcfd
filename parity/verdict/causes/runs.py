"""Runs of the reference's code: as it is, with changed operations, or with a list of the changes of all."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity.verdict.causes.changes import changes_of
from parity.verdict.causes.operations import Change, DoesNotFit, Operation, Place, Source, in_place
from parity.verdict.causes.other_tensors import EarlierTensors, tensor_at
from parity.verdict.choices.other_programs import ChoicesOfRun
from parity.verdict.port_choices import PortChoices

_LIBRARIES = frozenset({"torch", "parity"})
"""Packages whose frames are none of the user's code."""

Run = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
"""Runs the reference's code in float64 on the tensors of its arguments, by name."""


@dataclass(frozen=True)
class Program:
    """The reference's code with one call's arguments.

    Attributes:
        run: See `Run`.
        arguments: The tensors of the code's arguments, by name.
        is_changeable: Whether the operation that runs is one of the code, and not of a module inside it.
        exchanged: Runs of the code with other weights in the place of its own, in words.
        choices: The port's choices in the code; None where the code makes its own ones.
    """

    run: Run
    arguments: Mapping[str, torch.Tensor]
    is_changeable: Callable[[], bool] = lambda: True
    exchanged: Mapping[str, Run] = field(default_factory=dict)
    choices: PortChoices | None = None

    @property
    def unaided(self) -> Program:
        """The code with its own choices."""
        return replace(self, choices=None)

    def result(self) -> torch.Tensor:
        """The result under the choices of the verdict."""
        # What the first run loads makes no choice of the module.
        first = self.run(self.arguments)
        if self.choices is None:
            return first
        with torch.no_grad(), Operations(ChoicesOfRun(self.choices, is_changed=False), {}):
            return self.run(self.arguments)

    def run_under(self, mode: TorchDispatchMode) -> None:
        """Run the code as it is under a mode that sees each operation."""
        with torch.no_grad(), mode:
            self.run(self.arguments)

    def listed(self) -> Operations:
        """The changes of the run's operations."""
        choices = ChoicesOfRun(self.choices, is_changed=False)
        with torch.no_grad(), Operations(choices, is_changeable=self.is_changeable) as operations:
            self.run(self.arguments)
        return operations

    def changed(
        self,
        changes: Mapping[int, Change] | None = None,
        run: Run | None = None,
        arguments: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The result with changed operations by their number, with another run, or with other arguments."""
        choices = ChoicesOfRun(self.choices, is_changed=True)
        with torch.no_grad(), Operations(choices, changes or {}):
            return (run or self.run)({**self.arguments, **(arguments or {})})


def origin(depth: int) -> Place:
    """The place in the user's code that runs the present operation; else PyTorch's module that runs alone.

    Args:
        depth: Number of frames from here to the one that runs the operation.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_globals.get("__name__") != __name__:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            name = Path(frame.f_code.co_filename).name
            return Place(frame.f_code, frame.f_lasti, f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return Place(None, 0, "the module")


class Operations(TorchDispatchMode):
    """Counts the operations of a run, and changes some of them, or lists the changes of all.

    Args:
        choices: The port's choices in the run.
        made: Changes by the number of the operation; None to list changes.
        is_changeable: See `Program`.
    """

    def __init__(
        self,
        choices: ChoicesOfRun,
        made: Mapping[int, Change] | None = None,
        is_changeable: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._choices = choices
        self._is_changeable = is_changeable
        self._made = made
        self._places = itertools.count()
        self._sources = {change.source for change in (made or {}).values() if change.source is not None}
        self._held: dict[Source, torch.Tensor] = {}
        self._earlier = EarlierTensors()
        self._of_earlier: list[tuple[int, Change]] = []
        self.elements = 0
        self._changes: list[tuple[int, Change]] = []

    @property
    def changes(self) -> list[tuple[int, Change]]:
        """The changes by the number of their operation; those that take another tensor are the last ones."""
        return self._changes + self._of_earlier

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # In inference mode, composite operations come whole.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        place = next(self._places)
        operation = Operation(func, args, kwargs)
        if self._made is None:
            return self._listed(place, operation)
        result = self._changed(place, operation)
        for source in (own for own in self._sources if own[0] == place):
            self._held[source] = tensor_at(source, operation, result)
        return result

    def _changed(self, place: int, operation: Operation) -> Any:
        """The result of an operation with its change, if it has one."""
        func, args, kwargs = operation.func, operation.args, operation.kwargs
        change = (self._made or {}).get(place)
        if change is not None:
            if (change.function, change.origin) != (func, origin(3)):
                raise DoesNotFit("an earlier change moves the numbers of the operations")
            if change.source is not None:
                operation = replace(operation, source=self._held[change.source])
            try:
                with self._choices.of(func, args, kwargs):
                    result = change.result(operation)
                return in_place(operation, result)
            except (RuntimeError, NotImplementedError) as error:
                raise DoesNotFit(str(error)) from error
        with self._choices.of(func, args, kwargs):
            return func(*args, **kwargs)

    def _listed(self, place: int, operation: Operation) -> Any:
        """The result of an operation whose changes are listed."""
        with self._choices.of(operation.func, operation.args, operation.kwargs):
            result = operation.func(*operation.args, **operation.kwargs)
        self.elements += result.numel() if isinstance(result, torch.Tensor) else 0
        place_in_code = origin(3)
        if self._is_changeable():
            found = {"function": operation.func, "origin": place_in_code}
            self._changes += [(place, replace(change, **found)) for change in changes_of(operation)]
            of_earlier = self._earlier.changes_of(operation, result)
            self._of_earlier += [(place, replace(change, **found)) for change in of_earlier]
        self._earlier.add(place, operation, result, place_in_code.words)
        return result
