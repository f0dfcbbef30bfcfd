"""Modules that are lowered together, and what lowering each unit alone does to the model's outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parity.base.precision import PRECISIONS
from parity.base.precision_policy import BASE
from parity.studies.precision_search.bench import Bench, Evaluation


@dataclass(frozen=True)
class Unit:
    """Modules that have one precision: one module, or those of one class in the same place of every block.

    Attributes:
        name: Its path, with `*` for the numbers in which its modules differ, and their class behind it where
            another unit has the same; "" is the model itself.
        paths: Its modules.
    """

    name: str
    paths: tuple[str, ...]

    def split(self) -> tuple[Unit, ...]:
        """A unit for each of its modules."""
        return tuple(Unit(path, (path,)) for path in self.paths)


def units_of(kinds: Mapping[str, str]) -> tuple[Unit, ...]:
    """Units of modules, in the order in which they are given.

    Args:
        kinds: Class names by path.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for path, kind in kinds.items():
        found.setdefault((re.sub(r"\b\d+\b", "*", path), kind), []).append(path)
    patterns = [pattern for (pattern, _), paths in found.items() if len(paths) > 1]

    def name(pattern: str, kind: str, paths: list[str]) -> str:
        if len(paths) == 1:
            return paths[0]
        return pattern if patterns.count(pattern) == 1 else f"{pattern} ({kind})"

    return tuple(Unit(name(*key, paths), tuple(paths)) for key, paths in found.items())


@dataclass(frozen=True)
class Sensitivity:
    """What lowering one unit alone, to one precision, does.

    Attributes:
        error: Error of the outputs against the oracle, infinite where they are not finite.
        added: The part of it that fp32 does not have, errors adding in squares.
        injected: How far the unit's own results moved, relative; of several modules the square root of the
            sum of squares, what one's error does to the next included.
        arrived: How far the outputs moved, relative.
    """

    error: float
    added: float
    injected: float
    arrived: float

    @property
    def amplification(self) -> float | None:
        """Relative error of the outputs per relative error in the unit; None where it injects none."""
        if not math.isfinite(self.injected) or self.injected == 0.0:
            return None
        return self.arrived / self.injected


def measure(bench: Bench, units: Iterable[Unit]) -> dict[tuple[str, str], Sensitivity]:
    """Lower each unit alone and measure, by its name and precision.

    bf16 has the cost of fp16 and rounds eight times as coarsely, so that it is only of use where fp16 does
    worse than round: where its results overflow or vanish. It is measured where fp16 injects more than one
    rounding to bf16 can.
    """
    base = bench.evaluate({}, tapped=True)
    found = {}
    for unit in units:
        found[unit.name, "fp16"] = sensitivity = _lowered(bench, base, unit, "fp16")
        if not sensitivity.injected <= PRECISIONS["bf16"].unit_roundoff or math.isinf(sensitivity.error):
            found[unit.name, "bf16"] = _lowered(bench, base, unit, "bf16")
    return found


def _lowered(bench: Bench, base: Evaluation, unit: Unit, precision: str) -> Sensitivity:
    lowered = bench.evaluate(dict.fromkeys(unit.paths, precision), tapped=True)
    return Sensitivity(
        error=lowered.error,
        added=math.sqrt(max(lowered.error**2 - base.error**2, 0.0)),
        injected=math.hypot(*(bench.moved(path, lowered, base) for path in unit.paths)),
        arrived=bench.moved("", lowered, base),
    )


def assignment_of(chosen: Mapping[Unit, str]) -> dict[str, str]:
    """Precisions by path, from precisions by unit; those of fp32 left out."""
    return {path: name for unit, name in chosen.items() if name != BASE for path in unit.paths}
