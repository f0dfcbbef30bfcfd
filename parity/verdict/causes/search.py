"""The search for the cause of a module's wrong result: one change at a time, the nearest result wins."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity.base.interruption import raisable
from parity.verdict.causes.changes import changes_of
from parity.verdict.causes.operations import LEFT_OUT, SHIFTED, Change, DoesNotFit, Operation, Place, in_place
from parity.verdict.distances import Oracle
from parity.verdict.patterns import FailedTensor

FITS = "fits the reference "
"""Begins the text of a cause."""
MOST_TRIALS = 500
"""Largest number of runs of the module."""
_LIBRARIES = frozenset({"torch", "parity"})
"""Packages whose frames are none of the user's code."""
MOST_JOINT = 5
"""Largest number of operations of which every selection is changed together."""
MOST_ARGUMENTS = 6
"""Largest number of arguments that are exchanged in pairs."""
MOST_ELEMENTS = 2**30
"""Largest number of computed elements of all runs."""
COARSER = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
"""Types that a floating-point argument may wrongly have had."""

Run = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
"""Runs the reference's code in float64 on the tensors of its arguments, by name."""


@dataclass(frozen=True)
class OtherResult:
    """Another result of the same call, or the result of another call of the module. A cause holds there, too.

    Attributes:
        run: See `Run`.
        arguments: The tensors of its call's arguments, by name.
        result: The port's result, right or wrong, and its limit.
        is_changeable, exchanged: See `cause`.
    """

    run: Run
    arguments: Mapping[str, torch.Tensor]
    result: FailedTensor
    is_changeable: Callable[[], bool] = lambda: True
    exchanged: Mapping[str, Run] = field(default_factory=dict)

    def contradicts(self, key: Hashable) -> bool:
        """Whether a change gives another result than the port's; not in a call without the operation."""
        trials = self._trials.get(key)
        return trials is not None and all(map(self._differs, trials))

    def _differs(self, trial: _Trial) -> bool:
        counted, changed = self.result.counted, _result(trial.run)
        if changed is None or changed.shape != counted.shape or not np.isfinite(changed[counted]).all():
            return True
        return Oracle(changed[counted]).distance(self.result.port[counted]).exceeds(self.result.limit)

    @functools.cached_property
    def _trials(self) -> dict[Hashable, list[_Trial]]:
        """All changes, several ones in the same words together."""
        self.run(self.arguments)
        changes = _listed(self.run, self.arguments, self.is_changeable).changes
        trials: dict[Hashable, list[_Trial]] = {}
        for trial in _trials(self.run, self.arguments, changes, self.exchanged):
            trials.setdefault(trial.key, []).append(trial)
        return trials


def cause(
    run: Run,
    arguments: Mapping[str, torch.Tensor],
    failed: FailedTensor,
    is_changeable: Callable[[], bool] = lambda: True,
    others: Sequence[OtherResult] = (),
    exchanged: Mapping[str, Run] = MappingProxyType({}),
) -> str:
    """The change of the reference's code that gives the port's result, in words; empty without one.

    Of several changes within the limit, the one with the smallest residual is the cause. Of equal ones, as
    choices often have, an operation that is left out goes before another one, a change of the code before a
    number, and a number before shifted data.

    Args:
        run: See `Run`.
        arguments: The tensors of the code's arguments, by name.
        failed: The port's result and its limit.
        is_changeable: Whether the operation that runs is one of the code, and not of a module inside it.
        others: Other results of the code.
        exchanged: Runs of the code with other weights in the place of its own, in words.
    """
    # What the first run loads is no operation of the module. A result of random numbers has no cause here.
    if not np.array_equal(run(arguments).double().cpu().numpy(), failed.oracle, equal_nan=True):
        return ""
    plain = _listed(run, arguments, is_changeable)
    best, text = (math.inf, 0), ""
    for number, trial in enumerate(_trials(run, arguments, plain.changes, exchanged)):
        if number >= MOST_TRIALS or number * plain.elements >= MOST_ELEMENTS:
            break
        fit = (_residual(trial.run, failed), trial.rank)
        if not math.isfinite(fit[0]) or fit >= best:
            continue
        if any(math.isfinite(_residual(rival, failed)) for rival in trial.rivals):
            continue
        if not any(other.contradicts(trial.key) for other in others):
            best, text = fit, trial.text
    return f"{FITS}{text}" if text else ""


