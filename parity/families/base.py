"""What the harness asks of a model family."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from parity.captures import ModuleCall

Arrays = Mapping[str, np.ndarray]


class Family(abc.ABC):
    """One architecture: how to build both sides, how to feed them, what counts in their results."""

    name: ClassVar[str]
    """The `family` of its cases."""
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

    @abc.abstractmethod
    def build_port(self, config: Any, dtype: Any) -> Any:
        """The Tripy model of a case, in a `tp.dtype`, its parameters not set."""

    @abc.abstractmethod
    def gaps(self) -> Mapping[str, str]:
        """Classes of the reference that Tripy cannot express, each with the reason."""

    @abc.abstractmethod
    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        """The entry's keyword arguments: the case's arrays, nested as the method wants them."""

    @abc.abstractmethod
    def batch_size(self, arrays: Arrays) -> int:
        """Users or rows in the batch."""

    @abc.abstractmethod
    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        """For each size that a padded axis can have, the (B, size) boolean mask of what counts."""

    @abc.abstractmethod
    def other_sizes(self, config: Any) -> set[int]:
        """Sizes of the axes that are never padded, which a padded axis must therefore not have."""

    @abc.abstractmethod
    def boundary(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], config: Any
    ) -> np.ndarray | None:
        """Elements of a module's output whose pre-image lies within round-off of a discontinuity."""

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
