"""DLRMv3 with fused kernels on jagged rows: `reference.dlrm_hstu_fused`, `tripy_port.dlrm_hstu_fused`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cases.dlrmv3.dense import DenseDLRMv3
from cases.jagged import pad
from cases.stu.fused import INSIDE_WHOLE_LAYERS, WHOLE_LAYERS, FusedStack
from parity.case import Arrays

_TRANSDUCER = "_hstu_transducer"
_TARGETS = 6
"""Arguments of the transducer up to the targets, which the valid rows follow."""


class DLRMv3Fused(FusedStack, DenseDLRMv3):
    """`DenseDLRMv3` with fused attention."""

    fused_builder = "build_dlrmv3_fused"
    stack, targets = f"{_TRANSDUCER}._stu_module", "num_candidates"

    def width(self, arrays: Arrays) -> int:
        return DenseDLRMv3.width(self, arrays)

    def shared_rows(self, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
        _, counts = super().shared_rows(arrays)
        lengths = self.lengths(arrays).numpy()
        return np.cumsum(lengths) - lengths, counts

    def incremental_arguments(self, arrays: Arrays) -> Sequence[dict[str, Any]]:
        before, *steps = DenseDLRMv3.incremental_arguments(self, arrays)
        return before | {"valid_rows": self.row_numbers(arrays)}, *steps

    def resumed_cache(self, tensors: Mapping[str, Any], arrays: Arrays) -> Mapping[str, Any]:
        lengths = self.lengths(arrays)
        return {name: pad(tensor, lengths, self.width(arrays)) for name, tensor in tensors.items()}

    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        if path == _TRANSDUCER:
            rows = torch.tensor(self.row_numbers(arrays))
            return [*args[:_TARGETS], rows, *args[_TARGETS:]], kwargs
        return super().module_arguments(path, args, kwargs, arrays, modules)


class DLRMv3WholeLayers(DLRMv3Fused):
    """`DLRMv3Fused` with kernels for norms, activation and gate too."""

    fused_options = WHOLE_LAYERS
    computed_inside = INSIDE_WHOLE_LAYERS