@dataclass(frozen=True)
class _Trial:
    """A change and its runs.

    Attributes:
        text: The change in words.
        key: The change in any call of the code.
        run: A run with it.
        rivals: Runs with the same change by other numbers.
    """

    text: str
    key: Hashable
    run: Callable[[], torch.Tensor]
    rivals: tuple[Callable[[], torch.Tensor], ...] = ()

    @property
    def rank(self) -> int:
        """0 for an operation that is left out, 1 for another one, 2 for a number, 3 for shifted data.

        A term that is left out equals a term times 0, or one that is rounded to 0.
        """
        if SHIFTED in self.text:
            return 3
        return 2 if self.rivals else int(not self.text.startswith(LEFT_OUT))


def _listed(
    run: Run, arguments: Mapping[str, torch.Tensor], is_changeable: Callable[[], bool]
) -> _Operations:
    """The changes of a run's operations."""
    with torch.no_grad(), _Operations(is_changeable=is_changeable) as operations:
        run(arguments)
    return operations


def _trials(
    run: Run,
    arguments: Mapping[str, torch.Tensor],
    changes: Sequence[tuple[int, Change]],
    exchanged: Mapping[str, Run],
) -> Iterator[_Trial]:
    for text, changed in _changed_arguments(arguments):
        yield _Trial(text, text, functools.partial(run, {**arguments, **changed}))
    for text, other in exchanged.items():
        yield _Trial(text, text, functools.partial(_without_gradients, other, arguments))
    # A loop has few joint changes and many single ones.
    places = _places(changes)
    for text, key, together in _joint(changes, places):
        yield _changed_operations(run, arguments, text, key, together)
    for number, change in changes:
        # Equal changes of one operation share a place. Another one in the same words may have none.
        runs = places.get((change.origin, change.text), {})
        times = list(runs) if number in runs else []
        time = times.index(number) if times else number
        text = change.text
        if change.origin is not None and len(times) > 1:
            text = f"{text}, the {_ordinal(time + 1)} of {len(times)} times in {change.origin.words}"
        yield _changed_operations(run, arguments, text, (change.origin, change.text, time), {number: change})


