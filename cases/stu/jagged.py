"""Between the taps of the dense STU stack and of its jagged twin.

Inside the stack, the jagged model keeps the valid rows of all users in one (L, ...) tensor. This module pads
its taps and unpads the arguments of its modules, so that both layouts compare tap by tap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cases.jagged import offsets_of, pad, unpad
from cases.stu.dense import DenseSTU
from parity.case import Arrays, Form

_STACK = "_stu_module"
_LAYERS = f"{_STACK}._stu_layers."
_ATTENTION = "_attn"


class STUJagged(DenseSTU, Form):
    """The reference on jagged rows; the port has no such layout."""

    def build_reference(self) -> torch.nn.Module:
        from reference.build import build_stu

        return build_stu(self.model, "jagged")

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        return pad_taps(tensors, torch.tensor(arrays["seq_lengths"]), arrays["seq_ids"].shape[1])

    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        return jagged_arguments(path, args, kwargs, torch.tensor(arrays["seq_lengths"]))


def pad_taps(
    tensors: Mapping[str, torch.Tensor], lengths_B: torch.Tensor, width: int
) -> dict[str, torch.Tensor]:
    """Pad the taps of a jagged run as the dense model would have them.

    Args:
        tensors: Taps of the jagged model.
        lengths_B: Rows of each sequence.
        width: N.
    """
    return {
        tap: pad(tensor, lengths_B, width) if _STACK in tap and tensor.dim() == 2 else tensor
        for tap, tensor in tensors.items()
    }


def jagged_arguments(path: str, args: list, kwargs: dict, lengths_B: torch.Tensor) -> tuple[list, dict]:
    """Arguments of the dense module at `path` as those of its jagged twin."""
    name = path.partition(_LAYERS)[2]
    if name.isdigit() or name.endswith(f".{_ATTENTION}"):
        # A layer's x, an attention's q, k and v; mask and factors stay dense.
        ragged = 1 if name.isdigit() else 3
        args = [*(unpad(x, lengths_B) for x in args[:ragged]), *args[ragged:]]
        kwargs = kwargs | {"x_offsets": offsets_of(lengths_B)}
    # The stack is dense at both ends, and norms are the same classes on the same tensors in both layouts.
    return args, kwargs
