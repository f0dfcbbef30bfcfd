"""The task of a case: rows, labels and metrics.

Legend: B rows of a batch, n rows of all batches.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

Arrays = Mapping[str, np.ndarray]
Over = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Metric:
    """A number over all rows, dimensionless.

    Attributes:
        name: As in reports.
        over: Rows and labels, (..., n) each, to the metric of the last axis, (...); NaN where undefined.
        undefined: Why labels (n,) give it no value, or nothing.
    """

    name: str
    over: Over
    undefined: Callable[[np.ndarray], str] = lambda labels: ""


class Task(abc.ABC):
    """How the output of a model becomes metrics."""

    output: ClassVar[str]
    """Tap name of the output that metrics are made of."""
    unusable: ClassVar[str]
    """What a row without a result has, in words."""
    metrics: tuple[Metric, ...]

    @abc.abstractmethod
    def rows(self, output: np.ndarray, labels: Arrays, inputs: Arrays) -> np.ndarray:
        """A batch's output (B, ...) float64 as one number a row, (B,); NaN for a row that has none."""

    @abc.abstractmethod
    def truth(self, labels: Arrays) -> np.ndarray:
        """The batch's labels, (B,), in the order of the rows."""

    def nearest(self, output: np.ndarray) -> np.ndarray:
        """The nearest output that a model can have."""
        return output
