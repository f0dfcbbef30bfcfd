"""DLRMv3 with jagged rows inside its STU stack: taps and arguments between both layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cases.dlrmv3.dense import DenseDLRMv3
from cases.stu.jagged import jagged_arguments, pad_taps
from parity.case import Arrays, Form


class DLRMv3Jagged(DenseDLRMv3, Form):
    """The reference on jagged rows; the port has no such layout."""

    def build_reference(self) -> torch.nn.Module:
        from reference.build import build_dlrmv3

        return build_dlrmv3(self.model, "jagged")

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        return pad_taps(tensors, self._lengths(arrays), self.width(arrays))

    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        return jagged_arguments(path, args, kwargs, self._lengths(arrays))

    def _lengths(self, arrays: Arrays) -> torch.Tensor:
        """(B,) valid rows of each sequence."""
        return torch.tensor(self.valid_rows(arrays)[self.width(arrays)].sum(axis=1))
