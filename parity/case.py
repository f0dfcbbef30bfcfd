"""What the harness asks of a model family."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from configs import CaseConfig
from parity.base.precision import Precision
from parity.base.trees import dotted, leaves
from parity.capture.captures import ModuleCall
from parity.inputs.arrays import CaseInputs
from parity.verdict.task_metrics.task import Task

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Batches:
    """A case's input, where it comes from, and counts that add up to what was given.

    `labels` are what really happened, batch by batch and row by row, as the family's `task` reads them: no
    part of what a model gets, and empty where nobody knows.
    """

    inputs: list[CaseInputs]
    source: str
    counts: dict[str, int]
    labels: list[CaseInputs] = field(default_factory=list)


class Family(abc.ABC):
    """One architecture: how to build both sides, how to feed them, what counts in their results."""

    name: ClassVar[str]
    """The `family` of its cases."""
    builder: ClassVar[str]
    """The function of `tripy_port.build` that makes its port."""
    layouts: ClassVar[tuple[str, ...]] = ("dense",)
    """Layouts of the reference; a family with "jagged" also has `pad_taps` and `jagged_arguments`."""
    entry: ClassVar[str]
    """The method of both models that goes from a case's input to its outputs."""
    outputs: ClassVar[tuple[str, ...]]
    """Names of what the entry returns, in order."""
    incremental_outputs: ClassVar[Mapping[str, str]] = {}
    """Tap names of what `extend` returns, in order, each with the tap of the full forward that it must
    equal; empty if the family has no incremental forward."""

    @abc.abstractmethod
    def build_reference(self, config: Any, layout: str) -> torch.nn.Module:
        """The PyTorch model of a case, with untrained weights."""

    def build_port(self, config: Any, dtype: Any) -> Any:
        """The Tripy model of a case, in a `tp.dtype`, its parameters not set."""
        from tripy_port import build

        return getattr(build, self.builder)(config, dtype)

    @abc.abstractmethod
    def gaps(self) -> Mapping[str, str]:
        """Classes of the reference that Tripy cannot express, each with the reason."""

    @abc.abstractmethod
    def synthetic(self, case: CaseConfig) -> Batches:
        """One batch that reaches every part of the model, drawn from the case's seed."""

    @abc.abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a file begins like one that `read` reads; False for one that cannot be read at all."""

    @abc.abstractmethod
    def read(self, path: Path) -> Any:
        """A file of recorded data, for `recorded`. Raises `UserError`."""

    @abc.abstractmethod
    def recorded(self, case: CaseConfig, data: Any) -> Batches:
        """All of what `read` read, as batches. Raises `UserError` where it does not fit the model."""

    @abc.abstractmethod
    def validate(self, inputs: CaseInputs, case: CaseConfig) -> None:
        """Raises `UserError` for inputs that the models cannot be run on, or their results not judged."""

    @abc.abstractmethod
    def poison(self, inputs: CaseInputs, seed: int) -> CaseInputs | None:
        """The same inputs with garbage in their padding; None where the inputs have no padding."""

    @abc.abstractmethod
    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        """The entry's keyword arguments: the case's arrays, nested as the method wants them."""

    @abc.abstractmethod
    def batch_size(self, arrays: Arrays) -> int:
        """Users or rows in the batch."""

    def rows(self, arrays: Arrays, rows: slice) -> dict[str, np.ndarray] | None:
        """The input of some rows of the batch, where no row's results depend on another's.

        None where they do, or where rows cannot be told apart: such a batch is only run as a whole.
        """
        return None

    def dynamic_sizes(self, arrays: Arrays) -> dict[int, int]:
        """Sizes of first axes that are dynamic in the port's graph, each with its smallest value."""
        batch = self.batch_size(arrays)
        return {batch: 1} if batch > 1 else {}

    def dynamic_axes(self, arrays: Arrays) -> dict[str, tuple[str, int]]:
        """First axes that are dynamic in an exported graph, by the path of the entry's argument.

        Each with the size's name, which is another one only for a size of its own, and its smallest value.
        """
        batch = self.batch_size(arrays)
        arguments = leaves(self.entry_arguments(arrays))
        return {dotted(path): ("batch", 1) for path, array in arguments if array.shape[0] == batch}

    @abc.abstractmethod
    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        """For each size that a padded axis can have, the (B, size) boolean mask of what counts."""

    def is_causal(self, config: Any) -> bool:
        """Whether no row of a sequence depends on a later one."""
        return True

    @abc.abstractmethod
    def boundary(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], config: Any
    ) -> np.ndarray | None:
        """Elements of a module's output whose pre-image lies within round-off of a discontinuity."""

    def task(self, config: Any, weights: Path, precision: Precision) -> Task:
        """What the labels of `recorded` are compared with; needed by families whose data have labels.

        Args:
            config: The case's model.
            weights: Folder of the exported weights.
            precision: The tested precision.
        """
        raise NotImplementedError(f"{self.name} has no task")

    def named_outputs(self, results: Any) -> dict[str, Any]:
        """What the entry returned, by tap name. Either side."""
        several = results if isinstance(results, tuple) else (results,)
        return {f"{self.entry}.{name}": each for name, each in zip(self.outputs, several, strict=True)}

    def incremental_arguments(
        self, config: Any, arrays: Arrays
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Keyword arguments of `prefill` and of `extend`, less its cache; None where there are none."""
        return None

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        """Taps of the jagged reference under the names and in the shapes of the dense one."""
        raise NotImplementedError

    def jagged_arguments(self, path: str, args: list, kwargs: dict, arrays: Arrays) -> tuple[list, dict]:
        """Arguments of a dense module as those of its jagged twin."""
        raise NotImplementedError
