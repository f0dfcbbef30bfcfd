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
        name: Name in reports.
        over: Rows and labels, (..., n) each, to the metric of the last axis, (...); NaN where undefined.
        undefined: From labels (n,) to the reason for an undefined value; empty for a defined one.
    """

    name: str
    over: Over
    undefined: Callable[[np.ndarray], str] = lambda labels: ""


class Task(abc.ABC):
    """The metrics of a model's output."""

    output: ClassVar[str]
    """Tap name of the output behind the metrics."""
    unusable: ClassVar[str]
    """Words for the property of a row without a result."""
    metrics: tuple[Metric, ...]

    @abc.abstractmethod
    def rows(self, output: np.ndarray, labels: Arrays, inputs: Arrays) -> np.ndarray:
        """A batch's output (B, ...) float64 as one number a row, (B,); NaN for a row without one."""

    @abc.abstractmethod
    def truth(self, labels: Arrays) -> np.ndarray:
        """The batch's labels, (B,), in the order of the rows."""

    def nearest(self, output: np.ndarray) -> np.ndarray:
        """The nearest output that a model can have."""
        return output
