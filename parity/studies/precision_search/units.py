"""Units of modules that are lowered together, and the effect of lowering one unit on the outputs."""

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
    """Modules of one precision: a single one, or the modules of one class at the same place of every block.

    Attributes:
        name: Path with `*` for the numbers in which the modules differ. The class follows where another unit
            has the same path. "" is the model itself.
        paths: Paths of the modules.
    """

    name: str
    paths: tuple[str, ...]

    def split(self) -> tuple[Unit, ...]:
        """Units of one module."""
        return tuple(Unit(path, (path,)) for path in self.paths)


def units_of(kinds: Mapping[str, str]) -> tuple[Unit, ...]:
    """Units of modules, in the order of `kinds`.

    Args:
        kinds: Class names by path.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for path, kind in kinds.items():
        groups.setdefault((re.sub(r"\b\d+\b", "*", path), kind), []).append(path)
    patterns = [pattern for (pattern, _), paths in groups.items() if len(paths) > 1]

    def name(pattern: str, kind: str, paths: list[str]) -> str:
        if len(paths) == 1:
            return paths[0]
        return pattern if patterns.count(pattern) == 1 else f"{pattern} ({kind})"

    return tuple(Unit(name(*key, paths), tuple(paths)) for key, paths in groups.items())


@dataclass(frozen=True)
class Sensitivity:
    """The effect of lowering one unit alone to one precision.

    Attributes:
        error: Error of the outputs against the oracle; infinite for outputs with NaN or Inf.
        added: Part of the error beyond that of fp32, if errors add in squares.
        injected: Relative movement of the unit's own results. For several modules, the root of the sum of
            squares; an error of one module also moves the next.
        arrived: Relative movement of the outputs.
    """

    error: float
    added: float
    injected: float
    arrived: float

    @property
    def amplification(self) -> float | None:
        """Relative error of the outputs per relative error in the unit; None for a unit without an error."""
        if not math.isfinite(self.injected) or self.injected == 0.0:
            return None
        return self.arrived / self.injected


def measure(bench: Bench, units: Iterable[Unit]) -> dict[tuple[str, str], Sensitivity]:
    """Lower each unit alone and measure its sensitivity, by name and precision.

    bf16 costs the same as fp16 and rounds eight times as coarsely. It helps where results overflow or vanish
    in fp16. It is measured where fp16 injects more than one rounding to bf16 can.
    """
    base = bench.evaluate({}, tapped=True)
    sensitivities = {}
    for unit in units:
        sensitivities[unit.name, "fp16"] = sensitivity = _lowered(bench, base, unit, "fp16")
        if not sensitivity.injected <= PRECISIONS["bf16"].unit_roundoff or math.isinf(sensitivity.error):
            sensitivities[unit.name, "bf16"] = _lowered(bench, base, unit, "bf16")
    return sensitivities


def _lowered(bench: Bench, base: Evaluation, unit: Unit, precision: str) -> Sensitivity:
    lowered = bench.evaluate(dict.fromkeys(unit.paths, precision), tapped=True)
    return Sensitivity(
        error=lowered.error,
        added=math.sqrt(max(lowered.error**2 - base.error**2, 0.0)),
        injected=math.hypot(*(bench.moved(path, lowered, base) for path in unit.paths)),
        arrived=bench.moved("", lowered, base),
    )


def assignment_of(chosen: Mapping[Unit, str]) -> dict[str, str]:
    """Precisions by path from precisions by unit, without fp32."""
    return {path: name for unit, name in chosen.items() if name != BASE for path in unit.paths}
