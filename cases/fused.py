"""What the families of fused models share: `reference.*_fused` and `tripy_port.*_fused`.

None is a family that a case can name: the runners of fused models take a case of another family and run it as
one of these. Their taps are those of the dense reference, padded; what the kernel computes itself has none.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from parity.base.trees import map_tree
from parity.case import Arrays, Family


class FusedFamily(Family):
    """In front of a dense family: the valid rows are among the inputs, and there is no cache."""

    layouts = ("jagged",)

    @abc.abstractmethod
    def require_fused(self, config: Any) -> None:
        """Raises ValueError where the kernel does not compute a model's attention, naming the field."""

    @abc.abstractmethod
    def width(self, arrays: Arrays) -> int:
        """N: rows of a padded sequence."""

    @abc.abstractmethod
    def fused_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: dict[str, Any]
    ) -> tuple[list, dict]:
        """Host tensors that the dense module at `path` got, as arguments of its fused twin in `modules`."""

    def lengths(self, arrays: Arrays) -> torch.Tensor:
        """(B,) valid rows of each sequence."""
        return torch.tensor(self._is_valid(arrays).sum(axis=1))

    def row_numbers(self, arrays: Arrays) -> np.ndarray:
        """(L,) int32, ascending: the positions in the flattened (B, N) that hold something."""
        return np.flatnonzero(self._is_valid(arrays)).astype(np.int32)

    def dynamic_sizes(self, arrays: Arrays) -> dict[int, int]:
        """The number of valid rows is dynamic as well."""
        rows = self.row_numbers(arrays).size
        return {rows: 1, **super().dynamic_sizes(arrays)} if rows > 1 else {}

    def incremental_arguments(self, config: Any, arrays: Arrays) -> None:
        return None

    def _is_valid(self, arrays: Arrays) -> np.ndarray:
        """(B, N) bool."""
        return self.valid_rows(arrays)[self.width(arrays)]


def placed(arguments: tuple[list, dict], place: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list, dict]:
    """Arguments with `place` applied to every tensor."""

    def moved(leaf: Any) -> Any:
        return place(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return map_tree(arguments[0], moved), map_tree(arguments[1], moved)
