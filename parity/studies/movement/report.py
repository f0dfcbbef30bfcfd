"""The movements between two saved runs as typed data, which every form of them shows."""

from __future__ import annotations

from typing import Literal

from parity.report.schema_modules import Number, Part
from parity.studies.movement.judging import ModuleMovement, Origin, RunnerMovement
from parity.verdict.distances import Distance
from parity.verdict.movement import Movement

SCHEMA = "parity.movement/1"


class DistanceReport(Part):
    """A relative distance in both norms, and its scale error; see `parity.verdict.distances`."""

    l2: Number
    largest: Number
    scale_error: Number

    @classmethod
    def of(cls, distance: Distance) -> DistanceReport:
        return cls(l2=distance.l2, largest=distance.largest, scale_error=distance.scale_error)


class MovementReport(Part):
    """The movement of a result; see `parity.verdict.movement.Movement`.

    Attributes:
        status: "equal": the same bits; "within": rounding explains it; "moved": it does not.
        by, explained: Size of the movement, and the largest one that rounding explains.
        ratio: Largest ratio of both; up to 1 is within.
        old_error, new_error: Distances of both results from the oracle.
        nearer: The run whose result is nearer to the oracle; empty if neither is.
        reason: Reason of a movement without numbers, or empty.
    """

    status: Literal["equal", "within", "moved"]
    by: DistanceReport
    explained: DistanceReport
    ratio: Number
    old_error: DistanceReport
    new_error: DistanceReport
    nearer: Literal["old", "new", ""]
    reason: str = ""

    @classmethod
    def of(cls, movement: Movement) -> MovementReport:
        return cls(
            status=movement.status,
            by=DistanceReport.of(movement.distance),
            explained=DistanceReport.of(movement.limit),
            ratio=movement.ratio,
            old_error=DistanceReport.of(movement.old),
            new_error=DistanceReport.of(movement.new),
            nearer=movement.nearer,
            reason=movement.reason,
        )


class ModuleReport(Part):
    """One result of a runner; see `parity.studies.movement.judging.ModuleMovement`."""

    tap: str
    path: str
    kind: str
    batch: str
    status: Literal["gap", "equal", "within", "moved"]
    inside: MovementReport | None
    alone: MovementReport | None
    origin: Origin = ""
    inputs: dict[str, str] = {}
    gap: str = ""

    @classmethod
    def of(cls, module: ModuleMovement) -> ModuleReport:
        return cls(
            tap=module.tap,
            path=module.path,
            kind=module.kind,
            batch=module.batch,
            status=module.status,
            inside=None if module.inside is None else MovementReport.of(module.inside),
            alone=None if module.alone is None else MovementReport.of(module.alone),
            origin=module.origin,
            inputs=dict(module.inputs),
            gap=module.gap,
        )

    @property
    def telling(self) -> MovementReport | None:
        """The movement that decides: alone if the module moved by itself, else the larger one."""
        compared = [one for one in (self.alone, self.inside) if one is not None]
        moved = [one for one in compared if one.status == "moved"]
        return moved[0] if moved else max(compared, key=lambda one: one.ratio, default=None)


class RunnerReport(Part):
    """One runner in one precision of a case.

    Attributes:
        case, precision, runner: Names.
        old_label, new_label: Its full names in both runs.
        batches: Names of the compared batches.
        first: Tap of the first result that moved; empty if none did.
        modules: In execution order.
    """

    case: str
    precision: str
    runner: str
    old_label: str
    new_label: str
    batches: tuple[str, ...]
    first: str
    modules: tuple[ModuleReport, ...]

    @classmethod
    def of(cls, case: str, precision: str, runner: RunnerMovement) -> RunnerReport:
        old, new = runner.labels
        return cls(
            case=case,
            precision=precision,
            runner=runner.runner,
            old_label=old,
            new_label=new,
            batches=tuple(runner.batches),
            first=next((module.tap for module in runner.moved), ""),
            modules=tuple(map(ModuleReport.of, runner.modules.values())),
        )

    def counted(self, status: str) -> int:
        """Number of results with a status."""
        return sum(module.status == status for module in self.modules)

    @property
    def moved(self) -> list[ModuleReport]:
        """The results that moved, in execution order."""
        return [module for module in self.modules if module.status == "moved"]

    @property
    def ratio(self) -> float:
        """The largest movement over what rounding explains."""
        return max((one.telling.ratio for one in self.modules if one.telling is not None), default=0.0)


class RunReport(Part):
    """One of the two runs: its folder, its command, the packages whose code has changed since."""

    folder: str
    command: str
    changed_code: tuple[str, ...]


class FactReport(Part):
    """A fact of the environments, or a digest of code, that differs."""

    name: str
    old: str
    new: str


class ComparisonReport(Part):
    """The comparison of two saved runs.

    Attributes:
        schema_name: Name of this schema.
        command: Command line of the comparison.
        old, new: The runs.
        differing: Facts that differ.
        runners: By case, precision and runner.
        not_compared: Batches and runners of one run alone, in words.
    """

    schema_name: Literal["parity.movement/1"] = SCHEMA
    command: str
    old: RunReport
    new: RunReport
    differing: tuple[FactReport, ...]
    runners: tuple[RunnerReport, ...]
    not_compared: tuple[str, ...] = ()

    @property
    def moved(self) -> list[RunnerReport]:
        """The runners with a result that moved by more than rounding explains."""
        return [runner for runner in self.runners if runner.first]
