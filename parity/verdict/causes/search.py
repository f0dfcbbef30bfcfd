"""The search for the cause of a module's wrong result: one change at a time, the nearest result wins."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from parity.base.interruption import raisable
from parity.runners.oracle.exchanged_weights import OF_ANOTHER
from parity.verdict.causes.argument_changes import changed_arguments
from parity.verdict.causes.operations import LEFT_OUT, SHIFTED, Change, Place
from parity.verdict.causes.runs import Program
from parity.verdict.patterns import FailedTensor

FITS = "fits the reference "
"""Begins the text of a cause."""
MOST_TRIALS = 500
"""Largest number of runs of the module."""
MOST_JOINT = 5
"""Largest number of operations of which every selection is changed together."""
MOST_NAMED = 3
"""Most changes with one result that a text lists. The last one may be the number of the others."""
SAME = 1e-12
"""Largest difference of the relative distances from equal results in float64."""
BY_CHANCE = 0.05
"""Largest chance of shifted data that is told: that a tried change gives integers with as few wrong ones."""
MOST_ELEMENTS = 2**30
"""Largest number of computed elements of all runs."""


@dataclass(frozen=True)
class OtherResult:
    """Another result of the same call, or the result of another call of the module. A cause holds there, too.

    Attributes:
        program: The reference's code with the arguments of the call.
        result: The port's result, right or wrong, and its limit.
    """

    program: Program
    result: FailedTensor

    def contradicts(self, key: Hashable) -> bool:
        """Whether a change gives another result than the port's; not in a call without the operation."""
        trials = self._trials.get(key)
        return trials is not None and all(map(self._differs, trials))

    def _differs(self, trial: _Trial) -> bool:
        counted, changed = self.result.counted, _result(trial.run)
        if changed is None or changed.shape != counted.shape:
            return True
        return self.result.distance_from(changed).exceeds(self.result.limit)

    @functools.cached_property
    def _trials(self) -> dict[Hashable, list[_Trial]]:
        """All changes, several ones in the same words together."""
        # What the first run loads is no operation of the module.
        self.program.run(self.program.arguments)
        trials: dict[Hashable, list[_Trial]] = {}
        for trial in _trials(self.program, self.program.listed().changes):
            trials.setdefault(trial.key, []).append(trial)
        return trials


def cause(program: Program, failed: FailedTensor, others: Sequence[OtherResult] = ()) -> str:
    """The change of the reference's code that gives the port's result, in words; empty without one.

    Of several changes within the limit, the one with the smallest residual is the cause. Of equal ones, as
    choices often have, an operation that is left out goes before another one, a change of the code before a
    number, and a number before shifted data. Where equal ones of one kind change several operations, none is
    more likely than another one, and the text names them all.

    Args:
        program: The reference's code with the arguments of the call.
        failed: The port's result and its limit.
        others: Other results of the code.
    """
    # What the first run loads is no operation of the module. A result of random numbers has no cause here.
    if not np.array_equal(program.result().double().cpu().numpy(), failed.oracle, equal_nan=True):
        return ""
    # Choices that a changed program may take, and the verdict's may not, are no cause.
    if program.choices is not None and math.isfinite(_residual(program.changed, failed)):
        return ""
    plain = program.listed()
    best: list[_Fit] = []
    for number, trial in enumerate(_trials(program, plain.changes)):
        if number >= MOST_TRIALS or number * plain.elements >= MOST_ELEMENTS:
            break
        tried = number + 1
        fit = _Fit(_residual(trial.run, failed), trial)
        if not math.isfinite(fit.residual) or any(own.goes_before(fit) for own in best):
            continue
        if any(math.isfinite(_residual(rival, failed)) for rival in trial.rivals):
            continue
        # A change that makes all scores equal allows any choice.
        if program.choices is not None and not _explains_most(trial.unaided, failed):
            continue
        if not any(other.contradicts(trial.key) for other in others):
            best = [*(own for own in best if not fit.goes_before(own)), fit]
    if not best:
        return ""
    # Other mistakes than shifted data are likely where they fit, such as `<` for `<=` at one element.
    if any(own.trial.shifts_data for own in best):
        failing = [failed, *(other.result for other in others if other.result.wrong.any())]
        if tried > BY_CHANCE * math.prod(result.possible_results for result in failing):
            return ""
    return f"{FITS}{_in_words([own.trial.text for own in best])}"


@dataclass(frozen=True)
class _Fit:
    """A change, and the distance of the port from its result."""

    residual: float
    trial: _Trial

    def goes_before(self, other: _Fit) -> bool:
        """Whether this change alone is told of both; of two equal ones of one operation, the first one is."""
        if abs(self.residual - other.residual) > SAME:
            return self.residual < other.residual
        if self.trial.rank != other.trial.rank:
            return self.trial.rank < other.trial.rank
        return not self.trial.places.isdisjoint(other.trial.places)


