"""Errors of predictions, in the notebook's format (see `perf_model.embedding`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BINS = (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Edges of the notebook's histogram of relative errors; a bin contains its lower edge."""
SMALLEST = 1e-6
"""Least error in the geometric mean, which an exact prediction would make zero."""


@dataclass(frozen=True)
class ErrorStatistics:
    """Relative errors |predicted - measured| / measured.

    Attributes:
        points: number of predictions.
        gmae: geometric mean. mean, std: arithmetic mean and sample standard deviation.
        histogram: share of the errors in each bin of `BINS`, and beyond the last edge.
    """

    points: int
    gmae: float
    mean: float
    std: float
    histogram: tuple[float, ...]

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> ErrorStatistics:
        """Statistics of at least two predictions.

        Raises:
            ValueError: fewer than two, different numbers of predictions and measurements, or a time of at
                most 0.
        """
        if len(predicted) != len(measured) or len(predicted) < 2:
            counts = f"{len(predicted)} predictions for {len(measured)} measurements"
            raise ValueError(f"{counts}: give equal numbers, at least two")
        if any(not value > 0 for value in (*predicted, *measured)):
            raise ValueError("a time is not positive: give seconds")
        errors = [abs(p - m) / m for p, m in zip(predicted, measured, strict=True)]
        counts = [sum(low <= e < high for e in errors) for low, high in zip(BINS, BINS[1:], strict=False)]
        counts.append(len(errors) - sum(counts))
        logarithms = [math.log(max(error, SMALLEST)) for error in errors]
        return cls(
            points=len(errors),
            gmae=math.exp(statistics.fmean(logarithms)),
            mean=statistics.fmean(errors),
            std=statistics.stdev(errors),
            histogram=tuple(count / len(errors) for count in counts),
        )

    def summary(self) -> str:
        """The notebook's line: GMAE, mean and standard deviation in percent."""
        return f"GMAE: {self.gmae:.2%}, mean: {self.mean:.2%}, std: {self.std:.2%}"


def bin_names() -> list[str]:
    """A name for each bin of a histogram."""
    pairs = zip(BINS, BINS[1:], strict=False)
    return [*(f"{low:.0%} - {high:.0%}" for low, high in pairs), f"over {BINS[-1]:.0%}"]
