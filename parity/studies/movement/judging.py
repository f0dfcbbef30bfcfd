"""The movements of every runner of a case in one precision, over all batches of both runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from parity.capture.arguments import Argument
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.execution.record import ORACLE, Status
from parity.inputs.masks import same_where_valid
from parity.studies.movement.sides import BatchSide
from parity.verdict.flips import flipped_rows
from parity.verdict.judgement import MODEL_OUTPUT
from parity.verdict.movement import Movement, Side, movement, without_numbers

Origin = Literal["root", "carried", "unknown", ""]
CHECK = "incremental output"
"""Kind of an output of the incremental forward."""
_ORDER = ("gap", "equal", "within", "moved")


@dataclass(frozen=True)
class ModuleMovement:
    """One result of a runner in both runs.

    Attributes:
        tap, path, kind: Its tap, the path and the class of its module.
        batch: Batch of these numbers: of those where the module ran alone, the one where it moved most.
        inside: Movement inside the model; None if it is not compared.
        alone: Movement of the module alone on recorded inputs; None if it is not compared.
        origin: Of a movement: "root": the module moved by itself; "carried": its inputs had moved; "unknown":
            it cannot run alone and its inputs differ.
        inputs: State of each argument in the model, of the first moved result: "equal", "within" and "moved"
            as a tap's, or "differs" of one that no module returns.
        gap: Reason why a run has no such result, or empty.
    """

    tap: str
    path: str
    kind: str
    batch: str
    inside: Movement | None = None
    alone: Movement | None = None
    origin: Origin = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    gap: str = ""

    @property
    def movements(self) -> tuple[Movement, ...]:
        """The movements alone and inside the model, as far as compared."""
        return tuple(one for one in (self.alone, self.inside) if one is not None)

    @property
    def status(self) -> Literal["gap", "equal", "within", "moved"]:
        states = {one.status for one in self.movements}
        return next((state for state in ("moved", "within", "equal") if state in states), "gap")

    @property
    def rank(self) -> tuple[int, bool, float]:
        """A key that is larger for a larger movement; a module alone tells the origin."""
        largest = max((one.ratio for one in self.movements), default=0.0)
        return _ORDER.index(self.status), self.alone is not None, largest


@dataclass
class RunnerMovement:
    """The movements of one runner in one precision of a case.

    Attributes:
        runner: Its name.
        labels: Its full names in the old and in the new run.
        modules: By tap, in the order in which modules finish, each in the batch where it moved most.
        batches: Names of the compared batches.
    """

    runner: str
    labels: tuple[str, str]
    modules: dict[str, ModuleMovement] = field(default_factory=dict)
    batches: list[str] = field(default_factory=list)

    def add(self, batch: str, modules: Iterable[ModuleMovement]) -> None:
        """Add a batch."""
        self.batches.append(batch)
        for module in modules:
            known = self.modules.get(module.tap)
            if known is None or module.rank > known.rank:
                self.modules[module.tap] = module

    @property
    def moved(self) -> list[ModuleMovement]:
        """The results that moved by more than rounding explains, in execution order."""
        return [module for module in self.modules.values() if module.status == "moved"]


def runner_movements(
    batch: str, old: BatchSide, new: BatchSide, movements: dict[str, RunnerMovement]
) -> Iterator[str]:
    """Add the movements in a batch by runner, and yield what is not compared, in words."""
    sides = {"old": old, "new": new}
    for label, side in sides.items():
        if side.blocked:
            yield f"{side.blocked} in the {label} run"
        elif not side.can_choose:
            reason = "the present reference computes another function"
            yield f"choices of the {label} run are not followed: {reason}"
    if old.blocked or new.blocked:
        return
    # The oracle tells first whether the function is the same.
    names = dict.fromkeys((ORACLE, *old.record.runners, *new.record.runners))
    for name in names:
        states = {label: _state(side, name) for label, side in sides.items()}
        if not any(states.values()):
            labels = old.label(name), new.label(name)
            runner = movements.setdefault(name, RunnerMovement(name, labels))
            runner.add(batch, _Runner(batch, name, old, new).modules())
        elif set(states.values()) != {_BUILT}:
            listed = " and ".join(
                f"{state or 'has results'} in the {label} run" for label, state in states.items()
            )
            yield f"{name} {listed}"


_BUILT = f"is {Status.BUILT.value}"
"""State of a runner that has no results by its nature."""


def _state(side: BatchSide, name: str) -> str:
    """The reason why a runner has no results; empty if it has some."""
    if name in side.runners:
        return ""
    record = side.record.runners.get(name)
    if record is None:
        return "did not run"
    return "has no results" if record.status is Status.OK else f"is {record.status.value}"


class _Runner:
    """The movements of a runner in one batch."""

    def __init__(self, batch: str, name: str, old: BatchSide, new: BatchSide) -> None:
        self._batch, self._name, self._old, self._new = batch, name, old, new
        tapped = old.tapped(name), new.tapped(name)
        self._flips = [
            *(
                flipped_rows(side.evidence, own, side.evidence.reference.tensors)
                for side, own in zip((old, new), tapped, strict=True)
            ),
            flipped_rows(old.evidence, *tapped),
        ]
        self._conditioned = old.is_conditioned(name) or new.is_conditioned(name)
        self._done: dict[str, ModuleMovement] = {}

    def modules(self) -> Iterator[ModuleMovement]:
        """The results in execution order, then the incremental outputs."""
        judged = self._new.taps(self._name) | self._old.taps(self._name)
        taps = dict.fromkeys((*self._old.taps(self._name), *self._new.taps(self._name)))
        is_first = True
        for tap in taps:
            module = self._module(tap, judged[tap].path, judged[tap].kind, is_first)
            is_first = is_first and module.status != "moved"
            self._done[tap] = module
            yield module
        for check in dict.fromkeys((*self._old.checks(self._name), *self._new.checks(self._name))):
            sides = (side.check(self._name, check, self._flips) for side in (self._old, self._new))
            moved = _compared(*sides, other_oracle=self._conditioned)
            yield ModuleMovement(
                check, check, CHECK, self._batch, inside=moved, origin=self._origin(moved, None, {})
            )

    def _module(self, tap: str, path: str, kind: str, is_first: bool) -> ModuleMovement:
        lacking = [
            label
            for label, side in (("old", self._old), ("new", self._new))
            if tap not in side.taps(self._name)
        ]
        if lacking and TapName.parse(tap).appends:
            gap = f"the {lacking[0]} run did not run it alone in this batch"
            return ModuleMovement(tap, path, kind, self._batch, gap=gap)
        if lacking:
            moved = without_numbers(f"no such module in the {lacking[0]} run")
            return ModuleMovement(tap, path, kind, self._batch, inside=moved, origin="unknown")
        gaps = {
            label: side.taps(self._name)[tap].gap
            for label, side in (("old", self._old), ("new", self._new))
            if tap in side.taps(self._name) and side.taps(self._name)[tap].gap
        }
        if gaps:
            text = "; ".join(f"{label} run: {reason}" for label, reason in gaps.items())
            return ModuleMovement(tap, path, kind, self._batch, gap=text)
        inside = _compared(*self._sides(tap, False, self._flips), other_oracle=self._conditioned)
        alone = None
        if not (self._name == ORACLE and self._receives_others(tap)):
            flips = self._flips if self._contains_flip(path) else ()
            sides = self._sides(tap, True, flips)
            alone = _compared(*sides, other_oracle=self._conditioned or self._receives_others(tap))
        if inside is None and alone is None:
            return ModuleMovement(tap, path, kind, self._batch, gap="no result is judged in both runs")
        states = [one.status for one in (inside, alone) if one is not None]
        if "moved" not in states:
            return ModuleMovement(tap, path, kind, self._batch, inside, alone)
        inputs = self._inputs(tap) if is_first or alone is None else {}
        origin = self._origin(inside, alone, inputs, kind)
        return ModuleMovement(tap, path, kind, self._batch, inside, alone, origin, inputs)

    def _sides(self, tap: str, alone: bool, flips: Sequence[np.ndarray | None]) -> Iterator[Side | None]:
        return (side.side(self._name, tap, alone, flips) for side in (self._old, self._new))

    def _contains_flip(self, path: str) -> bool:
        boundaries = (*self._old.evidence.boundary, *self._new.evidence.boundary)
        return any(tap.startswith(f"{path}.") for tap in boundaries)

    def _receives_others(self, tap: str) -> bool:
        """Whether the module alone received other tensors or constants in the two runs."""
        call = str(TapName.parse(tap).module_call)
        return self._old.calls.get(call) != self._new.calls.get(call)

    def _origin(
        self, inside: Movement | None, alone: Movement | None, inputs: Mapping[str, str], kind: str = CHECK
    ) -> Origin:
        if not any(one is not None and one.status == "moved" for one in (inside, alone)):
            return ""
        if alone is not None:
            return "root" if alone.status == "moved" else "carried"
        if kind in (MODEL_OUTPUT, CHECK):
            modules = [module for module in self._done.values() if module.kind != MODEL_OUTPUT]
            if any(module.status == "moved" for module in modules):
                return "carried"
            # The code after the modules makes an output.
            return "root" if modules and kind == MODEL_OUTPUT else "unknown"
        if "moved" in inputs.values():
            return "carried"
        return "root" if inputs and set(inputs.values()) == {"equal"} else "unknown"

    def _inputs(self, tap: str) -> dict[str, str]:
        """The state of each tensor that a call receives inside the model; empty where they are not known."""
        call = str(TapName.parse(tap).module_call)
        captures = self._old.received(self._name), self._new.received(self._name)
        received = [capture.arguments.get(call) for capture in captures]
        if None in received:
            return {}
        arguments = [{one.name: one for one in side.arguments if one.tensor} for side in received]
        return {
            name: self._input(one, arguments[1][name], captures)
            for name, one in arguments[0].items()
            if name in arguments[1]
        }

    def _input(self, old: Argument, new: Argument, captures: tuple[Capture, Capture]) -> str:
        first, second = (capture.argument(one) for capture, one in zip(captures, (old, new), strict=True))
        mask = self._old.evidence.mask(tuple(first.shape))
        if same_where_valid(first, second, mask):
            return "equal"
        known = self._done.get(old.tensor)
        return known.status if known is not None and old.tensor == new.tensor else "differs"


def _compared(old: Side | None, new: Side | None, other_oracle: bool) -> Movement | None:
    """The movement of a result that is judged in both runs, and that one of them has."""
    if old is None or new is None or (old.result is None and new.result is None):
        return None
    return movement(old, new, other_oracle)