def _in_words(texts: Sequence[str]) -> str:
    """Changes with one result: the first ones, and the number of others. Operations may share their words."""
    names = list(dict.fromkeys(texts))
    if len(names) == 1:
        return names[0]
    if len(names) > MOST_NAMED:
        names[MOST_NAMED - 1 :] = [f"with {len(names) - MOST_NAMED + 1} other changes"]
    return f"{', '.join(names[:-1])} or {names[-1]}, which give the same result"


@dataclass(frozen=True)
class _Trial:
    """A change and its runs.

    Attributes:
        text: The change in words.
        key: The change in any call of the code.
        places: Numbers of the changed operations, or the words for changed arguments or weights.
        run: A run with it.
        unaided: The same run with choices of its own in place of the port's.
        rivals: Runs with the same change by other numbers.
    """

    text: str
    key: Hashable
    places: frozenset[Hashable]
    run: Callable[[], torch.Tensor]
    unaided: Callable[[], torch.Tensor]
    rivals: tuple[Callable[[], torch.Tensor], ...] = ()

    @classmethod
    def of_call(cls, text: str, program: Program, **changed: Any) -> _Trial:
        """A change of the whole call: of its arguments or weights, by the names of `Program.changed`."""
        run, unaided = (functools.partial(own.changed, **changed) for own in (program, program.unaided))
        return cls(text, text, frozenset({text}), run, unaided)

    @property
    def shifts_data(self) -> bool:
        return SHIFTED in self.text

    @property
    def rank(self) -> int:
        """0 for an operation that is left out, 1 for another one, 2 for a number, 3 for shifted data.

        A term that is left out equals a term times 0, or one that is rounded to 0.
        """
        if self.shifts_data:
            return 3
        return 2 if self.rivals else int(not self.text.startswith(LEFT_OUT))


def _trials(program: Program, changes: Sequence[tuple[int, Change]]) -> Iterator[_Trial]:
    for text, changed in changed_arguments(program.arguments):
        yield _Trial.of_call(text, program, arguments=changed)
    exchanged = {text: _Trial.of_call(text, program, run=run) for text, run in program.exchanged.items()}
    # Weights of other modules are many and come last: changes of the code need the trials.
    yield from (trial for text, trial in exchanged.items() if OF_ANOTHER not in text)
    # A loop has few joint changes and many single ones.
    places = _places(changes)
    for text, key, together in _joint(changes, places):
        yield _changed_operations(program, text, key, together)
    for number, change in changes:
        # Equal changes of one operation share a place. Another one in the same words may have none.
        runs = places.get((change.origin, change.text), {})
        times = list(runs) if number in runs else []
        time = times.index(number) if times else number
        text = change.text
        if change.origin is not None and len(times) > 1:
            text = f"{text}, the {_ordinal(time + 1)} of {len(times)} times in {change.origin.words}"
        yield _changed_operations(program, text, (change.origin, change.text, time), {number: change})
    yield from (trial for text, trial in exchanged.items() if OF_ANOTHER in text)


def _changed_operations(program: Program, text: str, key: Hashable, changes: Mapping[int, Change]) -> _Trial:
    def changed(made: Mapping[int, Change]) -> Callable[[], torch.Tensor]:
        return lambda: program.changed(made)

    # Changes of one text have rivals of one kind.
    rivals = [
        {
            number: replace(change, result=result)
            for (number, change), result in zip(changes.items(), results, strict=True)
        }
        for results in zip(*(change.rivals for change in changes.values()), strict=True)
    ]
    unaided = functools.partial(program.unaided.changed, changes)
    return _Trial(text, key, frozenset(changes), changed(changes), unaided, tuple(map(changed, rivals)))


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
        takes_few = len(alike) <= MOST_JOINT and all(change.takes_few for _, change in alike)
        counts = range(2 if takes_few else max(2, len(alike)), len(alike) + 1)
        for count in counts:
            for selection in itertools.combinations(alike, count):
                together = dict(selection)
                yield f"with {count} {words}", (words, *together), together


def _result(trial: Callable[[], torch.Tensor]) -> np.ndarray | None:
    """A changed result; None for a change that does not run."""
    try:
        return trial().double().cpu().numpy()
    except raisable():
        # A change that does not fit the shapes, the options, the memory or the user's own checks is no cause.
        return None


def _explains_most(trial: Callable[[], torch.Tensor], failed: FailedTensor) -> bool:
    """Whether a changed result leaves at most half as many elements wrong."""
    changed = _result(trial)
    if changed is None or changed.shape != failed.oracle.shape:
        return False
    return bool(2 * replace(failed, oracle=changed).wrong.sum() <= failed.wrong.sum())


def _residual(trial: Callable[[], torch.Tensor], failed: FailedTensor) -> float:
    """The relative distance of the port from a changed result; infinity beyond the limit."""
    changed = _result(trial)
    if changed is None or changed.shape != failed.oracle.shape:
        return math.inf
    return failed.distance_from(changed).l2 if failed.is_explained_by(changed) else math.inf