def _without_gradients(run: Run, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return run(arguments)


def _changed_operations(
    run: Run,
    arguments: Mapping[str, torch.Tensor],
    text: str,
    key: Hashable,
    changes: Mapping[int, Change],
) -> _Trial:
    def changed(made: Mapping[int, Change]) -> Callable[[], torch.Tensor]:
        return lambda: _run_changed(run, arguments, made)

    # Changes of one text have rivals of one kind.
    rivals = [
        {
            number: replace(change, result=result)
            for (number, change), result in zip(changes.items(), results, strict=True)
        }
        for results in zip(*(change.rivals for change in changes.values()), strict=True)
    ]
    return _Trial(text, key, changed(changes), tuple(map(changed, rivals)))


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


Places = dict[tuple[Place | None, str], dict[int, Change]]
"""The runs of a change, by its place in the code and its words."""


def _places(changes: Sequence[tuple[int, Change]]) -> Places:
    places: Places = {}
    for number, change in changes:
        # Others have words of their own for several operations.
        if change.origin is not None and not change.together:
            places.setdefault((change.origin, change.text), {})[number] = change
    return places


def _joint(
    changes: Sequence[tuple[int, Change]], places: Places
) -> Iterator[tuple[str, Hashable, dict[int, Change]]]:
    """One mistake at several operations: all runs of a place in the code, selections of a few, or all."""
    for (origin, text), runs in places.items():
        if origin is not None and len(runs) > 1:
            yield f"{text}, all {len(runs)} times in {origin.words}", (origin, text), runs
    for words in dict.fromkeys(change.together for _, change in changes if change.together):
        alike = [(number, change) for number, change in changes if change.together == words]
        counts = range(2, len(alike) + 1) if len(alike) <= MOST_JOINT else [len(alike)]
        for count in counts:
            for selection in itertools.combinations(alike, count):
                together = dict(selection)
                yield f"with {count} {words}", (words, *together), together


def _run_changed(
    run: Run, arguments: Mapping[str, torch.Tensor], changes: Mapping[int, Change]
) -> torch.Tensor:
    with torch.no_grad(), _Operations(changes):
        return run(arguments)


def _result(trial: Callable[[], torch.Tensor]) -> np.ndarray | None:
    """A changed result; None for a change that does not run."""
    try:
        return trial().double().cpu().numpy()
    except raisable():
        # A change that does not fit the shapes, the options, the memory or the user's own checks is no cause.
        return None


def _residual(trial: Callable[[], torch.Tensor], failed: FailedTensor) -> float:
    """The relative distance of the port from a changed result; infinity beyond the limit."""
    changed = _result(trial)
    if changed is None or changed.shape != failed.oracle.shape:
        return math.inf
    if not np.isfinite(changed[failed.counted]).all() or not failed.is_explained_by(changed):
        return math.inf
    return Oracle(changed[failed.counted]).distance(failed.port[failed.counted]).l2


def _changed_arguments(
    arguments: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Arguments of another type, shifted masks and positions, and arguments in each other's place."""
    yield from _exchanged_arguments(arguments)
    for name, tensor in arguments.items():
        if tensor.dtype is torch.bool:
            for axis in range(tensor.ndim):
                for step in (1, -1):
                    text = f"with {name} {SHIFTED} {step:+d} along axis {axis}"
                    yield text, {name: tensor.roll(step, axis)}
            yield f"with {name} inverted", {name: ~tensor}
            # Such as queries for keys.
            for first, second in itertools.combinations(range(tensor.ndim), 2):
                turned = tensor.transpose(first, second)
                if turned.shape == tensor.shape and not torch.equal(turned, tensor):
                    yield f"with axes {first} and {second} of {name} exchanged", {name: turned}
        elif tensor.dtype.is_floating_point:
            for other in COARSER:
                rounded = tensor.to(other).to(tensor.dtype)
                if not torch.equal(rounded, tensor):
                    yield f"with {name} as {str(other).removeprefix('torch.')}", {name: rounded}
        else:
            for step in (1, -1):
                yield f"with {name} {SHIFTED} {step:+d}", {name: (tensor + step).clamp(min=0)}
            # Both ends of edges, or both sides of pairs.
            for axis in (axis for axis, size in enumerate(tensor.shape) if size == 2):
                yield f"with both parts of {name} along axis {axis} exchanged", {name: tensor.flip(axis)}
            for wide in (torch.int32, torch.float32, torch.float16, torch.bfloat16):
                cast = tensor.to(wide).to(tensor.dtype)
                if not torch.equal(cast, tensor):
                    yield f"with {name} as {str(wide).removeprefix('torch.')}", {name: cast}


def _exchanged_arguments(
    arguments: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Two arguments of one shape and type in each other's place, or one in both."""
    first = itertools.islice(arguments.items(), MOST_ARGUMENTS)
    for (name, tensor), (other, another) in itertools.combinations(first, 2):
        if (tensor.shape, tensor.dtype) == (another.shape, another.dtype) and not torch.equal(
            tensor, another
        ):
            yield f"with {name} and {other} exchanged", {name: another, other: tensor}
            yield f"with {name} in place of {other}", {other: tensor}
            yield f"with {other} in place of {name}", {name: another}


def _origin() -> Place:
    """The place in the user's code that runs the present operation; else PyTorch's module that runs alone."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != __name__:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            name = Path(frame.f_code.co_filename).name
            return Place(frame.f_code, frame.f_lasti, f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return Place(None, 0, "the module")


class _Operations(TorchDispatchMode):
    """Counts the operations of a run, and changes some of them, or lists the changes of all.

    Args:
        made: Changes by the number of the operation; None to list changes.
        is_changeable: See `cause`.
    """

    def __init__(
        self,
        made: Mapping[int, Change] | None = None,
        is_changeable: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._is_changeable = is_changeable
        self._made = made
        self._places = itertools.count()
        self.elements = 0
        self.changes: list[tuple[int, Change]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # In inference mode, composite operations come whole.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        place = next(self._places)
        operation = Operation(func, args, kwargs)
        if self._made is not None and place in self._made:
            change = self._made[place]
            if (change.function, change.origin) != (func, _origin()):
                raise DoesNotFit("an earlier change moves the numbers of the operations")
            try:
                return in_place(operation, change.result(operation))
            except (RuntimeError, NotImplementedError) as error:
                raise DoesNotFit(str(error)) from error
        result = func(*args, **kwargs)
        if self._made is None:
            self.elements += result.numel() if isinstance(result, torch.Tensor) else 0
            if self._is_changeable():
                found = {"function": func, "origin": _origin()}
                self.changes += [(place, replace(change, **found)) for change in changes_of(operation)]
        return result
