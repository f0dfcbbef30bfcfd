"""Streams of a case: models that append items to a cache, and the full forward that they must equal.

A stream has B rows. Its items arrive in steps. A model of streams hands a state from one step to the next: a
list of the rows' lengths (B,) and of cached tensors (B, C, ...). The cache is aligned at its end: the last of
its C slots holds a row's latest position, and empty slots are zero.

Legend: B rows, T items, M new items of a step, C capacity of the cache in positions,
N positions of the whole stream, D width of the outputs.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import nvtripy
    import torch

Change = Callable[["torch.nn.Module"], None]
"""Changes a model in place."""


@dataclass(frozen=True)
class Step:
    """One append to all rows.

    Attributes:
        new: M, the number of new items.
        entering: (B,) int64, the number of them that enter the cache of each row.
    """

    new: int
    entering: np.ndarray


@dataclass(frozen=True)
class Stream:
    """Items of several rows in order of time, and the steps in which they arrive.

    Attributes:
        arrays: Items by name of the array, (B, T, ...) or more, as the case reads them.
        steps: In order; the items of the first step begin the rows.
    """

    arrays: Mapping[str, np.ndarray]
    steps: tuple[Step, ...]

    @property
    def rows(self) -> int:
        """B."""
        return self.steps[0].entering.size

    @property
    def items(self) -> int:
        """T: items of the longest row, and the new ones of a last step that do not enter the cache."""
        entered = np.sum([step.entering for step in self.steps], axis=0)
        return int(entered.max()) + max(step.new for step in self.steps)


@dataclass(frozen=True)
class FullForward:
    """Results of a full forward over a whole stream.

    Attributes:
        outputs: (B, N, D).
        cached: (B, N, ...) of every position, by the names of `Streams.cached`.
    """

    outputs: torch.Tensor
    cached: Mapping[str, torch.Tensor]


class Streams(abc.ABC):
    """The models of a case over streams. A `Case` returns it from `streams`.

    Both sides have the parameters of the case's models, under the same names.
    """

    width: int
    """Most positions that a cache may hold."""
    positions_per_item: int = 1
    """Positions that an item takes."""
    output: str = "output"
    """Name of the outputs of a step."""
    cached: Sequence[str]
    """Names of the cached tensors in the order of the state, the first computed ones first."""

    @abc.abstractmethod
    def build_reference(self) -> torch.nn.Module:
        """The PyTorch model of streams."""

    @abc.abstractmethod
    def build_port(self, dtype: nvtripy.dtype) -> nvtripy.Module:
        """The Tripy model of streams."""

    @abc.abstractmethod
    def build_full(self, weights: Mapping[str, torch.Tensor], items: int, window: int) -> torch.nn.Module:
        """A PyTorch model without a cache that must give the same results, with its weights.

        Args:
            weights: The case's weights.
            items: Least number of items that the model must take.
            window: Number of positions that a position sees, itself included.
        """

    @abc.abstractmethod
    def run_full(self, model: torch.nn.Module, stream: Stream) -> FullForward:
        """Run a model of `build_full` over a whole stream."""

    @abc.abstractmethod
    def draw(self, first: tuple[int, ...], steps: int, new: tuple[int, ...], seed: int) -> Stream:
        """A stream whose rows begin with `first` items in one step, and go on for `steps` more steps.

        Args:
            first: Items of each row in the first step.
            steps: Number of further steps.
            new: Numbers of new items, which the steps take in turn. A row keeps any number of them.
            seed: Seed of all random numbers.
        """

    @abc.abstractmethod
    def arguments(self, stream: Stream, begun: np.ndarray, step: Step) -> dict[str, Any]:
        """Arguments of `append` for a step, as arrays, when rows have `begun` (B,) items."""

    def empty_state(self, model: Any, rows: int, capacity: int) -> list:
        """The state of streams without items, of a model of either side."""
        return model.empty_state(rows, capacity)

    @abc.abstractmethod
    def append(self, model: Any, state: list, **arguments: Any) -> tuple[Any, list]:
        """One step of a model of either side. Returns the outputs of the new positions and the new state."""

    @abc.abstractmethod
    def origin(self, name: str) -> str:
        """The place of a mistake that shows first in the outputs or in a cached tensor, in words."""

    def mistakes(self) -> Mapping[str, Change]:
        """Typical mistakes in words, each as a change of a model of `build_full`."""
        return {}
