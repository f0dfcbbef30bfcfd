"""DLRMv3 with fused kernels on jagged rows: `reference.dlrm_hstu_fused`, `tripy_port.dlrm_hstu_fused`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cases.dlrmv3.dense import DenseDLRMv3
from cases.jagged import pad
from cases.stu.fused import ATTENTION, INSIDE_WHOLE_LAYERS, WHOLE_LAYERS, FusedStack
from parity.case import Arrays, CallInForm

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

    def appended_call(
        self, path: str, method: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> CallInForm:
        is_attention = path.endswith(ATTENTION)
        # The dense attention has one method, and fewer rows of q than of k in an append.
        if method == "forward" and not (is_attention and args[0].shape[1] < args[1].shape[1]):
            # The whole request, which fills the cache, or a module that is dense in both layouts.
            args, kwargs = self.module_arguments(path, args, kwargs, arrays, modules)
            return CallInForm(args, kwargs, functools.partial(self.pad_taps, arrays=arrays))
        b, m = arrays["query_times"].shape
        padded = functools.partial(_with_users, users=b)
        if path == self.stack:
            return CallInForm(args, kwargs, padded, "cached_forward")
        _, cached_lengths_B = DenseDLRMv3.shared_rows(self, arrays)
        shared = {
            "x_offsets": torch.arange(b + 1, dtype=torch.int32) * m,
            "cached_lengths": torch.tensor(cached_lengths_B, dtype=torch.int32),
            # Rows behind a user's last candidate count as targets, too.
            "num_targets": torch.full((b,), m, dtype=torch.int32),
            "valid_attn_mask": modules[f"{self.stack}._valid_attn_mask"],
        }
        if is_attention:
            q, k, v, *_ = args
            return CallInForm([q.flatten(0, 1), k, v], shared, padded, "cached_forward")
        delta_x, _, _, cache, *_ = args
        return CallInForm([delta_x.flatten(0, 1)], shared | {"cache": cache}, padded, "cached_forward")


def _with_users(tensors: Mapping[str, torch.Tensor], users: int) -> dict[str, torch.Tensor]:
    """New rows (B * M, ...) by tap -> (B, M, ...); the cache has users."""
    return {
        tap: tensor.unflatten(0, (users, -1)) if tensor.dim() == 2 else tensor
        for tap, tensor in tensors.items()
    }


class DLRMv3WholeLayers(DLRMv3Fused):
    """`DLRMv3Fused` with kernels for norms, activation and gate too."""

    fused_options = WHOLE_LAYERS
    computed_inside = INSIDE_WHOLE_LAYERS
