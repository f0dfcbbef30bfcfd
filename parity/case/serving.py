"""Requests of a case, for a server: what it draws, how long they are, and the shapes that they are padded to.

A request is one row of a batch. The server pads it to the least of a few fixed widths, each of which has one
executable. A request's width depends on the request alone, so that no other request changes its prediction.

Legend: B requests.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parity.base.errors import UserError
from parity.case.plan import Arrays

if TYPE_CHECKING:
    import torch


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


@dataclass(frozen=True)
class Drawn:
    """Requests.

    Attributes:
        arrays: Inputs of the model for the reference, padded to the last width, with zeros in the padding.
        source: Origin of the requests in words.
        ids: For inputs that are rows of tables, by the input's name: the number of each row, int64, or -1 in
            the padding. The server looks them up.
    """

    arrays: Arrays
    source: str
    ids: Arrays = field(default_factory=dict)


Lookup = Callable[[str, np.ndarray], np.ndarray]
"""From the name of an input and its rows' numbers, (...), to the rows, (..., columns); anything for -1."""
DeviceLookup = Callable[[str, np.ndarray], "torch.Tensor"]
"""The same with rows on a device, queued in PyTorch's current stream."""


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
    def draw(self, requests: int, seed: int, data: Path | None = None) -> Drawn:
        """Requests that look like logged ones.

        Args:
            requests: Their number.
            seed: Seed of all random numbers.
            data: Recorded requests to read; None to make some.

        Raises:
            UserError: There are fewer requests, or the data cannot be read.
        """

    def tables(self, folder: Path, seed: int) -> AbstractContextManager[Lookup]:
        """A service of the rows that `Drawn.ids` numbers. By default there are no tables.

        Args:
            folder: Files of the tables; written if the folder is absent.
            seed: As of `draw`.

        Raises:
            UserError: The files are damaged, or of other tables.
        """
        raise UserError("--tables", str(folder), "is for cases with tables", "leave --tables out")

    def device_tables(self, folder: Path, seed: int, device: str) -> AbstractContextManager[DeviceLookup]:
        """As `tables`, with all rows on a device: "cpu" or "cuda"."""
        raise UserError("--tables-on", device, "is for cases with tables", "leave --tables-on out")

    fresh: frozenset[str] = frozenset()
    """Names of the inputs that differ among requests with shared rows; see `shared`."""

    def shared(self, inputs: Arrays) -> Arrays:
        """Everything that the shared rows of requests depend on, zero in the padding: the key of a k/v cache.

        All inputs enter it as they are, but for the `fresh` ones, and for values of those that matter.

        Args:
            inputs: Inputs of the model by name; numbers of rows in place of rows of tables.
        """
        raise UserError("--kv-cache", "on", "is for cases with a k/v cache", "leave --kv-cache out")

    def returning(self, drawn: Drawn) -> Drawn:
        """The requests, and further ones for a k/v cache to prove itself on.

        Behind the drawn ones, each comes again with the fresh inputs of another. Behind these are some whose
        shared rows are not those of the request that they are copied from: one input is changed in each.
        """
        raise UserError("--kv-cache", "on", "is for cases with a k/v cache", "leave --kv-cache out")

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
