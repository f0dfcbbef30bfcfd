"""Common parts of the fused forms `reference.*_fused` and `tripy_port.*_fused`.

Their taps are the padded ones of the dense reference. Modules inside the kernel have no taps.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cases.configured import ConfiguredCase
from configs import CaseConfig
from kernels.hstu_attention.interface import missing_triton
from parity.case import Arrays, Form, NoForm

_INSIDE = "computed inside the fused attention, never as a tensor"


class FusedForm(Form, ConfiguredCase):
    """In front of a dense case: the valid rows are among the inputs, and there is no cache.

    Raises:
        NoForm: The kernel does not compute the case's attention.
    """

    fused_builder: str
    """The function of `reference.build` and of `tripy_port.build`."""
    fused_options: Mapping[str, bool] = {}
    """Its further arguments."""
    computed_inside = dict.fromkeys(
        ("RelativeBucketedTimeAndPositionBasedBias", "AttentionMask", "STUAttentionMask"), _INSIDE
    )

    def __init__(self, config: CaseConfig) -> None:
        super().__init__(config)
        try:
            self.require_fused()
        except ValueError as error:
            raise NoForm(str(error)) from error

    @abc.abstractmethod
    def require_fused(self) -> None:
        """Raises ValueError where the kernel does not compute the model's attention, naming the field."""

    @abc.abstractmethod
    def width(self, arrays: Arrays) -> int:
        """N: rows of a padded sequence."""

    def build_reference(self) -> torch.nn.Module:
        from reference import build

        _require_triton_on_a_gpu()
        return getattr(build, self.fused_builder)(self.model, **self.fused_options)

    def build_port(self, dtype: Any) -> Any:
        _require_triton_on_a_gpu()
        # Importing registers the plugins.
        import kernels.plugins.hstu_attention
        import kernels.plugins.stu_attention
        import kernels.plugins.stu_layer  # noqa: F401
        from tripy_port import build

        return getattr(build, self.fused_builder)(self.model, dtype=dtype, **self.fused_options)

    def lengths(self, arrays: Arrays) -> torch.Tensor:
        """(B,) valid rows of each sequence."""
        return torch.tensor(self._is_valid(arrays).sum(axis=1))

    def row_numbers(self, arrays: Arrays) -> np.ndarray:
        """(L,) int32, ascending: the positions in the flattened (B, N) that hold something."""
        return np.flatnonzero(self._is_valid(arrays)).astype(np.int32)

    def dynamic_sizes(self, arrays: Arrays) -> Mapping[int, int]:
        """The number of valid rows is dynamic as well."""
        rows = self.row_numbers(arrays).size
        return {rows: 1, **super().dynamic_sizes(arrays)} if rows > 1 else {}

    def fixed_arguments(self, arrays: Arrays) -> dict[str, Any]:
        """As many rows as the padded batch has: behind the valid ones row 0, whose results nothing reads."""
        rows = self.row_numbers(arrays)
        padded = np.zeros(self._is_valid(arrays).size, dtype=rows.dtype)
        padded[: rows.size] = rows
        return self.entry_arguments(arrays) | {"valid_rows": padded}

    def incremental_arguments(self, arrays: Arrays) -> None:
        return None

    def _is_valid(self, arrays: Arrays) -> np.ndarray:
        """(B, N) bool."""
        return self.valid_rows(arrays)[self.width(arrays)]


def _require_triton_on_a_gpu() -> None:
    if torch.cuda.is_available() and (reason := missing_triton()):
        raise NoForm(reason)
