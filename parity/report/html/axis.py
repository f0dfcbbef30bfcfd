"""The log axis that the rows of a module tree share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parity.report.overview import Measure, measures
from parity.report.schema import ModuleReport, VerdictReport

ZERO_AT, FROM, TO = 2.0, 12.0, 97.0
"""Percent of the width: where what is equal sits, and where the decades begin and end."""
MAX_DECADES = 12
"""Errors further below the largest sit at the axis' beginning."""


@dataclass(frozen=True)
class Track:
    """One verdict on the axis, in percent: the number that is closest to its limit.

    `limit` is None where the port must be equal, `port` where the error is no number.
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
        """The axis that has room for everything that these modules show."""
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
        """Percent of the width, None for what is no number; what is off the axis sits at its end."""
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
    """The number of a verdict that is closest to its limit, or furthest beyond it."""
    return max(measures(verdict), key=lambda measure: measure.ratio)
