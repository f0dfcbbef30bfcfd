"""Requests of a case, for a server: what it draws, how long they are, and the shapes that they are padded to.

A request is one row of a batch. The server pads it to the least of a few fixed widths, each of which has one
executable. A request's width depends on the request alone, so that no other request changes its prediction.

Legend: B requests.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.base.errors import UserError
from parity.case.plan import Arrays


@dataclass(frozen=True)
class Audit:
    """The audit of a benchmark: predictions of a performance run beside those of the accuracy run.

    Attributes:
        name: Name of the audit, and of its folder.
        log_seed: Seed of LoadGen's choice of logged predictions.
        log_target: Number of predictions that LoadGen aims to log.
        tolerance: Largest relative change of the audit's metric.
    """

    name: str
    log_seed: int
    log_target: int
    tolerance: float


class Serving(abc.ABC):
    """The requests of a case. A `Case` returns it from `serving`.

    The entry has one output, (B, ...), whose first axis has the requests.
    """

    benchmark: str
    """Name of the benchmark in LoadGen's settings and in the folders of its logs."""
    audit: Audit
    """The benchmark's audit."""
    widths: Sequence[int]
    """Tokens of the padded shapes, ascending."""

    @abc.abstractmethod
    def draw(self, requests: int, seed: int) -> Arrays:
        """Requests that look like logged ones, padded to the last of `widths`."""

    @abc.abstractmethod
    def tokens(self, arrays: Arrays) -> np.ndarray:
        """(B,) int64, the tokens that each request needs."""

    @abc.abstractmethod
    def padded(self, arrays: Arrays, width: int) -> Arrays:
        """Requests that need at most `width` tokens, padded to these."""

    @abc.abstractmethod
    def counted(self, arrays: Arrays) -> np.ndarray:
        """Boolean mask of the predictions, in the shape of the output."""

    @abc.abstractmethod
    def change(self, before: np.ndarray, after: np.ndarray) -> float:
        """Largest relative change of the audit's metric, whatever the labels are.

        Args:
            before, after: Predictions of one request, (..., tasks), in two runs.
        """

    def width_of(self, tokens: int) -> int:
        """The least width that holds a request. Raises `UserError` for one that is too long."""
        for width in self.widths:
            if tokens <= width:
                return width
        raise UserError("request", f"{tokens} tokens", f"are more than {self.widths[-1]}", "cut its history")
