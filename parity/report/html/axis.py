"""The common log axis of the rows of a module tree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parity.report.overview import Measure, measures
from parity.report.schema_modules import ModuleReport, VerdictReport

ZERO_AT, FROM, TO = 2.0, 12.0, 97.0
"""Percent of the width: the place of zero, and both ends of the decades."""
MAX_DECADES = 12
"""Largest number of decades. Smaller errors sit at the beginning of the axis."""


@dataclass(frozen=True)
class Track:
    """One verdict on the axis: the measure that is closest to its limit, in percent of the width.

    `limit` is None if the port must be equal. `port` is None for NaN.
    """

    alone: bool
    measure: Measure
    port: float | None
    reference: float | None
    limit: float | None

    @property
    def over(self) -> bool:
        return self.measure.ratio > 1.0


@dataclass(frozen=True)
class Axis:
    """Decades from 10**low to 10**high, and a place for zero before them."""

    low: int
    high: int

    @classmethod
    def over(cls, modules: Iterable[ModuleReport]) -> Axis:
        """The axis that covers all errors and limits of these modules."""
        shown = [closest(v) for module in modules for v in (module.isolated, module.accumulated) if v]
        numbers = [
            abs(number)
            for measure in shown
            for number in (measure.port, measure.reference, measure.limit)
            if 0.0 < abs(number) < math.inf
        ]
        if not numbers:
            return cls(-8, 0)
        high = math.ceil(math.log10(max(numbers)))
        low = max(math.floor(math.log10(min(numbers))), high - MAX_DECADES)
        return cls(min(low, high - 1), high)

    def at(self, number: float) -> float | None:
        """Percent of the width, None for NaN. A number off the axis sits at its end."""
        number = abs(number)
        if math.isnan(number):
            return None
        if number == 0.0:
            return ZERO_AT
        decades = math.log10(number) if number < math.inf else self.high
        share = (min(max(decades, self.low), self.high) - self.low) / (self.high - self.low)
        return round(FROM + share * (TO - FROM), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and names of zero and of at most six decades."""
        step = math.ceil((self.high - self.low) / 5)
        decades = range(self.low, self.high + 1, step)
        return [(ZERO_AT, "0"), *((self.at(10.0**decade) or 0.0, f"1e{decade}") for decade in decades)]

    def tracks(self, module: ModuleReport) -> list[Track]:
        """The module's verdicts on this axis."""
        verdicts = ((True, module.isolated), (False, module.accumulated))
        return [self._track(alone, verdict) for alone, verdict in verdicts if verdict is not None]

    def _track(self, alone: bool, verdict: VerdictReport) -> Track:
        measure = closest(verdict)
        return Track(
            alone,
            measure,
            self.at(measure.port),
            self.at(measure.reference),
            self.at(measure.limit) if measure.limit else None,
        )


def closest(verdict: VerdictReport) -> Measure:
    """The measure of a verdict with the largest error over limit."""
    return max(measures(verdict), key=lambda measure: measure.ratio)
